"""Shared parts of the commands: exit codes, one-line errors, options, and output that no model text can control."""

from __future__ import annotations

import os
import sys
from enum import IntEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ...configs.errors import GrpoTuiError
from .output import json_line as json_line
from .output import say as say
from .output import write_any_character as write_any_character


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
        self.message, self.code = message, code
        super().__init__(message)


RunsDir = Annotated[
    Path | None,
    typer.Option("--runs-dir", help="Where runs live; else $GRPO_TUI_HOME/runs, else ./runs.", show_default=False),
]


def known_runs(incomplete: str) -> list[str]:
    """Return ids of runs for the shell's completion."""
    from ...engine.launch import list_runs
    from ...engine.runs.paths import runs_dir

    return [run.id for run in list_runs(runs_dir()) if run.id.startswith(incomplete)] + (
        ["latest"] if "latest".startswith(incomplete) else []
    )


RunReference = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's id, a unique beginning of it, or `latest`.", autocompletion=known_runs),
]
Maps = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="ROLE=KEY", help="The meaning of a key of a file, e.g. reward=score, group=uid."),
]
Importers = Annotated[
    list[str] | None, typer.Option("--importer", metavar="FILE.py", help="A format of your own (docs/importing.md).")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One value over the configuration, e.g. training.max_steps=50."),
]


def warn(text: str) -> None:
    """Print one line on standard error."""
    print(text, file=sys.stderr, flush=True)


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the command with this line on standard error."""
    raise CliError(message, code)


def on_terminal() -> bool:
    """Return whether a person sits at both ends, on a terminal that can show the app."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
