"""Rollouts on servers: tokens and log-probs are those of the policy here, and no failure of a server gets through."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.agents.decoder import stop_ids_of
from grpo_tui.engine.agents.remote import pool as pool_module
from grpo_tui.engine.agents.remote.adapters import AdapterPublisher
from grpo_tui.engine.agents.remote.agent import RemoteAgent
from grpo_tui.engine.agents.remote.client import _seconds
from grpo_tui.engine.agents.remote.pool import NoServersLeft, ServerPool
from grpo_tui.engine.agents.remote.protocol import ServerBusy, ServerRefusal
from grpo_tui.engine.agents.sampling import AgentSettings
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.launch.rollout_servers import check_server, serve_commands
from grpo_tui.envs.agent import Message

from .fake_vllm import FakeVLLM
from .models import model, tokenizer

base = partial(model, "qwen3", layers=1)

PROMPTS: list[list[Message]] = [
    [{"role": "user", "content": text}] for text in ("What colour?", "area of the object at (31, 40)", "x")
]
SETTINGS = {"temperature": 1.2, "max_turn_tokens": 5, "max_trajectory_tokens": 120}
TEXT = tuple(range(5, 65))


def policy() -> Any:
    """A random policy with adapters that do something."""
    torch.manual_seed(0)
    made: Any = get_peft_model(base(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    move(made)
    return made


def move(made: Any) -> None:
    """As a training step does."""
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            parameter.data += torch.randn_like(parameter) * 0.1


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeVLLM]]:
    monkeypatch.setattr(pool_module, "PROBE_S", 0.05)
    made = [FakeVLLM(copy.deepcopy(base()), tokenizer()).start() for _ in range(2)]
    yield made
    for server in made:
        server.stop()


class World:
    """A trainer's side: its policy, and an agent on servers."""

    def __init__(self, folder: Path, servers: list[FakeVLLM], **options: Any) -> None:
        self.policy = policy()
        self.told: list[str] = []
        given = {"request_timeout_s": 30.0, "wait_s": 3.0, **options}
        self.pool = ServerPool([s.url for s in servers], **given)
        self.pool.tell = lambda said, _: self.told.append(said)
        chat = ChatBridge(tokenizer(), stop_ids=stop_ids_of(self.policy))
        self.publisher = AdapterPublisher("my run", folder, str(folder), self.pool, TEXT, 1e-3)
        self.agent = RemoteAgent(self.policy, chat, AgentSettings(**SETTINGS), self.pool, self.publisher)

    def names(self) -> list[str]:
        return sorted(p.name for p in self.publisher.folder.iterdir())


@pytest.fixture
def world(tmp_path: Path, servers: list[FakeVLLM]) -> Iterator[World]:
    made = World(tmp_path / "adapters", servers)
    yield made
    made.pool.close()


def play(agent: Any, turns: int = 2, seed: int = 3, rollouts: int = 2) -> Any:
    session = agent.start(PROMPTS, rollouts, seed=seed)
    rows = list(range(len(PROMPTS) * rollouts))
    for turn in range(turns):
        said = session.act(rows)
        assert all(t.text or t.token_span[0] == t.token_span[1] for t in said)
        if turn + 1 < turns:
            session.observe(rows, [f"mask {row}" for row in rows])
    session.close()
    return session


def assert_same(remote: Any, local: Any) -> None:
    for row in range(6):
        mine, theirs = remote.tokens(row), local.tokens(row)
        for name in ("token_ids", "agent_mask", "turn"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-5)


def test_a_session_on_servers_is_the_session_here(world: World, servers: list[FakeVLLM]):
    world.agent.publish(4)
    session = play(world.agent)
    assert_same(session, play(TransformersAgent(world.policy, tokenizer(), **SETTINGS)))
    asked = [r for s in servers for r in s.requests if not r["request_id"].startswith("probe")]
    assert {r["model"] for r in asked} == {session.adapter.name}
    homes = [{tuple(r["token_ids"][:6]) for r in s.requests if r["request_id"].endswith("-0")} for s in servers]
    assert homes[0] and homes[1] and not homes[0] & homes[1], "the rollouts of a prompt stay on one server"


def test_each_version_is_what_the_servers_answer_with(world: World):
    for step in range(3):
        version = world.agent.publish(step)
        assert version.name.startswith(f"my-run-s{step}-")
        assert_same(play(world.agent), play(TransformersAgent(world.policy, tokenizer(), **SETTINGS)))
        move(world.policy)


FAULTS = ["404", "500", "hang", "wrong model", "truncated", "slow loris", "garbage"]


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_of_a_failing_server_go_elsewhere_with_the_same_tokens(fault: str, world: World, servers: list[FakeVLLM]):
    world.pool.request_timeout_s = 2.0 if fault in ("hang", "slow loris") else 30.0
    world.agent.publish(0)
    expected = play(world.agent)
    servers[0].fail(fault)
    assert_same(play(world.agent), expected)
    assert not servers[0].faults
    assert any("is unavailable" in t and servers[0].url in t for t in world.told)
    deadline = time.monotonic() + 10
    while not any("is back after" in t for t in world.told):
        assert time.monotonic() < deadline, world.told
        time.sleep(0.02)
    assert_same(play(world.agent), expected)


