"""The command line as its users have it: a process of its own (forked: `tests.forked`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked import forked_processes

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `grpo-tui` with these arguments in an empty folder, without a terminal."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {k: v for k, v in os.environ.items() if k != "GRPO_TUI_HOME"} | environment
        command = [sys.executable, "-m", "grpo_tui.tui.cli", *arguments]
        with forked_processes():
            return subprocess.run(
                command,
                cwd=tmp_path,
                env=variables,
                capture_output=True,
                text=True,
                timeout=120,
                stdin=subprocess.DEVNULL,
            )

    return run
