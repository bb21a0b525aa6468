"""Advantages against their definitions, written out with loops in float64."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grpo_tui.configs.plain_data import from_plain
from grpo_tui.configs.sections.training import METHODS, Advantages
from grpo_tui.engine.rollouts.advantages import (
    AdvantageError,
    advantage_method,
    in_groups,
    last_of_turn,
    per_token,
)
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.envs.trajectory import Trajectory
from grpo_tui.rewards.advantages.base import EPSILON, Returns, spread, total
from grpo_tui.rewards.breakdown import AdvantageFormula, AdvantageTerm, ComponentValue, RewardBreakdown, StepReward
from grpo_tui.tui.advantage import equation
from tests.properties import drawn

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


def groups(rewards, mask, valid=None) -> list[list[Returns]]:
    """Rows as groups of `GROUP`."""
    rewards, mask = np.asarray(rewards, np.float64), np.asarray(mask, bool)
    valid = np.ones(len(rewards), bool) if valid is None else valid
    rows = [Returns(rewards[i][mask[i]].tolist(), scored=bool(valid[i])) for i in range(len(rewards))]
    return [rows[i : i + GROUP] for i in range(0, len(rows), GROUP)]


def advantages_of(method, batch, scale: Any, turns: int) -> np.ndarray:
    """Advantages per turn, float64 [rows, turns]; 0 where no turn happened."""
    formulas = [formula for group in method.compare(batch, scale) for formula in group]
    rollouts = [rollout for group in batch for rollout in group]
    out = np.zeros((len(rollouts), turns))
    for i, (rollout, formula) in enumerate(zip(rollouts, formulas, strict=True)):
        for t in range(len(rollout.turns)):
            out[i, t] = 0.0 if formula is None else formula.advantage(t) or 0.0
    return out


def by_turn(rewards, mask, method, scale: Any = "none", valid=None) -> np.ndarray:
    return advantages_of(advantage_method(method), groups(rewards, mask, valid), scale, np.shape(rewards)[1])


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
    ours = by_turn(rewards, mask, method, scale, valid)
    expected = by_hand(rewards, mask, valid, method, scale)
    assert np.allclose(ours, expected, atol=1e-6, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_reward_advantages_are_the_rewards(batch):
    rewards, mask, valid = batch
    ours = by_turn(rewards, mask, "reward", "group", valid)
    assert np.array_equal(ours, np.where(mask & valid[:, None], rewards, 0.0))


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from(["group", "turn", "reward"]))
def test_a_group_without_signal_has_no_advantage_anywhere(batch, method):
    rewards, mask, valid = batch
    signal = advantage_method(method).signal(groups(rewards, mask, valid))
    advantages = by_turn(rewards, mask, method, "none", valid).reshape(len(signal), -1)
    for group, alive in zip(advantages, signal, strict=True):
        if not alive:
            assert np.abs(group).max() <= 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_a_group_of_nothing_has_no_advantage(method):
    assert advantage_method(method).compare([[], [Returns([1.0], [1.0], states=["q"])]], "group")[0] == []


def test_sums_round_alike_in_every_python():
    """`sum` compensates rounding since Python 3.12, and would keep the 1.0 that 1e16 absorbs."""
    assert total([1e16, 0.1, 0.2, 0.3, 1.0, 0.4, 0.5, 0.6, -1e16, 0.7, 0.8, 0.9]) == 4.5


def test_equal_returns_are_no_signal_and_a_minimum_filters_small_differences():
    rewards = np.array([[1.0], [1.0], [1.0], [1.0], [0.0], [1.0], [0.0], [1.0], [0.50], [0.51], [0.50], [0.51]])
    batch = groups(rewards, np.ones_like(rewards))
    assert advantage_method("group").signal(batch) == [False, True, True]
    assert advantage_method("group").signal(batch, 0.1) == [False, True, False]


def rollout(turn_ids, agent, group: int = 0, index: int = 0) -> Rollout:
    turn_ids, agent = np.asarray(turn_ids, np.int16), np.asarray(agent, bool)
    return Rollout(np.zeros(len(agent), np.int64), agent, turn_ids, np.zeros(len(agent), np.float32), group, index)


def test_groups_are_whole():
    with pytest.raises(ValueError, match="6 rollouts are not whole groups of 4"):
        in_groups([rollout([0], [True])] * 6, GROUP)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_tokens_carry_the_advantage_of_their_turn(data):
    turns = data.draw(st.integers(1, 4))
    values = data.draw(hnp.arrays(np.float64, turns, elements=st.floats(-3, 3, width=32)))
    turn_ids = np.sort(data.draw(hnp.arrays(np.int64, 9, elements=st.integers(-1, turns - 1))))
    agent = data.draw(hnp.arrays(np.bool_, 9))
    row = rollout(turn_ids, agent)
    formula = AdvantageFormula("", "", 0.0, tuple((AdvantageTerm(float(v), 0.0, None, 1),) for v in values))
    if len(formula.steps) == 1:  # a single entry holds for all turns
        formula = dataclasses.replace(formula, steps=formula.steps * 2)
    spread = per_token(formula, row, on_last_token=False)
    shaped = dataclasses.replace(row, breakdown=RewardBreakdown("", (), 0.0))
    single = per_token(formula, shaped, on_last_token=True)
    last = last_of_turn(row)
    for t in range(9):
        turn = int(turn_ids[t])
        there = bool(agent[t]) and turn >= 0
        assert spread[t] == (values[turn] if there else 0.0)
        later = any(bool(agent[k]) and int(turn_ids[k]) == turn for k in range(t + 1, 9))
        assert single[t] == (values[turn] if there and not later else 0.0)
        assert bool(last[t]) == (there and not later)


def same_state_by_hand(batch: list[list[Returns]], scale: str) -> list[list[float]]:
    """GiGPO's definition, rollout by rollout and turn by turn."""

    def discounted(rollout: Returns, t: int) -> float:
        return sum(0.95 ** (k - t) * rollout.turns[k] for k in range(t, len(rollout.turns)))

    def part(value: float, peers: list[float], every: list[float]) -> float:
        if len(peers) < 2:
            return 0.0
        std = {"group": np.std(peers, ddof=1), "batch": np.std(every, ddof=1), "none": None}[scale]
        return float((value - np.mean(peers)) / (1.0 if std is None else std + EPSILON))

    scored = [r for group in batch for r in group if r.scored]
    every = [discounted(r, t) for r in scored for t in range(len(r.turns))]
    out = []
    for group in batch:
        alive = [r for r in group if r.scored]
        for r in group:
            row = [0.0] * len(r.turns)
            for t in range(len(r.turns) if r.scored else 0):
                peers = [
                    discounted(other, k)
                    for other in alive
                    for k in range(len(other.turns))
                    if (other is r and k == t) or (r.states and other.states and other.states[k] == r.states[t])
                ]
                whole = part(sum(r.turns), [sum(x.turns) for x in alive], [sum(x.turns) for x in scored])
                row[t] = whole + part(discounted(r, t), peers, every)
            out.append(row)
    return out


