"""The client against real vLLM servers on a CPU (`make test-vllm`); skipped where there are none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.agents.remote.adapters import AdapterPublisher
from grpo_tui.engine.agents.remote.agent import RemoteAgent
from grpo_tui.engine.agents.remote.pool import ServerPool
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.launch.rollout_servers import check_server
from grpo_tui.engine.policy.models import load_policy
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from grpo_tui.envs.agent import Message
from tests.engine.online.pool_run import PoolRun

from .conftest import RealServer

SETTINGS = {"temperature": 1.2, "max_turn_tokens": 24, "max_trajectory_tokens": 512}
PROMPTS: list[list[Message]] = [
    [{"role": "user", "content": f"image 320 x 200. What colour is the object at ({x}, 40)?"}] for x in (31, 90, 7, 55)
]
ROLLOUTS = 4


class World:
    def __init__(self, folder: Path, servers: list[RealServer]) -> None:
        self.model: Any
        self.model, self.tokenizer = load_policy(RunConfig().model, adapters="builtin:tiny-sft", trainable=True)
        self.local = TransformersAgent(self.model, self.tokenizer, **SETTINGS)
        self.told: list[str] = []
        self.pool = ServerPool([s.url for s in servers])
        self.pool.tell = lambda said, _: self.told.append(said)
        text = self.local.chat.prompt(PROMPTS[0] * 3)[:60]
        self.publisher = AdapterPublisher("real", folder, str(folder), self.pool, text, 1e-3)
        self.agent = RemoteAgent(self.model, self.local.chat, self.local.config, self.pool, self.publisher)

    def play(self, seed: int = 3, agent: Any = None) -> list[Any]:
        session: Any = (agent or self.agent).start(PROMPTS, ROLLOUTS, seed=seed)
        rows = list(range(len(PROMPTS) * ROLLOUTS))
        turns = session.act(rows)
        session.observe(rows, ["mask 1: area 312, box [3, 4, 90, 100]"] * len(rows))
        turns += session.act(rows)
        session.close()
        if agent is None:
            assert {turn.policy_version for turn in turns} == {session.adapter.step}
        return [session.tokens(row) for row in rows]

    def move(self) -> None:
        for name, parameter in self.model.named_parameters():
            if "lora_B.default" in name:
                parameter.data += torch.randn_like(parameter) * 0.02


@pytest.fixture
def world(tmp_path: Path, servers: list[RealServer]) -> Iterator[World]:
    made = World(tmp_path / "adapters", servers)
    yield made
    made.agent.close()


def apart(world: World, rows: list[Any]) -> float:
    """The largest difference of a log-prob from one pass of the policy here, nats."""
    worst = 0.0
    for row in rows:
        ids = torch.as_tensor(row.token_ids.astype(np.int64))[None]
        with torch.no_grad():
            scores = (world.model(input_ids=ids).logits[0, :-1].double() / SETTINGS["temperature"]).log_softmax(-1)
        mine = scores.gather(-1, ids[0, 1:, None])[:, 0].numpy()
        mask = row.agent_mask[1:]
        worst = max(worst, float(np.abs(row.logprobs[1:][mask] - mine[mask]).max()))
    return worst


def test_log_probs_are_those_of_the_policy_here_version_after_version(world: World, servers: list[RealServer]):
    for server in servers:
        assert [fact for fact in check_server(server.url) if fact.state == "missing"] == []
    for step in range(3):
        world.agent.publish(step)
        rows = world.play(seed=step)
        worst, written = apart(world, rows), sum(int(row.agent_mask.sum()) for row in rows)
        mean = world.publisher.mismatch
        print(f"version {step}: log-probs of {written} tokens differ by at most {worst:.2g} nats (probe: {mean:.2g})")
        assert max(worst, mean) < 1e-4
        world.move()
        if step == 0:  # an older version would be noticed
            print(f"against the next version they differ by up to {apart(world, rows):.2g}")
            assert apart(world, rows) > 1e-2
    assert world.told == []


def test_rollouts_of_a_server_that_is_killed_come_out_the_same_elsewhere(world: World, servers: list[RealServer]):
    world.agent.publish(0)
    whole = world.play()
    servers[0].kill()
    failed_over = world.play()
    written = sum(int(row.agent_mask.sum()) for row in whole)
    print(f"{len(whole)} rollouts, {written} tokens: the same on the server that is left")
    for mine, theirs in zip(failed_over, whole, strict=True):
        np.testing.assert_array_equal(mine.token_ids, theirs.token_ids)
    assert any("is unavailable" in said for said in world.told)
    servers[0].start()
    servers[0].wait()
    deadline = time.monotonic() + 30
    while not any("is back after" in said for said in world.told):
        assert time.monotonic() < deadline, world.told
        time.sleep(0.1)
    assert apart(world, world.play()) < 1e-4


def test_ten_steps_on_real_servers_learn(tmp_path: Path, servers: list[RealServer]):
    folder = tmp_path / "run"
    folder.mkdir()
    config = {
        "training": {"max_steps": 10, "eval_every": 0, "save_every": 0, "output_dir": str(tmp_path / "adapters")},
        "environment": {"eval_tasks": 48},
        "model": {"device": "cpu"},
        "rollouts": {"engine": "vllm", "servers": [s.url for s in servers]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(folder) == 0
    with RunReader(folder) as record:
        before, *_, after = (v for _, v in record.metrics.points("success/eval_sampled"))
        apart = max(v for _, v in record.metrics.points("rollout/logprob_mismatch_max"))
        print(f"ten steps: success {before:.2f} -> {after:.2f}, log-probs differ by at most {apart:.2g} nats")
        assert after > before and apart < 1e-3


def test_answers_change_to_the_next_version_and_are_scored_by_it(tmp_path: Path, servers: list[RealServer]):
    config = RunConfig.model_validate(
        {
            "mode": "online",
            "model": {"device": "cpu"},
            "online": {
                **{"serve": "127.0.0.1:0", "samples": 8, "poll_interval_s": 0.05},
                # Answers that agree, and a task of every vote: only what agrees is learnt from.
                **{"temperature": 0.3, "min_confidence": 0.0},
            },
            "rollouts": {"engine": "vllm", "servers": [s.url for s in servers]},
        }
    )
    world = PoolRun(tmp_path / "run", config)
    world.start()
    try:
        for version in range(3):
            world.answered_by(version)
            world.version(question="image 320 x 200. What colour is the object at (31, 40)?")
            world.publish(0.02)
    finally:
        world.stop()
    worst = world.apart_from_their_versions()
    print(f"answers of versions {sorted(worst)}: log-probs differ by at most {max(worst.values()):.2g} nats")
    assert set(worst) >= {0, 1, 2} and max(worst.values()) < 1e-4
