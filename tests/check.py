"""Check a change in a minute: style, types, and the tests nearest to the files that differ from a commit.

    python -m tests.check [--since main] [--seconds 36]

Tests that name a changed module run first, then those of the touched rooms. Tests end at the time limit, with a note.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SMOKE = "tests/packaging/test_other_systems.py::test_a_recorded_run_is_listed_filtered_checked_and_exported"
"""Records a run, lists, filters, checks and exports it."""
TESTS = {
    "tui/app": "tests/tui",
    "tui/cli": "tests/cli",
    "tui": "tests/tui",
    "docs": "tests/docs",
    "examples": "tests/docs",
}
"""Tests of a folder where its own name does not lead to them."""


class Deadline:
    """A plugin of pytest that ends the tests after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.session: Any = None

    def pytest_sessionstart(self, session: Any) -> None:
        self.session = session

    def pytest_runtest_logreport(self, report: Any) -> None:
        if time.monotonic() > self.end:
            self.session.shouldstop = "the time is over; `make test` runs the rest"


def changed(since: str) -> list[str]:
    """Return the files that differ from where this branch left `since`, new ones included."""
    base = _git("merge-base", since, "HEAD")[0]
    names = [*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")]
    return sorted({name for name in names if (ROOT / name).is_file()})


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def nearest(files: list[str]) -> Iterator[str]:
    """Yield test files, the nearest first: changed ones, those that name a changed module, those of its room."""
    yield from (name for name in files if re.fullmatch(r"test_\w+\.py", Path(name).name))
    modules = [re.sub(r"\.py$|/__init__\.py$", "", name).replace("/", ".") for name in files if name.endswith(".py")]
    named = "|".join(re.escape(f"grpo_tui.{m.removeprefix('api.')}") for m in modules if not m.startswith("tests."))
    for test in sorted(ROOT.glob("tests/**/test_*.py")) if named else ():
        if re.search(rf"\b({named})\b", test.read_text()):
            yield str(test.relative_to(ROOT))
    for folder in dict.fromkeys(str(parent) for name in files for parent in list(Path(name).parents)[:-1]):
        tests = TESTS.get(folder, f"tests/{folder}")
        yield from (str(path.relative_to(ROOT)) for path in sorted((ROOT / tests).glob("test_*.py")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="main")
    parser.add_argument("--seconds", type=float, default=36.0)
    given = parser.parse_args()
    files = changed(given.since)
    code = [name for name in files if name.endswith(".py")]
    started = [
        subprocess.Popen([sys.executable, "-m", *command, *code], cwd=ROOT)
        for command in (["ruff", "check"], ["ruff", "format", "--check"], ["pyright"])
        if code
    ]
    import pytest

    chosen = dict.fromkeys(["tests/packaging/test_rooms.py", SMOKE, *nearest(files)])
    deadline = Deadline(given.seconds)
    tests = pytest.main(
        ["-p", "tests.workers", "--workers", "2", "-m", "not slow and not stress", *chosen], plugins=[deadline]
    )
    timed_out = tests == pytest.ExitCode.INTERRUPTED and time.monotonic() > deadline.end
    failed = deadline.session is None or deadline.session.testsfailed
    good = (tests == pytest.ExitCode.OK or (timed_out and not failed)) and not any([p.wait() for p in started])
    print(f"make check: {'good' if good else 'not good'} ({len(files)} files, {len(chosen)} test files)")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
