"""What the console script starts. The two ways into the app skip Typer, whose import would cost a third of the wait.

Everything else, and every error in what was typed, is the command line's (`cli.py`).
"""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """`grpo-tui` and `grpo-tui inspect RUN` on a terminal open the app; the rest is `cli.main`."""
    arguments = sys.argv[1:]
    plain = not arguments or (len(arguments) == 2 and arguments[0] == "inspect" and not arguments[1].startswith("-"))
    if plain and _on_terminal():
        gc.disable()  # nothing to collect while modules are imported; the app enables it
        if _opened(arguments):
            return
        gc.enable()
    from .cli.main import main as command_line

    command_line()


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
