"""The console script. Opening the app and listing runs skip Typer, whose import is slow.

All other commands, and every error in the arguments, go to the command line (`cli/main.py`).
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from ..configs.errors import GrpoTuiError
from .cli.output import warn, write_any_character


def main() -> None:
    """Open the app for `grpo-tui` and `grpo-tui inspect RUN` on a terminal. Other arguments go to `cli.main`."""
    write_any_character()
    arguments = sys.argv[1:]
    plain = not arguments or (len(arguments) == 2 and arguments[0] == "inspect" and not arguments[1].startswith("-"))
    plain = plain and not any("://" in argument for argument in arguments)  # the command line explains its errors
    if plain and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        gc.disable()  # nothing to collect while modules are imported; the app enables it
        if _opened(arguments):
            return
        gc.enable()
    if arguments[:1] == ["runs"] and _listed(arguments[1:]):
        return
    from .cli.main import main as command_line

    command_line()


def _listed(options: list[str]) -> bool:
    """Print the runs. Returns False for other arguments, which the command line explains."""
    folder: str | None = None
    as_json = False
    while options:
        match options:
            case ["--json", *options]:
                as_json = True
            case ["--runs-dir", folder, *options] if folder and not folder.startswith("-"):
                pass
            case _:
                return False
    from .cli.run_table import print_runs

    try:
        print_runs(None if folder is None else Path(folder), as_json=as_json)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `grpo-tui runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError:
        return False
    return True


def _opened(arguments: list[str]) -> bool:
    """Open the app. Returns False if there is no such run, which the command line explains."""
    from ..engine.runs.paths import runs_dir

    home = runs_dir()
    if not arguments:
        from .app.app import run_app

        run_app(home)
        return True
    if os.path.exists(arguments[1]):
        from ..engine.imports.behind import is_path_of_dump

        if is_path_of_dump(arguments[1], home):
            from .cli.open_dump import open_dumped

            try:
                open_dumped(home, arguments[1])
            except GrpoTuiError as error:
                warn(str(error))
                raise SystemExit(error.exit_code) from None
            return True
    from ..engine.launch.find import find_run
    from ..engine.runs.errors import RecordError
    from .cli.app import open_run

    try:
        info = find_run(home, arguments[1])
    except RecordError:
        return False
    open_run(home, info)
    return True


if __name__ == "__main__":
    main()
