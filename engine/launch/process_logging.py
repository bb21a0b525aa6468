"""The log of a run's process: our own lines, and only those of libraries that the user can act on."""

from __future__ import annotations

import logging
import os
import warnings

RENAMED = r"`(is_)?gradient_checkpointing\w*` is deprecated"
"""transformers renamed it to activation checkpointing. TRL and PEFT still read the old names."""


SAFE_PATH = "for grpo-tui"


def safe_path() -> dict[str, str]:
    """Return the variable that keeps a process from importing packages of the working directory.

    A folder of logs or weights there may have the name of a library. `envs.user_code` imports the modules that the user
    names.
    """
    return {"PYTHONSAFEPATH": os.environ.get("PYTHONSAFEPATH") or SAFE_PATH}


def set_up_logging() -> None:
    """Set up logging at the start of a process, before it imports any library that reads these variables."""
    if os.environ.get("PYTHONSAFEPATH") == SAFE_PATH:  # not for programs that the user's code starts
        del os.environ["PYTHONSAFEPATH"]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    for noisy in ("httpx", "urllib3", "filelock", "datasets", "torch.distributed"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", RENAMED, FutureWarning)
