"""`grpo-tui` answers at once: no torch, and little beyond Typer itself."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

BUDGET_S = 0.25
"""Process time that an answer may take beyond a bare `import typer`."""
REPEATS = 5


def process_time(cwd: Path, *command: str) -> float:
    """Least user plus system time, over some repeats, of a process and its children."""
    best = float("inf")
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


@pytest.mark.parametrize("arguments", [["--help"], ["runs"], ["train", "--help"]])
def test_an_answer_costs_little_beyond_importing_typer(arguments: list[str], tmp_path: Path):
    bare = process_time(tmp_path, "-c", "import typer")
    assert process_time(tmp_path, "-m", "grpo_tui.tui.cli", *arguments) - bare < BUDGET_S


@pytest.mark.parametrize("arguments", [["--help"], ["runs"], ["runs", "--json"], ["config", "check"]])
def test_an_answer_loads_neither_torch_nor_transformers(arguments: list[str], tmp_path: Path):
    code = (
        "import sys\nfrom grpo_tui.tui.cli.main import run\n"
        f"assert run({arguments!r}) == 0\n"
        "loaded = [m for m in ('torch', 'transformers', 'trl', 'numpy', 'textual') if m in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
