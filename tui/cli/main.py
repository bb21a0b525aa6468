"""`grpo-tui`: the command line. Each command has its own file and imports heavy modules when it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from .common import ExitCode, fail, on_terminal, warn
from .output import ended_by

_UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])
"""Typer 0.26 took this class over from click and does not export it."""

HELP = """Run and inspect GRPO training of tool-using agents.

Without a command, it opens the list of runs in the terminal app.

Exit codes: 0 done · 1 the run or the command failed · 2 wrong options or configuration · 3 no such run or
trajectory · 130 interrupted by Ctrl-C, 143 by SIGTERM (the run saves first).
"""

COMMANDS = {
    "train": "train", "init": "init", "inspect": "inspect", "play": "play", "live": "runs", "check": "check",
    "eval": "evaluate:evaluate", "bisect": "bisect", "branch": "branch", "rescore": "rescore", "note": "note",
    "runs": "runs", "stop": "runs", "online": "online", "export": "export", "web": "web", "mcp": "mcp",
    "merge": "publish", "push": "publish", "repair": "runs", "doctor": "doctor",
    "data": "config:data_app", "rollouts": "rollouts:app", "config": "config:app",
}  # fmt: skip
"""The module of each command, and its function or group there where the name differs."""


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"grpo-tui {version('grpo-tui')}")
        raise typer.Exit


def start(
    context: typer.Context,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Folder of the runs. Default: $GRPO_TUI_HOME/runs, else ./runs.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Open the list of runs when no command was given."""
    if context.invoked_subcommand is not None:
        if runs_dir is not None:
            context.default_map = {context.invoked_subcommand: {"home": str(runs_dir)}}
        return
    if not on_terminal():
        fail("the app needs a terminal; for plain output use `grpo-tui runs`, or see `grpo-tui --help`", ExitCode.USAGE)
    from ...engine.runs.paths import runs_dir as resolve
    from ..app.app import run_app

    run_app(resolve(runs_dir))


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the program with the commands of these names. Each costs the import of a module and of its options."""
    app = typer.Typer(
        help=HELP,
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
    )
    app.callback()(start)
    for name in names:
        module, _, member = COMMANDS[name].partition(":")
        command = getattr(import_module(f".{module}", __package__), member or name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Every way out prints at most a few lines on standard error."""
    named = [word for word in arguments[:1] if word in COMMANDS]
    try:
        command = typer.main.get_command(command_line(named or COMMANDS))
        result = command.main(args=list(arguments), prog_name="grpo-tui", standalone_mode=False)
        sys.stdout.flush()
        return int(result) if isinstance(result, int) else ExitCode.OK
    except _UsageError as wrong:
        error: Any = wrong
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "grpo-tui"
        message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
        warn(f"{message}; see `{path} --help`")
        return ExitCode.USAGE
    except typer.Abort:
        return ended_by(KeyboardInterrupt())
    except BaseException as error:
        return ended_by(error)
