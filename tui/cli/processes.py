"""Questions that only code with torch or datasets can answer: asked of a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...configs import RunConfig


@dataclass(frozen=True)
class Answer:
    """The output of a process, or one sentence about its failure."""

    text: str
    problem: str = ""


def ask(module: str, config: RunConfig, *arguments: str) -> Answer:
    """Run `python -m module CONFIG ARGUMENTS` with this configuration as a file."""
    from ...configs import to_yaml

    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(to_yaml(config))
        file.flush()
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, file.name, *arguments], capture_output=True, text=True, check=False
        )
    if done.returncode == 0:
        return Answer(done.stdout)
    return Answer("", (done.stderr.strip().splitlines() or ["no reason was given"])[-1])
