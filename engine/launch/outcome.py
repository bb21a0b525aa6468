"""Code shared by all processes of a run: logging, alerts, and recording how the process ended."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs.errors import GrpoTuiError, is_interrupt

if TYPE_CHECKING:
    from ..runs.control.alerts import AlertSender
    from ..runs.write.writer import NullWriter, RunWriter

log = logging.getLogger(__name__)

FAILED = 1


def run_recorded(
    writer: RunWriter | NullWriter, where: str, work: Callable[[], bool | None], step: int | None = None
) -> int:
    """Do `work`, record how it ended, and close `writer`. Returns the exit code of the process.

    0: finished, or stopped (`work` returned False). 130: interrupted. 1: failed, with one sentence on standard error
    and in the record, and the traceback in the log.
    """
    try:
        writer.status("starting", step=step)
        finished = work()
        writer.status("stopped" if finished is False else "finished", exit_code=0)
        return 0
    except BaseException as problem:
        if is_interrupt(problem):
            writer.status("stopped", error="interrupted from the keyboard", exit_code=130)
            return 130
        message = one_sentence(problem)
        log.error("%s", traceback.format_exc())
        writer.event("error", message, where=where, traceback=traceback.format_exc())
        writer.status("crashed", error=message, exit_code=FAILED)
        print(f"error: {message}", file=sys.stderr)
        return FAILED
    finally:
        writer.close()


def one_sentence(problem: BaseException) -> str:
    """Return an error as one readable sentence. Our errors already are one; others get their class name in front."""
    text = " ".join(str(problem).split())
    if isinstance(problem, GrpoTuiError):
        return text
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


@contextlib.contextmanager
def told_in_one_sentence() -> Iterator[None]:
    """End the process with one sentence on standard error if the block fails."""
    try:
        yield
    except Exception as problem:  # user code, a model, a template or a hub may raise anything
        raise SystemExit(one_sentence(problem)) from None


SAFE_PATH = "for grpo-tui"


def safe_path() -> dict[str, str]:
    """Return the environment variable that keeps a process from importing packages from the working directory.

    A folder of logs or weights there may have the name of a library. `envs.user_code` still imports the modules that
    the user names.
    """
    return {"PYTHONSAFEPATH": os.environ.get("PYTHONSAFEPATH") or SAFE_PATH}


def set_up_logging() -> None:
    """Set up logging. Call it at process start, before importing any library that reads these variables."""
    if os.environ.get("PYTHONSAFEPATH") == SAFE_PATH:  # programs started by the user's code must not inherit it
        del os.environ["PYTHONSAFEPATH"]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    for noisy in ("httpx", "urllib3", "filelock", "datasets", "torch.distributed"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # transformers renamed this to activation checkpointing. TRL and PEFT still read the old names.
    warnings.filterwarnings("ignore", r"`(is_)?gradient_checkpointing\w*` is deprecated", FutureWarning)


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Import libraries in the block. Garbage collection would take a fifth of that time and find nothing, so it is off,
    and later collections skip all imported objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def alert_sender(run_dir: Path) -> AlertSender | None:
    """Return the sender of a run's alerts; None if the user configured none. Invalid settings only disable alerts."""
    from ...configs.location import personal_path

    if not os.path.isfile(personal_path()):
        return None
    from ...configs.errors import ConfigError
    from ...configs.personal import load_personal
    from ..runs.control.alerts import AlertDestination, AlertSender

    try:
        alerts = load_personal().alerts
    except ConfigError as error:
        log.warning("no alerts are sent: %s", error)
        return None
    if not alerts.command and not alerts.webhook:
        return None
    return AlertSender(
        run_dir, AlertDestination(tuple(alerts.command), alerts.webhook, tuple(alerts.severities), alerts.every_seconds)
    )
