"""One training over two machines, which are two launches on this one that meet over the loopback interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_tui.configs.loading import load_config
from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.training.checkpoints import checkpoint_folder, checkpoints

from .runs import make_run, recorded_rollouts, recorded_steps

# torchrun, also on CPUs: MULTI_CPU without MPI is one process.
MACHINE = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
num_machines: 2
num_processes: 2
machine_rank: {rank}
main_process_ip: 127.0.0.1
main_process_port: {port}
rdzv_backend: static
same_network: true
mixed_precision: 'no'
"""
SECONDS = 240.0


@pytest.mark.stress
def test_two_machines_train_one_run_and_go_on_with_it(tmp_path: Path) -> None:
    """As docs/scaling.md says: `grpo-tui train` on the first, `accelerate launch` on each of the others."""
    text = (make_run(tmp_path / "model", tmp_path / "base", max_steps=2, eval_every=2) / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text)
    config = load_config(tmp_path / "config.yaml")
    runs = tmp_path / "runs"
    for resume, steps in ((None, 2), ("shared", 3)):
        config.training.max_steps = steps
        files = _machines(tmp_path)
        run_id = "shared" if resume is None else None
        folder = Path(start_run(config, runs_dir=runs, run_id=run_id, resume=resume, accelerate_config=files[0]).path)
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(files[1])]
        command += ["-m", "grpo_tui.engine.training", str(folder), *(["--resume"] if resume else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        other = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert other.returncode == 0, other.stderr[-3000:]
        until = time.monotonic() + SECONDS
        while look(folder).status not in ("finished", "crashed") and time.monotonic() < until:
            time.sleep(0.1)
        assert look(folder).status == "finished", (folder / "logs" / "training.log").read_text()[-3000:]
        assert recorded_steps(folder) == list(range(1, steps + 1))
        assert set(recorded_rollouts(folder).values()) == {8}
        newest = checkpoints(checkpoint_folder(folder))[-1][1]
        assert sorted(file.name for file in newest.glob("rng_*.json")) == ["rng_0.json", "rng_1.json"]


def _machines(folder: Path) -> list[Path]:
    """The accelerate config of each machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    files = [folder / f"machine{rank}.yaml" for rank in (0, 1)]
    for rank, file in enumerate(files):
        file.write_text(MACHINE.format(rank=rank, port=port))
    return files
