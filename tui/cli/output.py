"""Output and ends of commands, and a person's own importers. Loads nothing that a list of runs does not need."""

from __future__ import annotations

import json
import math
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


class CliError(GrpoTuiError):
    """Ends the command with one line (or one line a problem) on standard error."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        self.exit_code = code
        super().__init__(message)


def write_any_character() -> None:
    """Let output in an encoding without a character, such as ✓ in ASCII, show `?` there."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):  # a stream that was not opened by Python itself
                stream.reconfigure(errors="replace")


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


def json_line(value: Any) -> str:
    """Return one line of strict JSON in ASCII. Control and direction characters are escaped. NaN and infinity are the
    texts `NaN`, `Infinity` and `-Infinity`, so that null means "not recorded"."""
    return json.dumps(_strict(value), ensure_ascii=True, allow_nan=False, separators=(", ", ": "))


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_strict(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _strict(getattr(value, name)) for name in value.__dataclass_fields__}
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return str(value)


def own_importers() -> Sequence[str]:
    """Return the importers of the personal settings. Nothing is loaded if there are none."""
    if not personal_path().is_file():
        return ()
    from ...configs.personal import load_personal

    return load_personal().importers