@st.composite
def groups_with_states(draw):
    """Groups of four with few states, so that turns share them, also within a rollout; some rollouts have none."""
    rewards = st.floats(-5, 5, width=32) if draw(st.booleans()) else st.sampled_from([0.0, 1.0])
    longest = draw(st.integers(1, 5))
    rows = []
    for _ in range(draw(st.integers(1, 3)) * GROUP):
        turns = draw(st.lists(rewards, max_size=longest))
        known = draw(st.sampled_from([True, True, True, False]))
        states = [draw(st.sampled_from("abc")) for _ in turns] if known else ()
        rows.append(Returns(turns, turns, states=states, scored=draw(st.sampled_from([True, True, True, False]))))
    return [rows[i : i + GROUP] for i in range(0, len(rows), GROUP)]


@drawn(50, 1000, groups_with_states(), st.sampled_from(["group", "batch", "none"]))
def test_gigpo_adds_the_comparison_within_a_state(batch, scale):
    method = advantage_method("gigpo")
    expected = same_state_by_hand(batch, scale)
    ours = advantages_of(method, batch, scale, 5)
    for row, right in zip(ours, expected, strict=True):
        assert np.allclose(row[: len(right)], right, atol=1e-6) and not row[len(right) :].any()
    for group, signal in zip(batch, method.signal(batch), strict=True):
        if not signal:
            assert all(abs(a) <= 1e-5 for row in same_state_by_hand([group], "none") for a in row)


def test_gigpo_by_numbers():
    """Two rollouts open a door at the second and at the third try; the same state comes twice in one of them."""
    quick = Returns([0.0, 1.0], states=["start", "closed"])
    slow = Returns([0.0, 0.0, 1.0], states=["start", "closed", "closed"])
    (first, second), = advantage_method("gigpo").compare([[quick, slow]], "none")  # fmt: skip
    assert first is not None and second is not None
    assert [t.name for t in first.terms(1)] == ["rollout", "same state"]
    assert (first.terms(1)[1].size, first.terms(1)[0].size) == (3, 2)
    mean = (1 + 0.95 + 1) / 3
    assert first.advantage(0) == pytest.approx((0.95 - 0.95**2) / 2)
    assert [second.advantage(t) for t in (1, 2)] == pytest.approx([0.95 - mean, 1 - mean])


