"""Tests in several processes (`--workers 4`): every module is imported and collected once, and each worker is a fork.

A worker runs one file after the other, so that fixtures of a module are made once. Tests with the marker
`together(name)` of several files count as one file. Reports go to the parent, which prints them.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import tempfile
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from .repeated import lighten_libraries

FIRST = ("e2e", "docs", "engine/evaluation", "engine/training", "engine/online", "cli", "engine/agents", "packaging")
"""Folders of the longest files. They run first, so that the workers end at about the same time."""
WAITING = "tui"
"""A folder whose tests wait for most of their time. Every second worker begins there, while the others compute."""
MEMORY, PREFIX = Path("/dev/shm"), "grpo-tui-tests-"
Group = list[pytest.Item]

_in_memory: Path | None = None
"""Where the temporary folders of this session are, unless they are where the system has them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="run the tests in this many forks of one process")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Temporary folders are in memory where there is much: runs flush many small files, which costs time on a disk."""
    global _in_memory
    if config.getoption("--workers") and "TMPDIR" not in os.environ and _room():
        for left in MEMORY.glob(f"{PREFIX}*"):  # of a session that was killed or had failures
            if not psutil.pid_exists(int(left.name.removeprefix(PREFIX))):
                shutil.rmtree(left, ignore_errors=True)
        _in_memory = MEMORY / f"{PREFIX}{os.getpid()}"
        _in_memory.mkdir(exist_ok=True)
        _in_memory.chmod(0o711)  # some tests let another user in
        os.environ["TMPDIR"], tempfile.tempdir = str(_in_memory), None


def _room() -> bool:
    """Whether the folders, the workers and the type checker beside them take but a part of the free memory."""
    try:
        free = shutil.disk_usage(MEMORY).free
    except OSError:
        return False
    return free > 4 << 30 and psutil.virtual_memory().available > 14 << 30


def pytest_sessionstart(session: pytest.Session) -> None:
    """Imports and the collection of tests leave little garbage."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave modules and tests out of later garbage collections, which trainings ask for often."""
    lighten_libraries()
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The names of failed tests are the last lines, below comparisons of any length."""
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    failed = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())] if reporter else []
    if _in_memory is not None and failed:
        reporter.write_line(f"temporary folders, until the next run: {_in_memory}")
    elif _in_memory is not None:
        shutil.rmtree(_in_memory, ignore_errors=True)
    for report in failed:
        reporter.write_line(f"failed: {report.nodeid[:300]}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("--workers")
    if not count or session.config.option.collectonly or session.testsfailed:
        return None
    _Parent(session, groups(session.items)).run(count)
    return True


def groups(items: Sequence[pytest.Item]) -> list[Group]:
    """The tests that run in one process, in the order in which processes take them."""
    found: dict[str, Group] = {}
    for item in items:
        mark = item.get_closest_marker("together")
        found.setdefault(mark.args[0] if mark else item.nodeid.partition("::")[0], []).append(item)

    def place(group: Group) -> tuple[int, int]:
        name = group[0].nodeid
        if name.startswith(f"tests/{WAITING}/"):
            return len(FIRST) + 1, len(group)  # taken from the end
        folder = next((i for i, start in enumerate(FIRST) if name.startswith(f"tests/{start}/")), len(FIRST))
        return folder, -len(group)

    return sorted(found.values(), key=place)


class _Parent:
    """Hands out the groups and prints the reports."""

    def __init__(self, session: pytest.Session, groups: list[Group]) -> None:
        self.session, self.groups, self.config = session, groups, session.config
        self.left = deque(range(len(groups)))
        self.workers: dict[Connection, int] = {}
        self.from_the_end: set[Connection] = set()
        """Workers that take the groups from the end of the list."""
        self.running: dict[Connection, tuple[str, tuple[str, int | None, str]]] = {}

    def run(self, count: int) -> None:
        # Plugins know by these variables of pytest-xdist that their process does not see every test.
        os.environ |= {"PYTEST_XDIST_TESTRUNUID": str(os.getpid()), "PYTEST_XDIST_WORKER_COUNT": str(count)}
        base = self.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for number in range(min(count, len(self.groups))):
            ours, theirs = Pipe()
            pid = os.fork()
            if pid == 0:
                for other in (ours, *self.workers):
                    other.close()
                os.environ["PYTEST_XDIST_WORKER"] = f"gw{number}"
                _Worker(self.session, self.groups, theirs, base / f"worker-{number}").live()
            theirs.close()
            self.workers[ours] = pid
            if number % 2:
                self.from_the_end.add(ours)
        try:
            while self.workers:
                for connection in wait(list(self.workers), timeout=1.0):
                    assert isinstance(connection, Connection)
                    with suppress(EOFError):
                        self._answer(connection)
                for connection, pid in list(self.workers.items()):
                    if (ended := os.waitpid(pid, os.WNOHANG))[0]:
                        self._ended(connection, os.waitstatus_to_exitcode(ended[1]))
                if self.session.shouldfail:
                    raise self.session.Failed(self.session.shouldfail)
                if self.session.shouldstop:
                    raise self.session.Interrupted(self.session.shouldstop)
        finally:
            for pid in self.workers.values():
                os.kill(pid, signal.SIGINT)
                os.waitpid(pid, 0)

    def _answer(self, connection: Connection) -> None:
        kind, value = connection.recv()
        if kind == "next":
            take = self.left.pop if connection in self.from_the_end else self.left.popleft
            connection.send(take() if self.left else None)
        elif kind == "start":
            self.running[connection] = value
            self.config.hook.pytest_runtest_logstart(nodeid=value[0], location=value[1])
        else:
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=value)
            self.config.hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                self.running.pop(connection, None)

    def _ended(self, connection: Connection, code: int) -> None:
        """A worker that ended before its time fails the test that it ran."""
        with suppress(EOFError, OSError):
            while connection.poll():
                self._answer(connection)
        del self.workers[connection]
        within = connection in self.running  # a test that ends its process with 0 is no end of a worker, either
        nodeid, location = self.running.pop(connection, ("a worker", ("", None, "")))
        if code != 0 or within:
            report = pytest.TestReport(nodeid, location, {}, "failed", f"the worker ended with {code}", "call")
            self.config.hook.pytest_runtest_logreport(report=report)


class _Writer:
    """The part of the terminal's reporter that comparisons of assertions ask for colours."""

    def __init__(self, writer: object) -> None:
        self._tw = writer