@pytest.mark.parametrize("busy", ["429", "503"])
def test_a_busy_server_stays_in_and_is_asked_again(busy: str, world: World, servers: list[FakeVLLM]):
    world.agent.publish(0)
    expected = play(world.agent)
    for server in servers:
        server.fail(*[busy, ""] * 4)
    assert_same(play(world.agent), expected)
    assert not world.told and all(len(s.faults) < 6 for s in servers)


def test_a_server_that_names_a_time_is_left_alone_until_then():
    busy = [ServerBusy("it is busy", 7.0).pause_s(before) for before in (0, 3, 9) for _ in range(20)]
    assert min(busy) >= 7.0 and len(set(busy)) == 60
    own = [ServerBusy("it is busy").pause_s(before) for before in range(12)]
    assert own[0] < own[4] < own[8] < 60
    assert _seconds("3") == 3.0 and _seconds("soon") is None and _seconds("") is None
    assert 8 < (_seconds(format_datetime(datetime.now(UTC) + timedelta(seconds=10))) or 0) < 11


def test_a_turn_takes_as_long_as_it_takes_while_its_server_works(tmp_path: Path, servers: list[FakeVLLM]):
    world = World(tmp_path / "adapters", servers, request_timeout_s=0.1)
    world.agent.publish(0)
    for server in servers:
        server.delay_s = 0.35
    play(world.agent, turns=1)
    assert not world.told
    signs = [r for s in servers for r in s.requests if r["request_id"].startswith("probe-alive")]
    assert len(signs) > 0 and all(r["sampling_params"]["max_tokens"] == 4 for r in signs)
    world.pool.close()


def test_a_server_without_the_fault_proves_a_version_among_its_turns(tmp_path: Path, servers: list[FakeVLLM]):
    world = World(tmp_path / "adapters", servers[:1])
    server = servers[0]
    world.agent.publish(0)
    for step, on_cpu in ((1, True), (2, False)):
        server.on_cpu = on_cpu
        world.pool.servers[0].client.forget()
        server.may_write.clear()
        before = len(server.requests)
        move(world.policy)
        with ThreadPoolExecutor(2) as threads:
            writing = threads.submit(play, world.agent, 1)
            while server.in_flight < 6:
                time.sleep(0.005)
            publishing = threads.submit(world.agent.publish, step)
            while not any(f"s{step}-" in name for name in server.adapters):
                time.sleep(0.005)
            if on_cpu:
                time.sleep(0.1)
                assert not publishing.done() and len(server.requests) == before + 6, "it waits for the turns"
            else:
                publishing.result()
                assert not writing.done()
            server.may_write.set()
            publishing.result()
            writing.result()
    world.pool.close()


def test_an_answer_that_stops_where_no_turn_ends_is_not_taken(world: World, servers: list[FakeVLLM]):
    world.agent.publish(0)
    expected = play(world.agent)
    servers[0].fail(*["half"] * 3)
    assert_same(play(world.agent), expected)
    assert any("ended a turn after" in told and servers[0].url in told for told in world.told)


def test_an_answer_of_an_older_version_is_never_taken(world: World, servers: list[FakeVLLM]):
    held = world.agent.start(PROMPTS, 1, seed=0) if world.agent.publish(0) else None
    move(world.policy)
    world.agent.publish(1)
    servers[0].fail("stale")
    servers[1].fail("stale")
    assert_same(play(world.agent), play(TransformersAgent(world.policy, tokenizer(), **SETTINGS)))
    assert [t for t in world.told if "it answered as 'my-run-s0-" in t]
    assert held is not None
    held.close()


def test_a_server_that_died_and_came_back_gets_the_present_version(world: World, servers: list[FakeVLLM]):
    world.agent.publish(0)
    expected = play(world.agent)
    servers[0].stop()
    assert_same(play(world.agent), expected)
    assert not any("is back after" in t for t in world.told), world.told
    servers[0].start()
    deadline = time.monotonic() + 10
    while not any("is back after" in t for t in world.told):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert list(servers[0].adapters) == [world.publisher.current.name]  # type: ignore[union-attr]


def test_with_no_server_left_there_is_one_sentence(world: World, servers: list[FakeVLLM]):
    world.agent.publish(0)
    world.pool.wait_s = 0.3
    for server in servers:
        server.stop()
    with pytest.raises(
        NoServersLeft, match=r"no rollout server was available for 0.3 s \(http://127.0.0.1:\d+: it cannot"
    ):
        play(world.agent)


def test_a_request_that_fails_everywhere_ends(world: World, servers: list[FakeVLLM]):
    world.agent.publish(0)
    for server in servers:
        server.fail(*["500"] * 40)
    with pytest.raises(NoServersLeft, match=r"a request failed 4 times, most recently: .*500"):
        play(world.agent)