OWN = """
from grpo_tui.rewards.advantages import AdvantageMethod

class LastTurn(AdvantageMethod):
    name = "last turn"

    def returns(self, rollout):
        return rollout.turns[-1:]
"""


def test_a_method_of_ones_own_is_one_file(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    method = advantage_method(f"{tmp_path}/own.py:LastTurn")
    rewards = np.array([[5.0, 1.0], [5.0, 3.0], [9.0, 1.0], [5.0, 3.0]])
    (found,) = method.compare(groups(rewards, np.ones_like(rewards)), "none")
    assert [formula.advantage(1) for formula in found if formula] == [-1.0, 1.0, -1.0, 1.0]
    assert found[0] is not None
    assert found[0].sentence == "the returns of last turn, minus the mean of the {size} rollouts of its group"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("group", "the return, against mean and std (n − 1) of the 4 rollouts of its group"),
        ("turn", "the return from this step on, against mean and std (n − 1) of the 4 rollouts of the group that got"),
        ("reward", "The reward itself, on the last token of its turn, without a baseline."),
        ("gdpo", "each component against mean and std (n − 1) of its group, by weight, over the std of the batch"),
        (
            "gigpo",
            "the return against mean and std (n − 1) of its group; the return from this step on (γ = 0.95) against",
        ),
        ("tree", "the mean return from this step on of the rollouts that share it, against the mean of the group and"),
    ],
)
def test_a_method_brings_the_sentence_that_the_screens_show(name, sentence):
    rows = [
        dataclasses.replace(rollout([0], [True], index=i), turn_rewards=np.array([2.0**i], np.float32))
        for i in range(4)
    ]
    (group,) = Scorer(4, method=advantage_method(name)).advantages(rows)
    formula = group.rollouts[3].formula
    assert formula is not None and from_plain(AdvantageFormula, dataclasses.asdict(formula)) == formula
    assert equation(formula, 0, formula.advantage(0))[-1].startswith(sentence)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grup", "group, turn, reward, gdpo"),
        ("no.such.Method", "there is no module"),
        ("json.JSONDecoder", "AdvantageMethod"),
    ],
)
def test_a_method_that_is_none_is_refused_in_one_sentence(name, message):
    with pytest.raises(AdvantageError, match=message):
        advantage_method(name)


def test_the_configuration_knows_every_method():
    assert set(get_args(Advantages)) == set(METHODS) == {advantage_method(name).name for name in METHODS}


SHAPES = {"curiosity": 0.02, "penalty": 0.5}


