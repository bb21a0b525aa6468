"""Answers of rollout servers: the engine as `grpo-tui online` puts it together, in this process, with fake servers."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from grpo_tui.configs.sections.rollouts import RolloutsConfig
from grpo_tui.engine.agents.remote import pool as pool_module
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.online.serve import watching
from grpo_tui.engine.policy.models import load_base
from grpo_tui.engine.runs.read.reader import RunReader

from ..agents.fake_vllm import FakeVLLM
from .pool_run import PoolRun
from .test_online_run import wait_for
from .tiny import run_config, tokenizer

SOON_S = 0.5
"""How long callers wait for servers where that is what is tested."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pool_module, "PROBE_S", 0.05)
    monkeypatch.setattr(watching, "TOLD_AFTER_S", 0.1)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class World(PoolRun):
    """Such a run, and two servers."""

    def __init__(self, folder: Path, server_wait_s: float = 60.0, **online: Any) -> None:
        config = run_config(folder / "policy", **{"serve": "127.0.0.1:0", **online})
        base = load_base(config.model)
        self.servers = [FakeVLLM(copy.deepcopy(base), tokenizer()) for _ in range(2)]
        for server in self.servers:
            server.start()
        urls = [s.url for s in self.servers]
        rollouts = RolloutsConfig(engine="vllm", servers=urls, server_wait_s=server_wait_s, request_timeout_s=20)
        super().__init__(folder / "run", config.model_copy(update={"rollouts": rollouts}))

    def served(self, server: int) -> list[int]:
        """Versions that a server holds."""
        return [int(name.split("-v")[1].split("-")[0]) for name in self.servers[server].adapters]

    def stop(self) -> None:
        for server in self.servers:
            server.may_load.set()
        super().stop()
        for server in self.servers:
            server.stop()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def world(**options: Any) -> World:
        made.append(World(tmp_path, **options))
        return made[-1]

    yield world
    for each in made:
        each.stop()


def generated(server: FakeVLLM) -> list[dict[str, Any]]:
    """What was asked of a server, probes aside."""
    return [r for r in server.requests if not r["request_id"].startswith("probe")]


def test_requests_change_to_a_version_when_every_server_has_it(make: Callable[..., World]) -> None:
    world = make()
    world.start()
    assert [world.version() for _ in range(3)] == [0, 0, 0]
    world.servers[1].may_load.clear()
    world.publish()
    wait_for(lambda: world.served(0) == [0, 1], "the first server's new version", 20)
    assert [world.version() for _ in range(4)] == [0] * 4, "one server loads late: it is waited for"
    assert {r["model"] for s in world.servers for r in generated(s)} == {next(iter(world.servers[1].adapters))}
    world.servers[1].may_load.set()
    world.answered_by(1)
    wait_for(lambda: world.served(0) == world.served(1) == [1], "the old one is unloaded", 20)
    assert world.folders() == ["v0", "v1"], "and its folder is kept for one version more"
    world.publish()
    world.answered_by(2)
    wait_for(lambda: world.folders() == ["v1", "v2"], "the first folder's end", 20)
    assert all(generated(s) for s in world.servers), "questions are spread over the servers"
    said = httpx.post(f"{world.url}/v1/feedback", json={"id": "1", "verdict": "wrong", "answer": "7"}, timeout=60)
    assert said.json()["accepted"] is True, "of an answer of the first version"
    world.stop()
    assert not any(s.adapters for s in world.servers) and not world.folders(), "nothing is left behind"
    with RunReader(world.run_dir) as record:
        for row in record.rollouts.page(limit=1000):
            steps = record.bodies.trajectory(row.id).trajectory.steps
            assert {step.policy_version for step in steps} == {row.policy_version}
    worst = world.apart_from_their_versions()
    assert set(worst) == {0, 1, 2} and max(worst.values()) < 1e-4, "each is scored by the version that wrote it"


def test_a_server_that_dies_in_the_middle_or_names_another_version_costs_no_answer(make: Callable[..., World]) -> None:
    world = make()
    world.start()
    assert world.version() == 0
    for server in world.servers:
        server.delay_s = 0.3
    before = [len(generated(s)) for s in world.servers]
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(world.post("dies")))
    asking.start()
    asked = wait_for(
        lambda: [i for i, s in enumerate(world.servers) if len(generated(s)) - before[i] == 4], "all candidates on one"
    )
    world.servers[asked[0]].stop()
    asking.join(30)
    assert answers[0].status_code == 200, answers[0].text
    other = world.servers[1 - asked[0]]
    again = generated(other)[-4:]
    lost = generated(world.servers[asked[0]])[-4:]
    assert {r["sampling_params"]["seed"] for r in again} == {r["sampling_params"]["seed"] for r in lost}
    status, health = world.health()
    assert (status, health["status"], health["rollout_servers"]) == (200, "ok", {"in": 1, "of": 2})
    world.servers[asked[0]].start()
    wait_for(lambda: world.health()[1]["rollout_servers"]["in"] == 2, "the server's return", 20)
    for server in world.servers:
        server.delay_s = 0.0
        server.fail("wrong model", "stale")
    assert [world.version() for _ in range(3)] == [0] * 3
    said = world.events("alert")
    assert any("it answered as 'base', but 'run-v0-" in sentence for sentence in said), said


