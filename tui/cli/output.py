"""Output and ends of commands, and a person's own importers. Loads nothing that a list of runs does not need."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from io import TextIOWrapper
from typing import Any, NoReturn

from ...configs.errors import GrpoTuiError
from ...configs.location import personal_path


class ExitCode(IntEnum):
    """The exit codes, as printed by `grpo-tui --help`."""

    OK = 0
    FAILED = 1
    """The run crashed, or the command could not do its work."""
    USAGE = 2
    """Wrong options or a wrong configuration. Nothing was started."""
    NOT_FOUND = 3
    """No such run or trajectory."""
    INTERRUPTED = 130
    """Ctrl-C. The run was asked to save and stop."""


_OF_FILES = "EACCES", "EPERM", "EROFS", "EIO", "ENAMETOOLONG", "ELOOP", "ENOTDIR", "ESTALE"
"""Names of errors of a file that are the fault of its place, not of this program."""


class CliError(GrpoTuiError):
    """Ends the command with one line (or one line a problem) on standard error."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        self.exit_code = code
        super().__init__(message)


def prepare_streams() -> None:
    """Let output in an encoding without a character, such as ✓ in ASCII, show `?` there, and input that is not text
    `�`. Closed streams are empty."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in this order: each takes the lowest number
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            with suppress(OSError):  # a stream that was not opened by Python itself
                stream.reconfigure(errors="replace")


def on_terminal() -> bool:
    """Return whether a person sits at both ends, on a terminal that can show the app."""
    if "TEXTUAL_DRIVER" in os.environ:  # in a browser: see web.py
        return True
    capable = os.name == "nt" or os.environ.get("TERM", "") not in ("", "dumb")  # Windows sets no TERM
    return capable and sys.stdin.isatty() and sys.stdout.isatty()


def say(text: str = "") -> None:
    """Print one line on standard output, at once. Control characters in it become visible."""
    from ..text import literal

    print(literal(text), flush=True)


def warn(text: str) -> None:
    """Print the lines of a text on standard error. Control characters in them become visible."""
    from ..text import literal

    for line in text.splitlines():
        print(literal(line), file=sys.stderr, flush=True)


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the command with this message on standard error."""
    raise CliError(message, code)


def ended_by(error: BaseException) -> int:
    """Print in one line how a command ended early, and return its exit code."""
    if isinstance(error, GrpoTuiError):
        warn(str(error))
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        warn("interrupted")
        return ExitCode.INTERRUPTED
    if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):  # Typer leaves so, too
        if isinstance(error.code, str):
            warn(error.code)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, (BrokenPipeError, SystemExit)):  # `grpo-tui runs | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.OK
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" ({error.filename})" if error.filename else ""
        warn(f"the output cannot be written: {error.strerror}{where}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.FAILED
    name = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    if isinstance(error, OSError) and name in _OF_FILES and (error.filename or name == "EIO"):
        warn(f"{error.filename or 'a file'} cannot be used: {error.strerror}")
        return ExitCode.FAILED
    if str(error) == "Could not determine home directory.":  # as pathlib says
        warn("a path begins with ~ and an unknown user name: write the whole path, or ./~ for a file of that name")
        return ExitCode.USAGE
    import tempfile
    import traceback

    summary = " ".join(f"{type(error).__name__}: {error}"[:300].splitlines())
    try:
        with tempfile.NamedTemporaryFile("w", prefix="grpo-tui-", suffix=".log", delete=False) as file:
            traceback.print_exception(error, file=file)
        warn(f"{summary}; this is a bug in grpo-tui, details are in {file.name}")
    except OSError:
        warn(f"{summary}; this is a bug in grpo-tui")
    return ExitCode.FAILED


def whole_text(text: str) -> str:
    """Return a text in which `�` replaces a half of a UTF-16 pair, which no other program reads."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_line(value: object) -> str:
    """Return one line of strict JSON in ASCII. Control and direction characters are escaped. NaN and infinity are the
    texts `NaN`, `Infinity` and `-Infinity`, so that null means "not recorded"."""
    return json.dumps(_strict(value), ensure_ascii=True, allow_nan=False, separators=(", ", ": "))


def _strict(value: Any) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, Mapping):
        return {whole_text(str(k)): _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_strict(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _strict(getattr(value, name)) for name in value.__dataclass_fields__}
    if value is None or isinstance(value, (int, bool)):
        return value
    return whole_text(str(value))


def own_importers() -> Sequence[str]:
    """Return the importers of the personal settings. Nothing is loaded if there are none."""
    if not os.path.isfile(personal_path()):
        return ()
    from ...configs.personal import load_personal

    return load_personal().importers
