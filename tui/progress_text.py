"""The progress of a run within its step in words, for the dashboard and for plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..engine.runs.control.live import BatchState, LiveState
from ..engine.runs.types import Phase, Progress
from .format import count, duration, number

PHASES = ("rollouts", "log-probs", "scoring", "backward")
"""The phases of a step, in order."""


def current_batches(live: LiveState | None) -> Sequence[BatchState]:
    """Return the batches in progress, or the last one if none is."""
    if live is None or not live.batches:
        return ()
    return [b for b in live.batches if not b.ended] or live.batches[-1:]


def inside(progress: Progress | None, live: LiveState | None) -> Progress | None:
    """Return the progress with the rollouts that have ended since the environment last counted them."""
    batches = current_batches(live)
    if progress is None or progress.phase not in (Phase.ROLLOUTS, Phase.EVALUATION) or not batches:
        return progress
    finished, total = sum(b.finished for b in batches), sum(b.rollouts for b in batches)
    if total < progress.total:  # sequential batches: `progress` counts the rollouts of finished ones
        return replace(progress, done=min(progress.total, progress.done + finished * (not batches[-1].ended)))
    return replace(progress, done=max(progress.done, finished))


def phase_left(progress: Progress, live: LiveState | None, now: float) -> str:
    """Return `about 12 s left`, estimated from the last duration of the phase or from its pace, `≤ … left` from its
    limit, or `… so far`."""
    elapsed = 0.0 if progress.began is None else max(0.0, now - progress.began)
    if progress.took is not None and progress.took - elapsed >= 1:
        return f"about {duration(progress.took - elapsed)} left"
    if progress.phase not in (Phase.ROLLOUTS, Phase.EVALUATION) and progress.done and elapsed:
        return f"about {duration(elapsed / progress.done * (progress.total - progress.done))} left"
    limits = [b.left - max(0.0, now - b.time) for b in current_batches(live) if b.left is not None and not b.ended]
    if limits and max(limits) >= 1 and progress.phase in (Phase.ROLLOUTS, Phase.EVALUATION):
        return f"≤ {duration(max(limits))} left"
    return f"{duration(elapsed)} so far" if elapsed >= 1 else ""


def rollouts_line(batches: Sequence[BatchState], left: str) -> list[str]:
    """Return `12 of 32 rollouts`, `1,340 of ≤ 8,192 tokens`, `85 tok/s`, `about 20 s left`, `reward 0.31 of 12`."""
    finished, total = sum(b.finished for b in batches), sum(b.rollouts for b in batches)
    tokens, limit = sum(b.tokens for b in batches), sum(b.limit for b in batches)
    parts = [f"{count(finished)} of {count(total)} rollouts"]
    limited = tokens <= limit and not all(b.ended for b in batches)
    parts.append(f"{count(tokens)} of ≤ {count(limit)} tokens" if limited else count(tokens, "token"))
    rates = [rate for b in batches if (rate := b.tokens_a_second) is not None]
    if rates:
        parts.append(f"{number(sum(rates))} tok/s")
    if left:
        parts.append(left)
    rewards = [r for b in batches for r in b.rewards]
    if rewards:
        parts.append(f"reward {number(sum(rewards) / len(rewards))} of {len(rewards)}")
    return parts
