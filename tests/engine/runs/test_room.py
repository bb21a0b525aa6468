"""What may be loaded here, and what must not."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "trl", "numpy", "peft", "datasets", "PIL", "pydantic")


@pytest.mark.parametrize(
    "module",
    [
        "grpo_tui.engine.runs.read.reader",
        "grpo_tui.engine.runs.write.writer",
        "grpo_tui.engine.runs.control.requests",
        "grpo_tui.engine.launch",
    ],
)
def test_importing_loads_nothing_heavy(module: str):
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
