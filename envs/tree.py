"""Tree rollouts: the later rollouts of a task branch from a turn of an earlier one.

The first `fresh` rollouts of a task start at its prompt. Once they have ended, each other rollout takes one of them, in
rotation, as its parent and picks a random turn after the first. It repeats the parent's turns before that turn: the
environment executes the same calls again, and the session copies the tokens. Then the policy continues.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ..configs.errors import GrpoTuiError
from .agent import AgentSession, AgentTurn, AsyncAgentSession, BranchingSession, Seed, ShownImage
from .base import Picture
from .live_rollout import LiveRollout
from .seeds import seed_of
from .trajectory import TokenArrays


class BranchError(GrpoTuiError, ValueError):
    """Rollouts cannot branch: the agent does not support it, or the environment is not deterministic."""


@dataclass(eq=False)
class TreeSession:
    """A session whose branching rows first repeat turns of their parents. rollouts: all rows, task by task."""

    session: BranchingSession
    rollouts: Sequence[LiveRollout]
    fresh: int
    num_rollouts: int
    seed: Seed

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        turns = {row: turn for row in rows if (turn := self._repeated(row)) is not None}
        free = [row for row in rows if row not in turns]
        if free:
            turns |= zip(free, self.session.act(free), strict=True)
        return [turns[row] for row in rows]

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        if kept := self._new(rows):
            self.session.observe([rows[i] for i in kept], [observations[i] for i in kept])

    def observe_seen(
        self, rows: Sequence[int], observations: Sequence[str], pictures: Sequence[Sequence[Picture]]
    ) -> None:
        if kept := self._new(rows):
            self.session.observe_seen(*([column[i] for i in kept] for column in (rows, observations, pictures)))  # type: ignore[attr-defined]

    def shown(self, row: int) -> Sequence[ShownImage]:
        return self.session.shown(row)  # type: ignore[attr-defined]

    def tokens(self, row: int) -> TokenArrays:
        return self.session.tokens(row)

    def close(self) -> None:
        self.session.close()

    def _repeated(self, row: int) -> AgentTurn | None:
        """Return the parent's turn that a row repeats next, or None if the policy is to generate."""
        rollout = self.rollouts[row]
        if rollout.number >= self.fresh and not rollout.steps:
            self._branch(row, rollout)
        if rollout.parent is None or len(rollout.steps) >= rollout.shared:
            return None
        step = rollout.parent.steps[len(rollout.steps)]
        return AgentTurn(
            step.text, step.token_span, step.stop_reason, policy_version=step.policy_version, server=step.server
        )

    def _branch(self, row: int, rollout: LiveRollout) -> None:
        """Choose parent and turn. If no rollout has a second turn, the row starts at the prompt."""
        first, task = row - rollout.number, row // self.num_rollouts
        able = [r for r in self.rollouts[first : first + self.fresh] if r.error is None and len(r.steps) > 1]
        if not able:
            return
        parts = (self.seed, task) if isinstance(self.seed, int) else (self.seed[task],) if self.seed else None
        drawn = random.Random(None if parts is None else seed_of(*parts, "branch", rollout.number))
        rollout.parent = able[(rollout.number - self.fresh) % len(able)]
        rollout.shared = drawn.randrange(1, len(rollout.parent.steps))

    def _new(self, rows: Sequence[int]) -> list[int]:
        """Return the indices of rows whose last turn was new. Copy the tokens to rows that have repeated all turns."""
        kept = []
        for index, row in enumerate(rows):
            rollout = self.rollouts[row]
            if rollout.parent is None or len(rollout.steps) > rollout.shared:
                kept.append(index)
            elif len(rollout.steps) == rollout.shared:
                self.session.branch(row, row - rollout.number + rollout.parent.number, rollout.shared)
        return kept


class AsyncTreeSession(TreeSession):
    """`TreeSession` for an `AsyncAgentSession`."""

    async def act_alone(self, row: int) -> AgentTurn:
        repeated = self._repeated(row)
        return await self.session.act_alone(row) if repeated is None else repeated  # type: ignore[attr-defined]


def tree_session(
    session: AgentSession, rollouts: Sequence[LiveRollout], fresh: int | None, num_rollouts: int, seed: Seed
) -> AgentSession:
    """Add branching to `session` unless `fresh` is None. Raises BranchError if the agent does not support it."""
    if fresh is None:
        return session
    if not isinstance(session, BranchingSession):
        raise BranchError(
            f"training.advantages: tree needs sessions that can branch, but {type(session).__name__} cannot"
        )
    kind = AsyncTreeSession if isinstance(session, AsyncAgentSession) else TreeSession
    return kind(session, rollouts, fresh, num_rollouts, seed)


def check_repeated(rollout: LiveRollout) -> None:
    """Compare the observation after a repeated turn with the parent's. Raises BranchError if they differ."""
    number = len(rollout.steps)
    if rollout.parent is None or number > rollout.shared or rollout.error is not None:
        return
    now, before = rollout.steps[-1], rollout.parent.steps[number - 1]
    if not rollout.live or (now.observation, now.error) != (before.observation, before.error):
        raise BranchError(
            "the environment is not deterministic, so its rollouts cannot branch (training.advantages: tree): turn "
            f"{number} returned {before.observation[:80]!r}, and {now.observation[:80]!r} when repeated"
        )
