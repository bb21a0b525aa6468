"""The console script. It opens the app and lists runs without Typer, whose import is slow.

All other commands and all invalid arguments go to the command line (`cli/main.py`).
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from .cli.output import ended_by, on_terminal, prepare_streams


def main() -> None:
    """Open the app for `grpo-tui` and `grpo-tui inspect RUN` on a terminal. Run other commands by `cli.main`."""
    prepare_streams()
    try:
        if _done(sys.argv[1:]):
            return
    except BaseException as error:
        sys.exit(ended_by(error))
    from .cli.main import run

    sys.exit(run(sys.argv[1:]))


def _done(arguments: list[str]) -> bool:
    """Open the app or list the runs. Returns False for arguments that the command line handles."""
    plain = not arguments or (len(arguments) == 2 and arguments[0] == "inspect" and not arguments[1].startswith("-"))
    plain = plain and not any("://" in argument for argument in arguments)  # the command line explains its errors
    if plain and on_terminal():
        gc.disable()  # imports leave nothing to collect; the app enables it again
        if _opened(arguments):
            return True
        gc.enable()
    return arguments[:1] == ["runs"] and _listed(arguments[1:])


def _listed(options: list[str]) -> bool:
    """Print the runs. Returns False for other arguments, which the command line handles."""
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

    print_runs(None if folder is None else Path(folder), as_json=as_json)
    sys.stdout.flush()
    return True


def _opened(arguments: list[str]) -> bool:
    """Open the app. Returns False if there is no such run; the command line then reports the error."""
    from ..engine.runs.paths import runs_dir

    home = runs_dir()
    if not arguments:
        from .app.app import run_app

        run_app(home)
        return True
    if os.path.exists(arguments[1]):
        from ..engine.imports.background import is_path_of_dump

        if is_path_of_dump(arguments[1], home):
            from .cli.app import open_dumped

            open_dumped(home, arguments[1])
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
