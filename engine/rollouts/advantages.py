"""Advantages of rollouts: applies `rewards.advantages` to their rewards and maps the result to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...configs.errors import GrpoTuiError
from ...configs.sections.rewards import SHAPED
from ...configs.sections.training import METHODS
from ...envs.user_code import UserCodeError, find_class
from ...rewards.advantages import AdvantageMethod, packaged_method
from ...rewards.advantages.base import Among, Returns, Scale, parts_of, states_of
from ...rewards.breakdown import AdvantageFormula
from .rollout import Rollout


class AdvantageError(GrpoTuiError, ValueError):
    """Unknown method of computing advantages. The message lists the known ones."""


def advantage_method(name: str, among: Among = "peers") -> AdvantageMethod:
    """Return the method of `METHODS` called `name`, or the user's class at `package.module.Class` or `file.py:Class`.

    among: what `group` and `gdpo` compare shaping with. Raises AdvantageError.
    """
    if name in METHODS:
        return packaged_method(name, among)
    if "." not in name:
        raise AdvantageError(f'unknown training.advantages "{name}": use {", ".join(METHODS)}, or file.py:Class')
    try:
        found = find_class(name)
    except UserCodeError as problem:
        raise AdvantageError(f"training.advantages: {problem}") from problem
    if not issubclass(found, AdvantageMethod):
        raise AdvantageError(f"training.advantages: {name} is not a subclass of AdvantageMethod")
    return found()


def returns_of(rollout: Rollout) -> Returns:
    """Return the rewards of a rollout in the form that advantage methods take."""
    return Returns(
        turns=rollout.turn_rewards.astype(np.float64).tolist(),
        unshaped=unshaped_rewards(rollout).astype(np.float64).tolist(),
        parts=None if rollout.breakdown is None else parts_of(rollout.breakdown, SHAPED),
        right=rollout.trajectory is not None and rollout.trajectory.correct is True,
        scored=rollout.scorable,
        states=states_of(rollout.trajectory, rollout.turns),
        branch=None if rollout.trajectory is None else rollout.trajectory.branch,
    )


def in_groups(rollouts: Sequence[Rollout], group_size: int) -> list[list[Returns]]:
    """Return the rewards of whole groups of `group_size` consecutive rollouts. Raises ValueError for other numbers."""
    if not rollouts or len(rollouts) % group_size:
        raise ValueError(f"{len(rollouts)} rollouts are not whole groups of {group_size}")
    returns = [returns_of(rollout) for rollout in rollouts]
    return [returns[i : i + group_size] for i in range(0, len(returns), group_size)]


def with_advantages(
    rollouts: Sequence[Rollout], groups: Sequence[Sequence[Returns]], method: AdvantageMethod, scale: Scale
) -> list[Rollout]:
    """Return the same rollouts with `advantages` and `formula`."""
    formulas = [formula for group in method.compare(groups, scale) for formula in group]
    return [
        replace(rollout, advantages=per_token(formula, rollout, method.on_last_token), formula=formula)
        for rollout, formula in zip(rollouts, formulas, strict=True)
    ]


def per_token(formula: AdvantageFormula | None, rollout: Rollout, on_last_token: bool) -> np.ndarray:
    """Spread the advantages of turns over the agent's tokens, float32 [T]; 0 elsewhere.

    on_last_token: use only the last token of each turn. Unshaped rewards then stay where the environment placed them.
    """
    if on_last_token and rollout.breakdown is None:
        return rollout.rewards.copy()
    out = np.zeros(len(rollout), np.float32)
    chosen = (last_of_turn(rollout) if on_last_token else rollout.agent_mask) & (rollout.turn_ids >= 0)
    if formula is not None and chosen.any():
        values = np.array([formula.advantage(turn) or 0.0 for turn in range(rollout.turns)])
        out[chosen] = values[rollout.turn_ids[chosen]]
    return out


def last_of_turn(rollout: Rollout) -> np.ndarray:
    """Return True at the last agent token of each turn, bool [T]."""
    out = np.zeros(len(rollout), bool)
    agent = np.flatnonzero(rollout.agent_mask & (rollout.turn_ids >= 0))
    turns = rollout.turn_ids[agent]
    out[agent[np.append(turns[1:] != turns[:-1], True)[: len(agent)]]] = True
    return out


def by_turn(rewards: np.ndarray, turns: int) -> np.ndarray:
    """Sum rewards per step of the trajectory into rewards per turn of tokens, float32 [turns].

    A last step without tokens adds to the turn before it, which preserves the sum.
    """
    out = np.zeros(turns, np.float32)
    n = min(turns, len(rewards))
    out[:n] = rewards[:n]
    if turns:
        out[-1] += rewards[n:].sum()
    return out


def unshaped_rewards(rollout: Rollout) -> np.ndarray:
    """Return the reward of each turn without `SHAPED` components, float32 [S]."""
    if rollout.breakdown is None:
        return rollout.turn_rewards
    steps = [
        sum(value.contribution or 0.0 for name, value in step.components.items() if name not in SHAPED)
        for step in rollout.breakdown.steps
    ]
    return by_turn(np.array(steps, np.float32), rollout.turns)
