"""`grpo-tui` answers at once: no torch, and little beyond Typer itself."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

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
    """By turns, the least of each: what else runs on the machine slows all alike. What is within the budget of the
    least bare import so far is not measured again."""
    least = dict.fromkeys(("--help", "runs", "train --help"), float("inf"))
    bare = float("inf")
    for _ in range(REPEATS):
        bare = min(bare, process_time(tmp_path, "-c", "import typer"))
        for words, taken in least.items():
            if taken >= BUDGET * bare:
                least[words] = min(taken, process_time(tmp_path, "-m", "grpo_tui.tui.cli", *words.split()))
    assert {words: taken for words, taken in least.items() if taken >= BUDGET * bare} == {}, bare


def test_an_answer_loads_neither_torch_nor_transformers(tmp_path: Path):
    code = (
        "import sys\nfrom grpo_tui.tui.cli.main import run\n"
        "for arguments in (['--help'], ['runs'], ['runs', '--json'], ['config', 'check']):\n"
        "    assert run(arguments) == 0\n"
        "    loaded = [m for m in ('torch', 'transformers', 'trl', 'numpy', 'textual') if m in sys.modules]\n"
        "    if loaded: sys.exit(f'{arguments} loaded {loaded}')"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
