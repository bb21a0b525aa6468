"""`grpo-tui online --reward`: the user's function judges the samples in place of the vote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from tests.engine.online.tiny import saved_policy

from .conftest import Cli

REWARD = """
def right(completion_ids, answer, **columns):
    return [float(len(ids) % 3 == int(a)) for ids, a in zip(completion_ids, answer)]
"""


def test_a_reward_function_judges_every_sample_and_its_scores_are_learnt(tmp_path: Path, cli: Cli) -> None:
    base, adapters = saved_policy(tmp_path / "policy")
    rows = [{"prompt": f"what is {n} and {n}?", "answer": str(n % 3)} for n in range(6)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.py").write_text(REWARD)
    settings = {
        "model.sft_adapters": adapters,
        "model.device": "cpu",
        "online.samples": 4,
        "online.max_requests": 6,
        "online.max_turn_tokens": 6,
        "online.max_trajectory_tokens": 64,
        "online.validation.enabled": False,
    }
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    data = ["--dataset", "sums.jsonl", "--reward", "own.py:right"]
    done = cli("online", "--model", base, *data, "--run-id", "judged", "--headless", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = tmp_path / "runs" / "judged"
    updates = [json.loads(line) for line in (run_dir / "update_contribution.jsonl").read_text().splitlines()]
    with RunReader(run_dir) as reader:
        written = {n: reader.bodies.tokens(n) for n in range(1, reader.rollouts.count() + 1)}
        by_id = {(t := reader.bodies.trajectory(n).trajectory).id: (t, written[n]) for n in written}
    scores = set()
    for update in updates:
        judged = update["components"].index("right")
        for name, rewards in zip(update["trajectories"], update["reward_tensor"], strict=True):
            trajectory, tokens = by_id[name]
            answer = next(row["answer"] for row in rows if row["prompt"] in trajectory.prompt)
            assert tokens is not None
            expected = float(sum(map(bool, tokens.agent_mask)) % 3 == int(answer))
            assert sum(step[judged] for step in rewards) == pytest.approx(expected)
            scores.add(expected)
    assert scores == {0.0, 1.0}
