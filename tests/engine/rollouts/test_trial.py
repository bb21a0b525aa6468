"""Results of `run_trial` as rollouts: ragged tokens, and the padded arrays of the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grpo_tui.engine.rollouts.trial import TrialError, rollouts_from_trial
from grpo_tui.envs.calculator import CalculatorEnv
from grpo_tui.envs.trajectory import token_rewards

from ...envs.scripts import demonstrating

ARRAYS = ("token_ids", "agent_mask", "turn_ids", "rewards", "logprobs")


def ragged() -> dict[str, Any]:
    env = CalculatorEnv()
    tasks = env.make_tasks("train", 3, seed=1)
    return env.run_trial(tasks, demonstrating(env, tasks, 2), 2)


def as_padded(result: dict[str, Any]) -> dict[str, Any]:
    """The same trial as a class of the contract returns it."""
    tokens = result["tokens"]
    rows, length = len(tokens), max(map(len, tokens)) + 3
    arrays = {name: np.full((rows, length), 7, np.int64) for name in ("padded_token_ids", "padded_turn_ids")}
    arrays |= {name: np.zeros((rows, length), np.int64) for name in ("padded_attn_mask", "padded_agent_mask")}
    arrays |= {name: np.zeros((rows, length), np.float32) for name in ("padded_rewards", "padded_logprobs")}
    for row, (one, trajectory) in enumerate(zip(tokens, result["trajectories"], strict=True)):
        end = len(one)
        arrays["padded_token_ids"][row, :end] = one.token_ids
        arrays["padded_turn_ids"][row, :end] = one.turn
        arrays["padded_attn_mask"][row, :end] = 1
        arrays["padded_agent_mask"][row, :end] = one.agent_mask
        arrays["padded_rewards"][row, :end] = token_rewards(trajectory, end)
        arrays["padded_logprobs"][row, :end] = np.where(one.agent_mask, one.logprobs, 0.0)
    return arrays | {k: result[k] for k in ("final_rewards", "trajectories")}


def test_padded_arrays_give_the_same_rollouts_as_ragged_tokens() -> None:
    result = ragged()
    ours, theirs = (rollouts_from_trial(r, [4, 5, 6], 2) for r in (result, as_padded(result)))
    assert [(r.group, r.index) for r in ours] == [(g, i) for g in (4, 5, 6) for i in (0, 1)]
    for one, other in zip(ours, theirs, strict=True):
        for name in ARRAYS:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
            assert getattr(one, name).dtype == getattr(other, name).dtype, name
        assert (one.group, one.index, one.final_reward) == (other.group, other.index, other.final_reward)


def test_without_turn_ids_each_run_of_agent_tokens_is_a_turn() -> None:
    result = ragged()
    padded = {k: v for k, v in as_padded(result).items() if k not in ("padded_turn_ids", "padded_logprobs")}
    for one, other in zip(
        rollouts_from_trial(result, [0, 1, 2], 2), rollouts_from_trial(padded, [0, 1, 2], 2), strict=True
    ):
        assert np.array_equal(one.turn_ids[one.agent_mask], other.turn_ids[other.agent_mask])
        assert other.logprobs is None


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda r: {**r, "tokens": r["tokens"][1:]}, "5 tokens for 6 rollouts"),
        (lambda r: {**r, "trajectories": r["trajectories"][1:]}, "5 trajectories for 6 rollouts"),
        (lambda r: {**r, "trajectories": None}, "Trajectory"),
        (lambda r: {"trajectories": r["trajectories"]}, "returned no padded_token_ids"),
        (lambda r: {**as_padded(r), "padded_attn_mask": np.ones((6, 2))}, "differ in shape"),
        (lambda r: {**as_padded(r), "padded_rewards": np.ones((5, 2))}, r"\[6, T\]"),
    ],
)
def test_other_results_are_refused(spoil: Any, reason: str) -> None:
    with pytest.raises(TrialError, match=reason):
        rollouts_from_trial(spoil(ragged()), [0, 1, 2], 2)