def test_an_old_version_is_unloaded_when_unused_and_deleted_one_version_later(world: World, servers: list[FakeVLLM]):
    versions = [world.agent.publish(0)]
    held = world.agent.start(PROMPTS, 1, seed=0)
    for step in (1, 2):
        move(world.policy)
        versions.append(world.agent.publish(step))
    names = [v.name for v in versions]
    assert list(servers[0].adapters) == [names[0], names[2]], "the held one stays, the unused one goes"
    assert world.names() == sorted(names), "its folder goes with the next version"
    held.close()
    move(world.policy)
    names.append(world.agent.publish(3).name)
    assert list(servers[0].adapters) == [names[3]]
    assert world.names() == sorted([names[0], names[2], names[3]])
    world.agent.close()
    assert not servers[0].adapters and not world.names()


def test_a_version_is_proved_while_an_older_one_writes(world: World, servers: list[FakeVLLM]):
    first = world.agent.publish(0)
    for server in servers:
        server.delay_s = 0.1
    with world.agent.holding(first), world.agent.acting_as(first):
        session = world.agent.start(PROMPTS, 3, seed=3)
        with ThreadPoolExecutor(1) as beside:
            writing = beside.submit(session.act, list(range(9)))
            move(world.policy)
            world.agent.publish(1)
            assert len(writing.result()) == 9
        session.close()
    assert world.told == [], "no server died of a probe among other requests"


def test_a_version_that_was_promised_to_a_later_step_stays(world: World, servers: list[FakeVLLM]):
    first = world.agent.publish(0)
    with world.agent.holding(first):
        move(world.policy)
        world.agent.publish(1)
        with world.agent.acting_as(first):
            assert {t.policy_version for t in world.agent.start(PROMPTS, 1, seed=0).act([0, 1, 2])} == {0}
    assert world.told == []


def test_a_folder_of_adapters_never_changes(world: World):
    first = world.agent.publish(0)
    folder = world.publisher.folder / first.name
    facts = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()}
    world.publisher.current = None  # as a run that goes on after a crash
    assert world.agent.publish(0).name == first.name
    assert {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()} == facts


def test_what_a_killed_run_left_is_taken_away_when_it_goes_on(world: World, servers: list[FakeVLLM], tmp_path: Path):
    left = world.agent.publish(0)
    (world.publisher.folder / ".tmp-my-run-s1-77").mkdir()
    others = [world.publisher.folder / name for name in ("my-run-s2-x-s0-0123456789abcdef", "notes")]
    for other in others:
        other.mkdir()
    again = World(tmp_path / "adapters", servers)
    move(again.policy)
    now = again.agent.publish(1)
    assert again.names() == sorted([now.name, *(other.name for other in others)]), "what is another run's stays"
    assert all(list(server.adapters) == [now.name] for server in servers) and left.name != now.name
    again.pool.close()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"scale_out": False}, "start it with --enable-scale-out"),
        ({"lora": False}, "cannot load adapters; start it with --enable-lora"),
        ({"key": "secret"}, "set the key that rollouts.api_key_env names"),
        ({"raw_logprobs": True}, "--logprobs-mode processed_logprobs"),
    ],
)
def test_a_server_that_was_started_wrongly_is_told_how_to_start_it(option: dict[str, Any], said: str, tmp_path: Path):
    server = FakeVLLM(copy.deepcopy(base()), tokenizer(), **option).start()
    missing = [fact for fact in check_server(server.url) if fact.state == "missing"]
    assert len(missing) == 1 and said.split(" ")[-1].strip("-") in missing[0].cure, "and doctor says so before"
    world = World(tmp_path / "adapters", [server], wait_s=60)
    with pytest.raises(ServerRefusal, match=said):
        world.agent.publish(0)
    world.pool.close()
    server.stop()


def test_doctor_has_nothing_to_say_of_a_good_server(servers: list[FakeVLLM]):
    facts = list(check_server(servers[0].url))
    assert [fact.state for fact in facts] == ["good"] * 4


def test_the_command_that_is_printed_has_what_doctor_asks_for():
    config = RunConfig.model_validate({"rollouts": {"max_staleness": 2}, "model": {"lora": {"r": 12}}})
    first, second = serve_commands(config, ["0", "3"])
    assert {"--enable-lora", "--enable-scale-out", "--logprobs-mode=processed_logprobs"} <= set(first.arguments)
    assert {"--max-lora-rank=16", "--max-loras=4", "--host=127.0.0.1", "--port=8001"} <= set(second.arguments)
    assert second.variables == {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "CUDA_VISIBLE_DEVICES": "3"}
    assert second.url == "http://127.0.0.1:8001"
    pairs = serve_commands(config, ["0", "1", "2", "3"], tensor_parallel=2)
    assert [c.variables["CUDA_VISIBLE_DEVICES"] for c in pairs] == ["0,1", "2,3"]
    assert all("--tensor-parallel-size=2" in c.arguments for c in pairs)


def test_a_server_of_another_policy_is_not_taken_in(tmp_path: Path):
    server = FakeVLLM(base(seed=1), tokenizer()).start()
    world = World(tmp_path / "adapters", [server], wait_s=0.2)
    with pytest.raises(ServerRefusal, match=r"with other weights or in another precision: its log-probs differ by \d"):
        world.agent.publish(0)
    world.pool.close()
    server.stop()
