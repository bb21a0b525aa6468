"""Tasksets of verifiers 0.4 run with their own harness, and earn what verifiers itself scores.

Followed: verifiers 0.4.0. Earlier versions skip these tests.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.envs.loading import EnvLoadError, make_env

from .scripts import ByteAgent

PACKAGES = Path(__file__).parent / "verifiers_envs"


def _installed() -> tuple[int, ...]:
    try:
        return tuple(map(int, version("verifiers").split(".")[:2]))
    except (PackageNotFoundError, ValueError):
        return (0, 0)


needs_tasksets = pytest.mark.skipif(_installed() < (0, 4), reason="needs verifiers 0.4")


def made(monkeypatch: pytest.MonkeyPatch, **config: Any) -> Any:
    monkeypatch.syspath_prepend(str(PACKAGES))
    return make_env("verifiers-taskset", {"id": "vf_counting", **config})


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@needs_tasksets
@pytest.mark.parametrize("variables", [{}, {"STREAM": "1"}])
def test_a_harness_with_a_tool_is_played_and_scored(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    env = made(monkeypatch, harness={"id": "vf_counting", "env": variables})
    assert [tool.name for tool in env.tools] == ["lookup"]
    assert [(a.name, a.type) for a in env.tools[0].arguments] == [("fruit", "integer")]
    tasks = env.make_tasks("train", 100, seed=0)
    task = next(t for t in tasks if t["row"] == 5)
    games = [["Let me see.\n" + call("lookup", fruit=5), "15"], ["I think that there are 15 of them."], ["99"]]
    agent = ByteAgent(lambda row, turn, seen: games[row][turn])
    looked, long, wrong = env.run_trial([task], agent, 3)["trajectories"]
    assert [m.role for m in looked.messages] == ["system", "user"]
    assert (looked.steps[0].action, looked.steps[0].observation) == ("lookup", "15")
    earned = [{s.name: (s.value, s.weight) for s in t.steps[-1].scores} for t in (looked, long, wrong)]
    assert earned == [
        {"told": (told, 0.75), "brief": (brief, 0.25)} for told, brief in ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0))
    ]
    assert [t.correct for t in (looked, long, wrong)] == [True, False, False]
    assert [t.extra["turns"] for t in (looked, long, wrong)] == [2.0, 1.0, 1.0]


@needs_tasksets
def test_held_out_tasks_and_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    env = made(monkeypatch, args={"fruits": 60}, limit=40)
    train, held_out = ({t["row"] for t in env.make_tasks(split, 100, seed=1)} for split in ("train", "eval"))
    assert train and held_out and train | held_out == set(range(40)) and not train & held_out
    (task,) = env.make_tasks("train", 1, seed=0)
    agent = ByteAgent(lambda row, turn, seen: call("lookup", fruit=1), token_limit=300)
    (cut,) = env.run_trial([task], agent, 1)["trajectories"]
    assert cut.stop_reason == "max_tokens" and not cut.correct


@needs_tasksets
def test_what_cannot_be_loaded_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvLoadError, match="no_such_taskset") as raised:
        made(monkeypatch, id="no_such_taskset")
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(_installed() >= (0, 4), reason="has tasksets")
def test_an_earlier_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvLoadError, match=r"verifiers"):
        made(monkeypatch)
