"""Advantages against their definitions, written out with loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grpo_tui.engine.rollouts.advantages import EPSILON, has_signal, last_of_turn, token_advantages, turn_advantages

GROUP = 4


@st.composite
def batches(draw):
    groups, turns = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rewards = draw(
        hnp.arrays(np.float64, (groups * GROUP, turns), elements=st.floats(-5, 5, allow_nan=False, width=32))
    )
    lengths = draw(hnp.arrays(np.int64, groups * GROUP, elements=st.integers(0, turns)))
    valid = draw(hnp.arrays(np.bool_, groups * GROUP, elements=st.sampled_from([True, True, True, False])))
    return rewards, np.arange(turns) < lengths[:, None], valid


def by_hand(rewards, mask, valid, method, scale):
    rewards = np.where(mask, rewards, 0.0)
    rows, turns = rewards.shape
    out = np.zeros_like(rewards)
    returns = rewards.sum(1) if method == "group" else np.cumsum(rewards[:, ::-1], 1)[:, ::-1]
    if method == "group":
        pool = [returns[i] for i in range(rows) if valid[i]]
    else:
        pool = [returns[i, t] for i in range(rows) for t in range(turns) if valid[i] and mask[i, t]]
    batch_std = np.std(pool, ddof=1) if len(pool) > 1 else 0.0
    for i in range(rows):
        start = i // GROUP * GROUP
        for t in range(turns):
            if not (valid[i] and mask[i, t]):
                continue
            if method == "group":
                peers = [returns[k] for k in range(start, start + GROUP) if valid[k]]
                mine = returns[i]
            else:
                peers = [returns[k, t] for k in range(start, start + GROUP) if valid[k] and mask[k, t]]
                mine = returns[i, t]
                if len(peers) < 2:
                    continue
            std = {"group": np.std(peers, ddof=1) if len(peers) > 1 else 0.0, "batch": batch_std, "none": None}[scale]
            out[i, t] = (mine - np.mean(peers)) / (1.0 if std is None else std + EPSILON)
    return out


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from(["group", "turn"]), st.sampled_from(["group", "batch", "none"]))
def test_turn_advantages_equal_their_definition(batch, method, scale):
    rewards, mask, valid = batch
    ours = turn_advantages(torch.tensor(rewards), torch.tensor(mask), GROUP, method, scale, torch.tensor(valid))
    expected = by_hand(rewards, mask, valid, method, scale)
    assert np.allclose(ours.numpy(), expected, atol=1e-6, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_reward_advantages_are_the_rewards(batch):
    rewards, mask, valid = batch
    ours = turn_advantages(torch.tensor(rewards), torch.tensor(mask), GROUP, "reward", valid=torch.tensor(valid))
    assert np.array_equal(ours.numpy(), np.where(mask & valid[:, None], rewards, 0.0))


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from(["group", "turn", "reward"]))
def test_a_group_without_signal_has_no_advantage_anywhere(batch, method):
    rewards, mask, valid = (torch.tensor(x) for x in batch)
    signal = has_signal(rewards, mask, GROUP, method, 0.0, valid)
    advantages = turn_advantages(rewards, mask, GROUP, method, "none", valid).view(len(signal), -1)
    for group, alive in zip(advantages, signal, strict=True):
        if not alive:
            assert group.abs().max() <= 1e-5


def test_equal_returns_are_no_signal_and_a_minimum_filters_small_differences():
    rewards = torch.tensor([[1.0], [1.0], [1.0], [1.0], [0.0], [1.0], [0.0], [1.0], [0.50], [0.51], [0.50], [0.51]])
    mask = torch.ones_like(rewards, dtype=torch.bool)
    assert has_signal(rewards, mask, GROUP).tolist() == [False, True, True]
    assert has_signal(rewards, mask, GROUP, min_std=0.1).tolist() == [False, True, False]


def test_groups_are_multiples_of_the_group_size():
    with pytest.raises(ValueError, match="multiple of the group size 4"):
        turn_advantages(torch.zeros(6, 1), torch.ones(6, 1, dtype=torch.bool), GROUP)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_tokens_carry_the_advantage_of_their_turn(data):
    turns, rows = data.draw(st.integers(1, 4)), GROUP
    values = torch.tensor(data.draw(hnp.arrays(np.float64, (rows, turns), elements=st.floats(-3, 3))))
    turn_ids = torch.tensor(data.draw(hnp.arrays(np.int64, (rows, 9), elements=st.integers(-1, turns - 1))))
    turn_ids = turn_ids.sort(1).values
    agent = torch.tensor(data.draw(hnp.arrays(np.bool_, (rows, 9))))
    spread = token_advantages(values, turn_ids, agent, "group")
    single = token_advantages(values, turn_ids, agent, "reward")
    last = last_of_turn(turn_ids, agent)
    for i in range(rows):
        for t in range(9):
            turn = int(turn_ids[i, t])
            there = bool(agent[i, t]) and turn >= 0
            assert spread[i, t] == (values[i, turn] if there else 0.0)
            later = any(bool(agent[i, k]) and int(turn_ids[i, k]) == turn for k in range(t + 1, 9))
            assert single[i, t] == (values[i, turn] if there and not later else 0.0)
            assert bool(last[i, t]) == (there and not later)