def test_without_servers_callers_are_told_and_the_engine_waits_for_them(make: Callable[..., World]) -> None:
    world = make(server_wait_s=SOON_S)
    for server in world.servers:
        server.stop()
    world.start()
    for _ in range(2):  # from the start, and after they were there
        refused = world.post()
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) > 0
        wait_for(
            lambda: "no rollout server is available" in world.post().json()["error"]["message"], "that it is said", 20
        )
        status, health = world.health()
        assert (status, health["status"], health["rollout_servers"]) == (503, "degraded", {"in": 0, "of": 2})
        for server in world.servers:
            server.start()
        wait_for(lambda: world.health()[0] == 200, "the servers' return", 20)
        wait_for(lambda: world.post().status_code == 200, "an answer", 20)
        wait_for(lambda: any("answered again" in said for said in world.events("note")), "that it is said", 20)
        for server in world.servers:
            server.stop()
        wait_for(lambda: world.post().status_code == 503, "their end", 20)
    assert any(
        "Requests cannot be answered: no rollout server is available (http" in said for said in world.events("alert")
    )
    world.stop()  # also while nothing can be answered
    for server in world.servers:
        server.start()


def test_tasks_of_the_run_wait_for_servers_and_none_is_lost(make: Callable[..., World]) -> None:
    world = make(server_wait_s=SOON_S, serve=None, max_requests=6, updates=False, batch_requests=2)
    for server in world.servers:
        server.may_write.clear()  # nothing is written before they stop
    world.start()
    wait_for(lambda: len(generated(world.servers[0])) + len(generated(world.servers[1])) > 4, "the first tasks")
    for server in world.servers:
        server.stop()
        server.may_write.set()
    time.sleep(2 * SOON_S)
    assert not world.ended
    for server in world.servers:
        server.start()
    wait_for(lambda: world.ended, "the run's end", 30)
    assert world.ended == [True]
    with RunReader(world.run_dir) as record:
        rows = record.rollouts.page(limit=1000)
        assert len(rows) == 6 * 4 and len({r.prompt_id for r in rows}) == 6
        assert not [r for r in rows if r.stop_reason == "error"]


def test_a_version_that_a_caller_names_is_loaded_again_or_refused(make: Callable[..., World]) -> None:
    world = make(keep_snapshots=4)
    world.start()
    assert world.version() == 0
    world.publish()
    world.publish()
    world.answered_by(2)
    for version in (0, 1):
        assert world.version(model=f"@{version}") == version
        greedy = world.post("how many?", model=f"@{version}", temperature=0.0).json()
        assert greedy["grpo_tui"]["policy_version"] == version
        assert greedy["choices"][0]["message"]["content"] == _greedy(world, version, "how many?")
    assert world.version() == 2
    for server in world.servers:
        server.lora = False  # as one that was started without
    wait_for(lambda: world.served(0) == world.served(1), "the same on both", 20)
    held = world.served(0)
    named = next(v for v in (0, 1) if v not in held)
    refused = world.post(model=f"@{named}")
    assert refused.status_code == 404 and "cannot load adapters" in refused.json()["error"]["message"]
    world.answered_by(2)


def _greedy(world: World, version: int, question: str) -> str:
    """What the policy of a version answers here."""
    agent = TransformersAgent(
        world.become(version), world.tokenizer, temperature=0.0, max_turn_tokens=6, max_trajectory_tokens=64
    )
    session = agent.start([[{"role": "user", "content": question}]], 1, seed=0)
    (turn,) = session.act([0])
    session.close()
    return str(len(turn.text) % 3)


def test_servers_that_all_refuse_end_the_run_at_its_start(make: Callable[..., World]) -> None:
    world = make()
    for server in world.servers:
        server.lora = False
    world.start()
    wait_for(lambda: world.ended, "the run's end", 30)
    (problem,) = world.ended
    assert "cannot load adapters; start it with --enable-lora" in str(problem)
    world.ended.clear()
