"""The scripted agent of `benchmarks.mcp_agent` finds the cause in small recorded runs, through the real MCP client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_tui import Message, Recorder, Rollout

pytest.importorskip("mcp", reason="needs the extra mcp")  # before the agent, which imports it

from benchmarks.mcp_agent.agent import agent


def record(home: Path, name: str, reward: Callable[[int], float], answer: Callable[[int, int], str]) -> None:
    """Eight steps of four rollouts; the expected answer of a step is its number."""
    with Recorder(name, runs_dir=home) as recorder:
        for step in range(1, 9):
            rewards = [reward(i) for i in range(4)]
            rollouts = [
                Rollout(
                    prompt=(Message("user", f"number {step}?"),),
                    completion=(Message("assistant", f"{'so ' * (i % 2)}{answer(step, i)}"),),
                    reward=rewards[i],
                    advantage=rewards[i] - sum(rewards) / 4,
                    correct=rewards[i] > 0.5,
                    answer=answer(step, i),
                    expected=str(step),
                    group=f"group-{step}",
                    step=step,
                )
                for i in range(4)
            ]
            recorder.rollouts(step, rollouts)


async def test_the_agent_reads_the_rollouts_of_a_finding_and_names_the_cause(tmp_path: Path):
    record(tmp_path, "run-0", reward=lambda i: float(i > 1), answer=lambda step, i: str(step + i // 2))
    record(tmp_path, "run-1", reward=lambda i: float(i < 2), answer=lambda step, i: str(step + i // 2))
    async with agent(tmp_path) as asked:
        assert set(await asked.runs()) == {"run-0", "run-1"}
        broken, healthy = await asked.conclude("run-0"), await asked.conclude("run-1")
    assert broken.cause == "rejected_answers"
    assert broken.support.endswith("is expected, and counts as wrong")
    assert broken.calls > 3 and broken.size > 1_000
    assert healthy.cause == "" and healthy.calls == 1
