"""Replace groups without signal, from the replay buffer or by other groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .replay import ReplayBuffer
from .rollout import Group, Rollout, Selected, rollouts_of


def fill_from_replay(groups: Sequence[Group], buffer: ReplayBuffer, step: int) -> list[Rollout]:
    """Return the batch with groups without signal replaced from the buffer (selective sample replay).

    Adds the groups with signal to the buffer afterwards. The batch keeps its order and size. Rollouts that the buffer
    cannot replace stay, with advantages of 0. So do those of solved groups: replacing them would teach nothing, and
    their KL to the reference, which replayed rollouts lack, holds the policy there.
    """
    replaced = [not g.signal and not g.solved for g in groups]
    drawn = buffer.sample(
        sum(len(g.rollouts) for g, is_replaced in zip(groups, replaced, strict=True) if is_replaced), step
    )
    drawn.reverse()
    batch: list[Rollout] = []
    for group, is_replaced in zip(groups, replaced, strict=True):
        for rollout in group.rollouts:
            if group.signal:
                batch.append(rollout)
            else:
                batch.append(drawn.pop() if is_replaced and drawn else rollout.without_gradient())
    buffer.add([r.for_loss() for r in rollouts_of([g for g in groups if g.signal])])
    return batch


def mark(groups: Sequence[Group], batch: Sequence[Rollout], filters: bool) -> list[Rollout]:
    """Return the rollouts of `groups`, each marked with its use in the step.

    batch: the trained rollouts, in the same order if it has replayed ones. filters: leave groups without signal out of
    training.
    """
    marked = []
    for index, (rollout, group) in enumerate((r, g) for g in groups for r in g.rollouts):
        replaced = index < len(batch) and batch[index].replayed
        if not rollout.scorable:
            word: Selected = "unscored"
        elif filters and not group.signal:
            word = "replaced" if replaced else "filtered"
        else:
            word = "trained"
        marked.append(replace(rollout, selected=word))
    return marked


def replace_without_signal(groups: Sequence[Group], extra: Sequence[Group]) -> list[Group]:
    """Replace groups without signal by those of `extra` with signal (dynamic sampling, DAPO)."""
    fresh = [g for g in reversed(extra) if g.signal]
    return [g if g.signal or not fresh else fresh.pop() for g in groups]
