"""One process and two (gloo on CPU) make the same training of the same rollouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import forked_processes

from .distributed_worker import CASES, sampled, trajectory

WORKER = Path(__file__).with_name("distributed_worker.py")


@pytest.fixture(scope="module")
def two_processes() -> dict[str, dict]:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with forked_processes():
        done = subprocess.run([*command, str(WORKER)], capture_output=True, text=True, timeout=300, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


@pytest.mark.parametrize("case", CASES)
def test_two_processes_follow_the_trajectory_of_one(two_processes, case):
    ours, expected = two_processes[case], trajectory(world=1, **dict(CASES[case]))
    assert (ours["processes"], expected["processes"]) == (2, 1)
    for name in ("loss", "kl", "grad_norm", "reward"):
        assert ours[name] == pytest.approx(expected[name], abs=1e-4), name
    assert ours["shares"] == pytest.approx(expected["shares"])


def test_both_placements_give_the_same_result(two_processes):
    assert two_processes["main"]["loss"] == pytest.approx(two_processes["sharded"]["loss"], abs=1e-6)


@pytest.mark.parametrize("placement", ["main", "sharded"])
def test_rollouts_do_not_depend_on_who_samples_them(two_processes, placement):
    ours, expected = two_processes[f"sampled {placement}"], sampled(placement, world=1)
    assert len({tuple(tokens) for tokens in expected["tokens"][0]}) > 4  # rollouts of a prompt differ
    assert ours["tokens"] == expected["tokens"]
    assert ours["find_unused"] is False


def test_a_process_with_another_folder_of_the_run_is_refused(two_processes):
    same, own, *left = two_processes["other folders"]
    assert same == "" and not left
    assert own.startswith("process 1 on ") and "every machine must see the folder of runs" in own
