"""Shared parts of the commands: exit codes, one-line errors, options, and questions to other processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...engine.runs.paths import runs_dir
from .output import CliError as CliError
from .output import ExitCode as ExitCode
from .output import fail as fail
from .output import json_line as json_line
from .output import on_terminal as on_terminal
from .output import say as say
from .output import warn as warn

if TYPE_CHECKING:
    from ...configs.schema import RunConfig


HOST = "127.0.0.1"
"""The only address that servers of this program bind to, unless an option names another."""
Home = Annotated[
    Path,
    typer.Option(
        "--runs-dir",
        default_factory=runs_dir,
        callback=lambda value: runs_dir(value),
        help="Folder of the runs. Default: $GRPO_TUI_HOME/runs, else ./runs.",
        show_default=False,
    ),
]


def known_runs(incomplete: str) -> list[str]:
    """Return ids of runs for the shell's completion."""
    from ...engine.launch.find import list_runs

    ids = (*(run.id for run in list_runs(runs_dir())), "latest")
    return [id_ for id_ in ids if id_.startswith(incomplete)]


RunReference = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's id, a unique prefix of it, or `latest`.", autocompletion=known_runs),
]
RunOrDump = Annotated[
    str,
    typer.Argument(metavar="RUN_OR_DUMP", help="A run, or a file or folder of rollouts.", autocompletion=known_runs),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Maps = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="ROLE=KEY", help="Map a role to a key of the file, e.g. reward=score, group=uid."),
]
Importers = Annotated[
    list[str] | None, typer.Option("--importer", metavar="FILE.py", help="Your own importer (docs/importing.md).")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one value of the configuration, e.g. training.max_steps=50."
    ),
]


def free_port(option: str, port: int) -> int:
    """Return a port of 127.0.0.1 that can be used: `port`, or any for 0. Else the command ends."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as problem:
            fail(f"{option}: port {port} cannot be used: {problem.strerror}", ExitCode.USAGE)
        return probe.getsockname()[1]


def ask(module: str, config: RunConfig, *arguments: str, code: ExitCode = ExitCode.FAILED) -> str:
    """Return the output of `python -m module CONFIG ARGUMENTS`, with this configuration. A failure ends with `code`."""
    from ...configs.writing import to_yaml
    from ...engine.launch.trainer import INSTALL, missing

    if lacking := missing():
        fail(f"this needs the trainer ({', '.join(lacking)} not installed): {INSTALL}", ExitCode.USAGE)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(to_yaml(config))
        file.flush()
        return run_module(module, file.name, *arguments, code=code)


def run_module(module: str, *arguments: str, code: ExitCode = ExitCode.FAILED) -> str:
    """Return the output of `python -m module ARGUMENTS`. If it fails, its last line ends the command with `code`."""
    command = [sys.executable, "-P", "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        fail((done.stderr.strip().splitlines() or ["the process failed without a message"])[-1], code)
    return done.stdout
