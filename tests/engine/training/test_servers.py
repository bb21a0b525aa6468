"""Training on rollouts of servers."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.agents.remote import pool as pool_module
from grpo_tui.engine.agents.sampling import AgentSettings
from grpo_tui.engine.launch.settings import read_config
from grpo_tui.engine.policy.models import load_base
from grpo_tui.engine.recompute.check import recompute
from grpo_tui.engine.runs.health.checkpoints import checkpoint_folder, newest_whole
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from tests.forked import forked_processes

from ..agents.fake_vllm import FakeVLLM, Lockstep
from .parts import tokenizer
from .runs import make_run, recorded_rollouts, recorded_steps

TURN, TRAJECTORY = 6, 256
TEMPERATURE = 0.9
"""Not that of evaluations, which a server in lock-step writes one by one."""


def configured(folder: Path, base: Path, urls: list[str] | None = None, **rollouts: Any) -> Path:
    """A run's folder; on servers, where there are any."""
    make_run(folder, base, max_steps=rollouts.pop("steps", 1), max_turn_tokens=TURN, save_every=0)
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["rewards"]["w_curiosity"] = 0.0
    config["training"] |= {"beta_mode": "fixed", "temperature": TEMPERATURE}
    config["environment"]["eval_tasks"] = 2
    config["environment"]["train_tasks"] = 10
    if urls is not None:
        config["rollouts"] = {"engine": "vllm", "servers": urls, "server_wait_s": 60, **rollouts}
    path.write_text(yaml.safe_dump(config))
    return folder


def weights(folder: Path) -> bytes:
    return (folder / "adapters" / "adapter_model.safetensors").read_bytes()


def server_of(folder: Path, base: Path, lockstep: bool = False) -> FakeVLLM:
    config = RunConfig.model_validate(yaml.safe_load((folder / "config.yaml").read_text()))
    how = (
        Lockstep(8, 4, AgentSettings(TEMPERATURE, max_turn_tokens=TURN, max_trajectory_tokens=TRAJECTORY))
        if lockstep
        else None
    )
    return FakeVLLM(copy.deepcopy(load_base(config.model)), tokenizer(), lockstep=how).start()


@pytest.fixture(autouse=True)
def _quick_probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pool_module, "PROBE_S", 0.1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("steps", [4, pytest.param(10, marks=pytest.mark.stress)])
def test_weights_after_steps_are_those_of_the_transformers_engine_bit_by_bit(tmp_path: Path, steps: int):
    here = configured(tmp_path / "here", tmp_path / "base", steps=steps)
    assert run(here) == 0
    server = server_of(here, tmp_path / "base", lockstep=True)
    there = configured(tmp_path / "there", tmp_path / "base", [server.url], correction="none", steps=steps)
    assert run(there) == 0
    server.stop()
    assert weights(here) == weights(there)
    with RunReader(there) as record:
        assert [v for _, v in record.metrics.points("rollout/staleness")] == [0.0] * steps
        assert max(v for _, v in record.metrics.points("rollout/logprob_mismatch_max")) < 1e-4
    names = {r["model"] for r in server.requests}
    assert len(names) == steps + 1, "a version for every step, and the last for the evaluation"


def test_rollouts_branch_on_servers_that_are_a_step_ahead(tmp_path: Path):
    folder = configured(tmp_path / "run", tmp_path / "base", [], steps=3, max_staleness=1)
    server = server_of(configured(tmp_path / "model", tmp_path / "base"), tmp_path / "base")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["rollouts"]["servers"] = [server.url]
    config["training"]["advantages"] = "tree"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(folder) == 0
    server.stop()
    with RunReader(folder) as record:
        assert recompute(record, read_config(folder)).wrong == []
        assert any("tree_parent" in row.extra for row in record.rollouts.page(limit=100))


def test_two_steps_ahead_nothing_is_staler_than_that(tmp_path: Path):
    made = configured(tmp_path / "made", tmp_path / "base")
    server = server_of(made, tmp_path / "base")
    ahead = configured(tmp_path / "ahead", tmp_path / "base", [server.url], max_staleness=2, steps=8)
    assert run(ahead) == 0
    assert not server.adapters and not list((ahead / "served").iterdir()), "nothing is left behind"
    server.stop()
    with RunReader(ahead) as record:
        staleness = [v for _, v in record.metrics.points("rollout/staleness")]
        assert staleness == [0, 1, 2, 2, 2, 0, 1, 2], "an epoch has five steps, and its first waits for its rollouts"
        assert all(v == 0 for _, v in record.metrics.points("rollout/dropped"))
        rows = [row for row in record.rollouts.page(limit=1000) if row.split == "train"]
        made_by = {(step, step - 1 - int(behind)) for step, behind in enumerate(staleness, 1)}
        assert {(row.step, row.policy_version) for row in rows} == made_by, "each rollout says which version made it"
        turns = record.bodies.trajectory(rows[0].id).trajectory.steps
        assert {turn.policy_version for turn in turns} == {rows[0].policy_version}


def test_a_group_may_be_trained_before_slower_ones_and_never_too_late(tmp_path: Path):
    made = configured(tmp_path / "made", tmp_path / "base")
    server = server_of(made, tmp_path / "base")
    server.on_cpu = False  # there, versions are proved while turns are written
    server.fail(*[*[""] * 20, "slow 3"] * 20)
    folder = configured(tmp_path / "ahead", tmp_path / "base", [server.url], max_staleness=3, steps_ahead=1, steps=6)
    assert run(folder) == 0
    server.stop()
    with RunReader(folder) as record:
        rows = [row for row in record.rollouts.page(limit=1000) if row.split == "train"]
        behind = {(row.step, row.group): row.step - 1 - (row.policy_version or 0) for row in rows if row.step}
        assert max(behind.values()) <= 3 and min(behind.values()) == 0
        assert any(len({v for (s, _), v in behind.items() if s == step}) > 1 for step in range(1, 7)), "versions mix"
        assert all(v == 0 for _, v in record.metrics.points("rollout/dropped"))
        assert recompute(record, read_config(folder)).wrong == []
    assert recorded_rollouts(folder) == dict.fromkeys(range(1, 7), 8)


