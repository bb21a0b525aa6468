"""How a run's process ends: whatever happens in it, the record and the terminal hear of it in one sentence."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...configs.errors import GrpoTuiError

if TYPE_CHECKING:
    from ..runs.write.writer import NullWriter, RunWriter

FAILED = 1
log = logging.getLogger(__name__)


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
    except KeyboardInterrupt:
        writer.status("stopped", error="interrupted from the keyboard", exit_code=130)
        return 130
    except BaseException as problem:
        message = one_sentence(problem)
        log.error("%s", traceback.format_exc())
        writer.event("error", message, where=where, traceback=traceback.format_exc())
        writer.status("crashed", error=message, exit_code=FAILED)
        print(f"error: {message}", file=sys.stderr)
        return FAILED
    finally:
        writer.close()


def one_sentence(problem: BaseException) -> str:
    """Return an error for people. Our own errors are sentences already. Others get the name of their class."""
    text = " ".join(str(problem).split())
    if isinstance(problem, GrpoTuiError):
        return text
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
