"""What the console script starts. The ways into the app and a plain list of runs skip Typer, which costs more.

Everything else, and every error in what was typed, is the command line's (`cli.py`).
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path


def main() -> None:
    """`grpo-tui` and `grpo-tui inspect RUN` on a terminal open the app; the rest is `cli.main`."""
    arguments = sys.argv[1:]
    plain = not arguments or (len(arguments) == 2 and arguments[0] == "inspect" and not arguments[1].startswith("-"))
    if plain and _on_terminal():
        gc.disable()  # nothing to collect while modules are imported; the app enables it
        if _opened(arguments):
            return
        gc.enable()
    if arguments[:1] == ["runs"] and _listed(arguments[1:]):
        return
    from .cli.main import main as command_line

    command_line()


def _listed(options: list[str]) -> bool:
    """Whether the runs were printed; not where something else was typed, which the command line explains."""
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
    except BrokenPipeError:  # `grpo-tui runs | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def _on_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _opened(arguments: list[str]) -> bool:
    """Whether the app was opened (and left again); not when there is no such run, which the command line explains."""
    from ..engine.runs.paths import runs_dir
    from .cli.app import open_list, open_run

    if not arguments:
        open_list(None)
        return True
    from ..engine.launch.find import find_run
    from ..engine.runs.errors import RecordError

    home = runs_dir()
    if os.path.exists(arguments[1]):
        from .cli.common import CliError, warn
        from .cli.dumps import is_path_of_dump, opened_dump

        if is_path_of_dump(arguments[1], home):
            from .cli.app import open_dumped

            try:
                info, dump = opened_dump(arguments[1], (), (), whole=False)
            except CliError as error:
                warn(error.message)
                raise SystemExit(error.code) from None
            open_dumped(home, info, dump)
            return True
    try:
        info = find_run(home, arguments[1])
    except RecordError:
        return False
    open_run(home, info)
    return True


if __name__ == "__main__":
    main()