def test_a_run_whose_servers_are_gone_saves_its_step_says_so_and_goes_on_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    made = configured(tmp_path / "made", tmp_path / "base")
    server = server_of(made, tmp_path / "base")
    folder = configured(tmp_path / "lost", tmp_path / "base", [server.url], steps=4, server_wait_s=0.3)
    server.faults.extend([""] * 40 + ["500"] * 1000)
    assert run(folder) == 1
    said = capfd.readouterr().err
    assert re.search(r"error: (no rollout server was available for 0\.3 s|a request failed \d+ times)", said)
    assert "Traceback" not in said.splitlines()[-1]
    reached = newest_whole(checkpoint_folder(folder))[0]
    assert reached is not None and 0 < reached[0] < 4
    server.faults.clear()
    assert run(folder, resume=True) == 0
    assert recorded_steps(folder) == [1, 2, 3, 4]
    server.stop()


# Evidence against servers of each kind is tested in tests/engine/rollouts/test_server_evidence.py.
@pytest.mark.parametrize("fault", [pytest.param("bias", marks=pytest.mark.stress), "keeps_first", "half"])
def test_a_bad_server_leaves_the_pool_is_named_and_teaches_nothing(tmp_path: Path, fault: str):
    made = configured(tmp_path / "made", tmp_path / "base")
    servers = [server_of(made, tmp_path / "base") for _ in range(2)]
    bad = servers[1]
    bad.bias, bad.keeps_first = -0.08 * (fault == "bias"), fault == "keeps_first"
    bad.fail(*["half"] * 10_000 * (fault == "half"))
    folder = configured(tmp_path / fault, tmp_path / "base", [s.url for s in servers], steps=3)
    assert run(folder) == 0
    for server in servers:
        server.stop()
    with RunReader(folder) as record:
        said = [e.message for e in record.events(limit=1000) if bad.url in e.message]
        assert any(("it ended a turn after" if fault == "half" else "leaves the pool") in text for text in said), said
        assert not any(servers[0].url in e.message for e in record.events(limit=1000) if e.kind == "alert")
        rows = [row for row in record.rollouts.page(limit=1000) if row.split == "train" and (row.step or 0) > 2]
        wrote = {s.server for row in rows for s in record.bodies.trajectory(row.id).trajectory.steps}
        assert wrote == {servers[0].url}


def by_two(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Train in two processes."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--multi_gpu"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command += ["-m", "grpo_tui.engine.training", str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with forked_processes():
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_two_processes_train_as_one_on_what_two_servers_write_and_one_of_them_dies(tmp_path: Path):
    runs = []
    for name in ("one", "two"):
        made = configured(tmp_path / name, tmp_path / "base", [], steps=3, max_staleness=1)
        servers = [server_of(made, tmp_path / "base") for _ in range(2)]
        path = made / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["rollouts"]["servers"] = [server.url for server in servers]
        path.write_text(yaml.safe_dump(config))
        servers[0].faults.extend([""] * 30 + ["500"] * 1000)
        if name == "one":
            assert run(made) == 0
        else:
            done = by_two(made)
            assert done.returncode == 0, done.stderr[-3000:]
        assert servers[0].faults[0] == "500" and len(servers[1].requests) > len(servers[0].requests)
        for server in servers:
            server.stop()
        assert not list((made / "served").iterdir()), "nothing is left behind"
        runs.append(made)
    assert recorded_rollouts(runs[0]) == recorded_rollouts(runs[1])
    with RunReader(runs[0]) as one, RunReader(runs[1]) as two:
        for metric in ("train/loss", "kl/mean", "rollout/staleness", "success/eval_greedy"):
            found, expected = two.metrics.points(metric), one.metrics.points(metric)
            assert expected and [s for s, _ in found] == [s for s, _ in expected], metric
            assert [v for _, v in found] == pytest.approx([v for _, v in expected], abs=1e-4), metric
        assert _first_turns(one) == _first_turns(two)


def _first_turns(record: RunReader) -> list[str]:
    rows = record.rollouts.page(limit=1000)
    return [record.bodies.trajectory(row.id).trajectory.steps[0].text for row in rows]


@pytest.mark.stress
def test_two_processes_whose_servers_are_gone_save_their_step_and_continue_later(tmp_path: Path):
    made = configured(tmp_path / "made", tmp_path / "base")
    server = server_of(made, tmp_path / "base")
    folder = configured(tmp_path / "lost", tmp_path / "base", [server.url], steps=4, server_wait_s=0.3)
    server.faults.extend([""] * 40 + ["500"] * 1000)
    done = by_two(folder)
    assert done.returncode == 1
    assert re.search(r"error: (no rollout server was available for 0\.3 s|a request failed \d+ times)", done.stderr)
    reached = newest_whole(checkpoint_folder(folder))[0]
    assert reached is not None and 0 < reached[0] < 4
    server.faults.clear()
    assert by_two(folder, "--resume").returncode == 0
    assert recorded_steps(folder) == [1, 2, 3, 4]
    server.stop()
