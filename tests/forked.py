"""Training processes that begin at once: Python's fork server imports everything once, and each is a fork of that."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from grpo_tui.configs.loading import load_config
from grpo_tui.configs.writing import to_yaml

PRELOADED = ["grpo_tui.engine.training.rft", "grpo_tui.engine.training.__main__", "tests.forked"]
VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class TrainingProcess:
    """A training process of a run, as the launcher starts it, with what tests use of `subprocess.Popen`."""

    def __init__(self, folder: Path, *, log: Path, resume: bool = False, cwd: Path | None = None) -> None:
        log.touch()
        self._process = _context().Process(target=_train, args=(folder, resume, log, cwd or Path.cwd()))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it lives; a signal is a negative number."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises TimeoutError."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError(f"process {self.pid} still lives after {timeout} s")
        return code

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still lives."""
        if self.poll() is None:
            os.kill(self.pid, number)


def train(folder: Path, config: Path | None, settings: Sequence[str], *, cwd: Path) -> str:
    """Train with the settings of a file (or the defaults), in a process of its own in `cwd`; gives what it printed."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(load_config(config, settings)))
    log = folder / "log.txt"
    code = TrainingProcess(folder, log=log, cwd=cwd).wait(300)
    assert code == 0, log.read_text()
    return log.read_text()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patched:  # the server keeps them for all its children, and nobody else does
        for name, value in VARIABLES.items():
            patched.setenv(name, value)
        forkserver.ensure_running()
    return context


def _train(folder: Path, resume: bool, log: Path, cwd: Path) -> None:
    os.setsid()
    os.chdir(cwd)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    from grpo_tui.engine.training.__main__ import run

    sys.exit(run(folder, resume=resume))
