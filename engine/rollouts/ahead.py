"""Make groups of later steps while the trainer works.

When step k begins, version k of the policy starts the groups of the steps up to k + `steps_ahead`. Step k then trains
on as many groups as it has prompts. It waits for groups that would be more than `max_staleness` steps old in the next
step. It fills up with complete groups, oldest first:

    steps_ahead = max_staleness   each step trains on its own prompts
    steps_ahead < max_staleness   a slow group delays no step for `max_staleness` steps; groups of later steps replace
                                  it

One version makes all rollouts of a group. Checkpoints contain none of this. A resumed run repeats the generation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from .rollout import Rollout

Plan = TypeVar("Plan")
Version = TypeVar("Version")
Made = Future[list[Rollout]]
"""The rollouts of one group, once they are made."""


@dataclass(eq=False)
class _StartedGroup:
    """A started group. planned: its step and its index in it. version: steps of the policy that makes it."""

    planned: tuple[int, int]
    version: int
    made: Made
    ready: float = 0.0


@dataclass(frozen=True)
class Taken:
    """Rollouts of a step, numbered by group. idle_s: how long the trainer waited for them. wait_s: how long the last of
    them had been ready before the trainer asked."""

    rollouts: list[Rollout]
    idle_s: float
    wait_s: float


@dataclass
class RolloutsAhead(Generic[Plan, Version]):
    """Starts groups of later steps and hands them out. make(plans, step, version): starts the groups of a step, returns
    a future for each. holding(version): entered when groups begin, left when all groups of that step are made."""

    make: Callable[[Sequence[Plan], int, Version], Sequence[Made]]
    max_staleness: int
    steps_ahead: int
    holding: Callable[[Version], AbstractContextManager[None]] = lambda version: nullcontext()
    _plans: dict[int, Sequence[Plan]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    """Groups of each started step."""
    _groups: list[_StartedGroup] = field(default_factory=list)
    """Groups that no step has taken, in the order in which they began."""

    def plan(self, step: int, plans: Sequence[Plan]) -> None:
        """Add the groups of a later step. They begin when their turn comes."""
        if step not in self._sizes:
            self._plans.setdefault(step, plans)

    def version(self, number: int, version: Version) -> None:
        """Begin the groups that may begin with this version of the policy, which has made `number` steps."""
        for step, plans in sorted(self._plans.items()):
            if step > number + self.steps_ahead:
                break
            del self._plans[step]
            if step > number:
                self._begin(step, plans, number, version)

    def take(self, step: int) -> Taken | None:
        """Return rollouts for a step once there are enough; None if none began for it. Raises any error of making
        them."""
        size = self._sizes.pop(step, None)
        if size is None:
            return None
        started = time.perf_counter()
        while (chosen := self._chosen(step, size)) is None:
            wait([g.made for g in self._groups if not g.made.done()], return_when=FIRST_COMPLETED)
        self._groups = [g for g in self._groups if g not in chosen]
        groups = [g.made.result() for g in sorted(chosen, key=lambda g: g.planned)]
        rollouts = [replace(r, group=number) for number, group in enumerate(groups) for r in group]
        ready = max((g.ready for g in chosen), default=started)
        return Taken(rollouts, time.perf_counter() - started, max(started - ready, 0.0))

    def _chosen(self, step: int, size: int) -> list[_StartedGroup] | None:
        """Return the groups of a step, or None if a due group is unfinished or there are too few."""
        due = [g for g in self._groups if step - g.version >= self.max_staleness]
        others = [g for g in self._groups if g not in due and g.made.done()]
        found = [*due, *others][:size]
        return found if len(found) == size and all(g.made.done() for g in found) else None

    def _begin(self, step: int, plans: Sequence[Plan], number: int, version: Version) -> None:
        stack = ExitStack()
        stack.enter_context(self.holding(version))  # enter here: the next version may come before a thread runs
        groups = [_StartedGroup((step, i), number, future) for i, future in enumerate(self.make(plans, step, version))]
        self._sizes[step] = len(groups)
        self._groups += groups
        left = [len(groups)]

        def release(group: _StartedGroup, _: Made) -> None:
            group.ready = time.perf_counter()
            left[0] -= 1
            if left[0] == 0:
                stack.close()

        for group in groups:
            group.made.add_done_callback(partial(release, group))
        if not groups:
            stack.close()
