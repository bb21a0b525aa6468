"""Each case of the gallery trains by its one command, shortened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.forked import train

from .conftest import Cli

EXAMPLES = Path(__file__).parents[2] / "examples"
BY_THE_COMMAND = ("short_answers", "verifiers_package")


@pytest.mark.parametrize("name", sorted(p.parent.name for p in EXAMPLES.glob("*/config.yaml")))
def test_an_example_trains(cli: Cli, tmp_path: Path, name: str):
    """Some by the command itself; the process that it starts costs ten seconds, and is the same for all."""
    if name == "verifiers_package":
        pytest.importorskip("verifiers", reason="needs the extra verifiers", exc_type=ImportError)
    shutil.copytree(EXAMPLES / name, tmp_path, dirs_exist_ok=True)
    short = ["training.max_steps=2", "training.prompts_per_step=2", "training.num_generations=2"]
    short.append("environment.eval_tasks=2")
    if name in BY_THE_COMMAND:
        answer = cli("train", "config.yaml", "--headless", *(word for s in short for word in ("--set", s)))
        assert answer.returncode == 0, answer.stderr
        assert "finished at step 2" in answer.stdout
    else:
        train(tmp_path / "runs" / name, tmp_path / "config.yaml", short, cwd=tmp_path)
    assert (tmp_path / "adapters" / "adapter_model.safetensors").is_file()
