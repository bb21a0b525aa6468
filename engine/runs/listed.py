"""What lists and filters see of a trajectory: the one thing that a row is made of, whoever recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...envs.tools import ToolSpec
from ...envs.trajectory import TEXT, Trajectory
from . import codec
from .schema import FLAG_AGREES, FLAG_DISAGREES, FLAG_ERROR, FLAG_NAN, FLAG_SENT, FLAG_UNPARSED
from .types import TrajectoryRecord


class Listed(NamedTuple):
    """One trajectory without its text. A named tuple, because a dump of another framework has millions of them.

    `labels`: of each call, or of the words of a turn without one; None where its turns are not known yet; `rules`: of
    the penalties that it got; `flags`: bits
    of `schema.FLAG_…`; `head`: the beginning of its prompt, or more of it; `uses`: bits of what its own step's update
    did with it.
    """

    id: str
    step: int | None
    group: str
    prompt_id: str
    rollout: int
    env: str
    split: str
    stop: str
    reward: float | None
    advantage: float | None
    correct: bool | None
    labels: Sequence[str] | None
    flags: int
    head: str
    answer: str | None = None
    tokens: int | None = None
    version: int | None = None
    rules: Sequence[str] = ()
    tools: tuple[ToolSpec, ...] = ()
    extra: Mapping[str, Any] = {}
    uses: int | None = None
    gate: str | None = None
    confidence: float | None = None
    turns: int | None = None
    """Where a turn may have several labels; else there are as many as labels."""


def listed(step: int | None, record: TrajectoryRecord) -> Listed:
    """What lists see of a whole record."""
    trajectory, breakdown, served = record.trajectory, record.breakdown, record.served
    return Listed(
        id=trajectory.id,
        step=step,
        group=trajectory.group,
        prompt_id=trajectory.prompt_id,
        rollout=trajectory.rollout,
        env=trajectory.env,
        split=record.split,
        stop=trajectory.stop_reason,
        reward=trajectory.own_reward if breakdown is None else breakdown.total,
        advantage=record.advantage,
        correct=trajectory.correct,
        labels=[label for s in trajectory.steps for label in s.labels],
        turns=len(trajectory.steps),
        flags=_flags(record),
        head=trajectory.prompt,
        answer=_said(trajectory),
        tokens=record.token_count if record.tokens is None else len(record.tokens),
        version=record.policy_version,
        rules=[p.rule for p in breakdown.penalties] if breakdown is not None else (),
        tools=trajectory.tools,
        extra=trajectory.extra,
        uses=None if record.use is None else record.use.mask,
        gate=None if served is None else served.gate,
        confidence=None if served is None else served.confidence,
    )


def _said(trajectory: Trajectory) -> str | None:
    """The answer; of a rollout that wrote nothing but text and has none, such as one that was cut, that text."""
    if trajectory.answer is None and trajectory.steps and all(s.label == TEXT for s in trajectory.steps):
        return trajectory.steps[-1].text
    return trajectory.answer


def _flags(record: TrajectoryRecord) -> int:
    """The bits of the column `flags`."""
    trajectory, served = record.trajectory, record.served
    flags = FLAG_ERROR if trajectory.error or any(s.error for s in trajectory.steps) else 0
    flags |= FLAG_UNPARSED if any(s.unreadable for s in trajectory.steps) else 0
    flags |= 0 if codec.is_finite(record) else FLAG_NAN
    if served is not None:
        flags |= FLAG_SENT if served.sent else 0
        flags |= {True: FLAG_AGREES, False: FLAG_DISAGREES, None: 0}[served.agrees]
    return flags
