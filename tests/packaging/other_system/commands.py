"""Runs programs one after the other, each in a fork of this process: what they all import is imported once.

Reads lines of JSON, `[CODE, [ARGUMENT, …], [FILE of its output, FILE of its errors]]`. Answers each with the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback


def serve() -> None:
    for name in ("engine.imports.check", "engine.imports.index", "tui.entry"):
        importlib.import_module(f"grpo_tui.{name}")
    importlib.import_module("grpo_tui.tui.cli.main").command_line()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(_run(*json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(code: str, arguments: list[str], files: list[str]) -> int:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["-c", *arguments]
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as end:
        assert end.code is None or isinstance(end.code, int)
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
