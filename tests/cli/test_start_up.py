"""`grpo-tui` answers at once: no torch, and little beyond Typer itself."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

BUDGET = 3.5
"""Processor time of an answer, in times of a bare `import typer`: about 0.25 s beyond it where that takes 0.1 s."""
REPEATS = 5


def process_time(cwd: Path, *command: str) -> float:
    """User plus system time of a process and its children, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_an_answer_costs_little_beyond_importing_typer(tmp_path: Path):
    """By turns, the least of each: what else runs on the machine slows all alike."""
    commands = {
        "import typer": ("-c", "import typer"),
        **{words: ("-m", "grpo_tui.tui.cli", *words.split()) for words in ("--help", "runs", "train --help")},
    }
    taken: dict[str, list[float]] = {words: [] for words in commands}
    for _ in range(REPEATS):
        for words, command in commands.items():
            taken[words].append(process_time(tmp_path, *command))
    bare = min(taken.pop("import typer"))
    assert {words: min(times) for words, times in taken.items() if min(times) >= BUDGET * bare} == {}, bare


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