class _Worker:
    """A fork that runs groups until none is left."""

    def __init__(self, session: pytest.Session, groups: list[Group], parent: Connection, base: Path) -> None:
        self.session, self.groups, self.parent, self.base = session, groups, parent, base

    def live(self) -> None:
        """Run, then end the process."""
        code = 1
        try:
            with self._own_process():
                while (index := self._ask()) is not None:
                    self._run(self.groups[index])
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    @contextmanager
    def _own_process(self) -> Iterator[None]:
        """Temporary folders, random numbers and captured output of its own; reports go to the parent."""
        config = self.session.config
        self.base.mkdir(mode=0o700)
        config._tmp_path_factory._basetemp = self.base  # type: ignore[attr-defined]
        random.seed()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts with `&`
        reporter: Any = config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(_Writer(reporter._tw), "terminalreporter")
        config.pluginmanager.register(self)
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        for stream in (capture._global_capturing.out, capture._global_capturing.err):
            if hasattr(stream, "targetfd"):  # the file stays the same object: modules may have kept `sys.stderr`
                with tempfile.TemporaryFile() as own:
                    os.dup2(own.fileno(), stream.tmpfile.fileno())
        try:
            yield
        finally:
            self.session._setupstate.teardown_exact(None)

    def _ask(self) -> int | None:
        self.parent.send(("next", None))
        return self.parent.recv()

    def _run(self, group: Group) -> None:
        """Run a group. After its last test, only the fixtures of the session stay."""
        for item, after in zip(group, [*group[1:], self.session], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.parent.send(("start", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self.session.config
        self.parent.send(("report", config.hook.pytest_report_to_serializable(config=config, report=report)))
