"""Check whether the trainer is installed. The viewer, the importers and the recorder do not need it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import LaunchError

LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
INSTALL = "pip install 'grpo-tui[train]'"


@dataclass(frozen=True)
class Fact:
    """One line of `grpo-tui doctor`. `missing`: a requirement is not met. `note`: worth knowing."""

    state: Literal["good", "note", "missing"]
    text: str
    cure: str = ""


def missing() -> list[str]:
    """Return the libraries required for training that are not installed. Imports none of them."""
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


def accelerate_settings(path: Path | None) -> dict[str, object]:
    """Read an accelerate config; empty without one. Raises LaunchError if it cannot be read."""
    if path is None:
        return {}
    import yaml

    try:
        found = yaml.safe_load(path.read_bytes())
    except (OSError, ValueError, yaml.YAMLError) as problem:
        raise LaunchError(f"the accelerate config {path} cannot be read: {problem}") from problem
    return found if isinstance(found, dict) else {}


def check_processes(mode: str, accelerate_config: Path | None) -> None:
    """Raise LaunchError for distributed settings that accelerate or training would only refuse later."""
    found = accelerate_settings(accelerate_config)
    fsdp = found.get("fsdp_config")
    deepspeed = found.get("use_deepspeed") or found.get("deepspeed_config")
    kind = "DEEPSPEED" if deepspeed else "FSDP" if fsdp else str(found.get("distributed_type", ""))
    if kind.upper() == "FSDP" and mode == "rft" and isinstance(fsdp, dict) and str(fsdp.get("fsdp_version")) == "2":
        return
    if kind.upper() in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP"):
        raise LaunchError(
            f"{accelerate_config}: {kind} is not supported; use distributed_type MULTI_GPU or MULTI_CPU, "
            "--num-processes, or for GRPO distributed_type FSDP with fsdp_config: {fsdp_version: 2}"
        )


def require(what: str) -> None:
    """Raise LaunchError if the trainer is not installed. what: a noun for the refused work, such as "training"."""
    if lacking := missing():
        raise LaunchError(f"{what} needs the trainer ({', '.join(lacking)} not installed): {INSTALL}")
