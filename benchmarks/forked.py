"""Processes of a run as copies of this one, which has imported everything: the same programs without their loading.

`command` runs the real command line in a fork of this process. What it starts by `python -m grpo_tui…` is a fork again,
which runs that module as its main program; anything else, and what those start in turn, is started as ever.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

_popen = subprocess.Popen
LOADED = (
    "grpo_tui.engine.online.serve.assembly",
    "grpo_tui.engine.online.learn.working",
    "grpo_tui.engine.training.rft",
)


def load() -> None:
    """Import what the processes of a run import. To be called once, before any thread."""
    import importlib

    for name in LOADED:
        importlib.import_module(name)


class Forked:
    """As much of `subprocess.Popen` as the launcher uses."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[bytes] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        start_new_session: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        module, arguments = command[2], list(command[3:])
        self.returncode: int | None = None

        def life() -> int:
            if start_new_session:
                os.setsid()
            for given, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
                if given is not None:
                    source = os.open(os.devnull, os.O_RDWR) if given == subprocess.DEVNULL else _number(given)
                    os.dup2(source, number)
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            subprocess.Popen = _popen  # type: ignore[misc]
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return 0

        self.pid = fork(life)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def _number(file: int | IO[bytes]) -> int:
    return file if isinstance(file, int) else file.fileno()


def fork(life: Callable[[], int]) -> int:
    """The pid of a copy of this process that runs `life` and exits with its result."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = life()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(arguments: Sequence[str], cwd: Path, log: Path, user: int | None = None) -> Forked:
    """`grpo-tui` with these arguments in a folder, its outputs appended to `log`; `user`: as which other user."""

    def life() -> int:
        os.setsid()
        os.chdir(cwd)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(source, number)
        if user is not None:
            os.setuid(user)
        subprocess.Popen = partial(_started, _begun(log))  # type: ignore[misc, assignment]
        from grpo_tui.tui.cli.main import run

        return run(list(arguments))

    started = Forked.__new__(Forked)
    started.returncode = None
    started.pid = fork(life)
    return started


def end_all(log: Path) -> None:
    """Kill what the command with this log has started and what still lives of it."""
    for pid in _begun(log).read_text().split() if _begun(log).exists() else ():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
    _begun(log).unlink(missing_ok=True)


def _begun(log: Path) -> Path:
    """Pids of forks of a command, beside its log."""
    return log.with_suffix(".pids")


def _started(begun: Path, command: Any, **options: Any) -> Any:
    if isinstance(command, str) or list(command[1:2]) != ["-m"] or not str(command[2]).startswith("grpo_tui."):
        return _popen(command, **options)
    started = Forked(command, **options)
    with begun.open("a") as file:
        file.write(f"{started.pid}\n")
    return started
