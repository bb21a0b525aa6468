"""The commands behind the documented numbers run, in small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.forked import ROOT, ForkedProcess


def run(*arguments: object) -> str:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = ForkedProcess([sys.executable, *map(str, arguments)], cwd=ROOT, **pipes)
    printed, trouble = process.communicate(timeout=120)
    assert process.wait() == 0, trouble
    return printed


def test_a_synthetic_run_is_built_by_the_writer_and_read(tmp_path: Path):
    built = run("benchmarks/synthetic_run.py", "--trajectories", 300, "--out", tmp_path)
    assert "bytes a trajectory" in built
    read = run("benchmarks/synthetic_run.py", "--read", tmp_path / "synthetic-300")
    assert "300 trajectories" in read and "next trajectory, whole" in read and "memory for all this" in read


def test_long_curves(tmp_path: Path):
    run("benchmarks/synthetic_run.py", "--metrics", 5, "--steps", 200, "--out", tmp_path)
    assert "a curve of 200 points" in run("benchmarks/synthetic_run.py", "--read", tmp_path / "synthetic-metrics-5x200")


def test_what_recording_costs_is_printed():
    printed = run("-m", "benchmarks.record", "--steps", 2)
    assert "in the training thread" in printed and "%" in printed