@st.composite
def shaped_groups(draw):
    """Rollouts whose steps have a task reward on the last one, and shaping; some without a value of a component."""
    rows = []
    for i in range(draw(st.integers(1, 3)) * GROUP):
        turns = draw(st.integers(1, 3))
        right = draw(st.sampled_from([True, False, None]))
        success = float(right is True)
        steps = []
        for t in range(turns):
            found = {"task": ComponentValue(success, success, 1.0, success)} if t == turns - 1 else {}
            for name, weight in SHAPES.items():
                if draw(st.booleans()):
                    value = draw(st.floats(-3, 3, width=32))
                    found[name] = ComponentValue(value, value, weight, weight * value)
            steps.append(StepReward(t, found, total=sum(c.contribution or 0.0 for c in found.values())))
        row = rollout(np.arange(turns), np.ones(turns), group=i // GROUP, index=i % GROUP)
        total = sum(s.total for s in steps)
        rows.append(
            dataclasses.replace(
                row,
                final_reward=success,
                trajectory=Trajectory("t", "e", "p", "g", i % GROUP, "", (), stop_reason="answer", correct=right),
                turn_rewards=np.array([s.total for s in steps], np.float32),
                breakdown=RewardBreakdown(str(i), tuple(steps), total),
            )
        )
    valid = draw(hnp.arrays(np.bool_, len(rows), elements=st.sampled_from([True, True, True, False])))
    return rows, valid


def compared(value, values, scaled=True):
    mean = np.mean(values) if len(values) > 1 else value
    std = np.std(values, ddof=1) if len(values) > 1 else 0.0
    return (value - mean) / (std + EPSILON if scaled else 1.0)


def sum_of(row, name):
    values = [s.components[name].normalized for s in row.breakdown.steps if name in s.components]
    return sum(values) if values else None


@drawn(30, 500, shaped_groups(), st.sampled_from(["group", "batch", "none"]))
def test_shaping_decides_between_equals(rows_and_valid, scale):
    rows, valid = rows_and_valid
    rows = [_failed(row) if not ok else row for row, ok in zip(rows, valid, strict=True)]
    batch = in_groups(rows, GROUP)
    method = advantage_method("group", "peers")
    formulas = [formula for group in method.compare(batch, scale) for formula in group]
    advantages = advantages_of(method, batch, scale, 3)
    every = [r.final_reward for r, counts in zip(rows, valid, strict=True) if counts]
    for i, row in enumerate(rows):
        places = range(i // GROUP * GROUP, i // GROUP * GROUP + GROUP)
        group = [rows[k] for k in places if valid[k]]
        expected = 0.0
        if valid[i]:
            goals = [r.final_reward for r in group]
            if scale == "batch":
                std = np.std(every, ddof=1) if len(every) > 1 else 0.0
                expected = (row.final_reward - np.mean(goals)) / (std + EPSILON) if len(goals) > 1 else 0.0
            else:
                expected = compared(row.final_reward, goals, scale == "group")
            equals = [r for r in group if r.final_reward == row.final_reward]
            for name, weight in SHAPES.items():
                value = sum_of(row, name)
                if value is not None:
                    values = [sum_of(r, name) for r in equals]
                    expected += weight * compared(value, [v for v in values if v is not None])
        assert np.allclose(advantages[i, : row.turns], expected, atol=1e-6)
        assert not advantages[i, row.turns :].any()
        formula = formulas[i]
        assert (formula is None) == (not valid[i])
        if formula is not None:
            assert formula.advantage(0) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(shaped_groups(), st.floats(1, 50))
def test_however_much_shaping_pays_an_advantage_moves_by_its_weights(rows_and_valid, louder):
    """Of n values none lies further than (n - 1) / sqrt(n) standard deviations from their mean."""
    rows, _ = rows_and_valid
    batch = in_groups([_louder(r, louder) for r in rows], GROUP)
    shaped = advantages_of(advantage_method("group", "peers"), batch, "group", 3)
    goals = [[dataclasses.replace(r.goal) for r in group] for group in batch]
    goal = advantages_of(advantage_method("group"), goals, "group", 3)
    assert np.abs(shaped - goal).max() <= sum(SHAPES.values()) * (GROUP - 1) / np.sqrt(GROUP) + 1e-9


def _failed(row):
    return dataclasses.replace(row, trajectory=dataclasses.replace(row.trajectory, stop_reason="error"))


def _louder(row, factor):
    steps = []
    for step in row.breakdown.steps:
        components = {
            name: ComponentValue(v.raw, v.normalized * factor, v.weight, v.contribution * factor)
            if name in SHAPES
            else v
            for name, v in step.components.items()
        }
        steps.append(StepReward(step.step, components, total=sum(c.contribution or 0.0 for c in components.values())))
    rewards = np.array([s.total for s in steps], np.float32)
    return dataclasses.replace(
        row, turn_rewards=rewards, breakdown=dataclasses.replace(row.breakdown, steps=tuple(steps))
    )


def test_without_shaping_equals_is_plain_grpo():
    batch = groups(np.array([[1.0], [0.0], [0.0], [1.0]]), np.ones((4, 1)))
    plain, equals = (advantage_method("group", among).compare(batch, "group") for among in ("group", "peers"))
    assert plain == equals


@drawn(70, 1000, st.lists(st.one_of(st.none(), st.floats(-1e3, 1e3)), min_size=2, max_size=16))
def test_means_are_bit_for_bit_those_of_torch_and_deviations_but_for_its_root(values):
    """An independent computation: up to 16 values, the sizes of groups, are summed in PyTorch's order."""
    present = torch.tensor([v is not None for v in values])
    tensor = torch.tensor([v or 0.0 for v in values], dtype=torch.float64)
    count = present.sum()
    mean = (tensor * present).sum() / count.clamp(min=1)
    squares = (((tensor - mean) * present) ** 2).sum()
    found = spread(values)
    assert (found.mean, found.size) == (mean.item(), count.item())
    std = (squares / (count - 1).clamp(min=1)).sqrt().item()  # PyTorch's root may be off by its last bit
    assert abs(found.std - std) <= np.spacing(std)
