"""Trainings whose weights are divided among processes (FSDP2, gloo on CPU) are the trainings of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from grpo_tui.engine.runs.health.checkpoints import newest_whole
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from tests.forked import forked_processes

from .runs import make_run, recorded_steps

FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2}
num_machines: 1
mixed_precision: 'no'
"""
FULL: dict[str, Any] = {"lora": None}


def by_several(folder: Path, processes: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Train in several processes which divide the weights."""
    config = folder.parent / "fsdp.yaml"
    config.write_text(FSDP)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    command += ["--num_processes", str(processes), "--main_process_port", "0"]
    command += ["-m", "grpo_tui.engine.training", str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with forked_processes():
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def configured(folder: Path, base: Path, steps: int, **model: Any) -> Path:
    make_run(folder, base, max_steps=steps, prompts_per_step=4, save_every=2, eval_tasks=0)
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["model"] |= model
    path.write_text(yaml.safe_dump(config))
    return folder


def losses(folder: Path) -> list[float]:
    with RunReader(folder) as reader:
        return [value for _, value in reader.metrics.points("train/loss")]


def _optimizer(checkpoint: Path) -> list[dict[str, torch.Tensor]]:
    """The parts of an optimiser's state, by process."""
    return [load_file(file) for file in sorted((checkpoint / "optimizer").iterdir())]


@pytest.mark.parametrize("model", [{}, FULL], ids=["LoRA", "full"])
def test_two_processes_that_divide_the_weights_train_as_one(tmp_path: Path, model: dict[str, Any]) -> None:
    one = configured(tmp_path / "one", tmp_path / "base", 5, **model)
    assert run(one) == 0
    two = configured(tmp_path / "two", tmp_path / "base", 5, **model)
    done = by_several(two, 2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(two) == pytest.approx(losses(one), abs=1e-4) and len(losses(one)) == 5
    shards = _optimizer(two / "checkpoints" / "checkpoint-5")
    whole = load_file(one / "checkpoints" / "checkpoint-5" / "optimizer.safetensors")
    assert len(shards) == 2 and all(shards)
    for key, tensor in whole.items():
        parts = [shard[key] for shard in shards if key in shard]
        found = torch.cat(parts) if tensor.ndim else parts[0]
        assert found.numpy() == pytest.approx(tensor.numpy(), abs=1e-4), key
    name = "model.safetensors" if model else "adapter_model.safetensors"
    ours, expected = (load_file(folder / "adapters" / name) for folder in (two, one))
    assert ours.keys() == expected.keys()
    for key, tensor in expected.items():
        assert ours[key].numpy() == pytest.approx(tensor.numpy(), abs=1e-4), key


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run(configured(folder / "one", folder / "base", 6)) == 0
    return folder / "one"


@pytest.mark.stress
@pytest.mark.parametrize(("before", "after"), [(2, 4), (2, 1), (1, 2)])
def test_a_training_killed_while_it_saves_continues_with_another_number_of_processes(
    tmp_path: Path, undisturbed: Path, before: int, after: int
) -> None:
    other = configured(tmp_path / "other", tmp_path / "base", 6)

    def kill() -> None:
        """Kill the main process while it writes the checkpoint of step 4."""
        while not (other / "checkpoints" / ".tmp-checkpoint-4").exists():
            time.sleep(0.0005)
        os.kill(json.loads((other / "processes" / "training.json").read_text())["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert by_several(other, before).returncode != 0
    killer.join()
    kept, damaged = newest_whole(other / "checkpoints")
    assert kept is not None and kept[0] in (2, 4) and damaged == []
    done = by_several(other, after, "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(other) == pytest.approx(losses(undisturbed), abs=1e-4)
    assert recorded_steps(other) == [1, 2, 3, 4, 5, 6]
