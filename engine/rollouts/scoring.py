"""From rollouts to advantages: shaped rewards, group baselines, and what replaces groups without signal.

Runs on the main process over the whole batch, since groups, running statistics and the replay buffer belong to all
processes together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .advantages import Method, Scale, compare, has_signal, token_advantages
from .replay import ReplayBuffer
from .samples import Sample, pad_rows, rewards_by_turn


@dataclass
class Scored:
    """Scored rollouts of whole groups: `signal[g]` says whether group g can be learned from."""

    samples: list[Sample]
    signal: list[bool]
    metrics: dict[str, Any] = field(default_factory=dict)


class Scorer:
    """Scores whole groups of rollouts. Without an orchestrator the environment's own rewards count, as they are.

    `group_size` is the number of rollouts per prompt; `min_group_std`: see `ReplayConfig`.
    """

    def __init__(
        self,
        group_size: int,
        *,
        orchestrator: Any = None,
        method: Method = "group",
        scale: Scale = "group",
        min_group_std: float = 0.0,
    ) -> None:
        self.group_size = group_size
        self.orchestrator = orchestrator
        self.method: Method = method
        self.scale: Scale = scale
        self.min_group_std = min_group_std

    def score(self, samples: list[Sample]) -> Scored:
        """Fill `step_rewards`, `breakdown`, `advantages` and `formula` of all samples (prompt-major whole groups)."""
        metrics = self._rewards(samples)
        length, turns = max(len(s) for s in samples), max(max(s.turns for s in samples), 1)
        rewards = pad_rows([s.step_rewards for s in samples], turns, 0.0, torch.float64)
        mask = torch.arange(turns) < torch.tensor([s.turns for s in samples])[:, None]
        valid = torch.tensor([scorable(s) for s in samples])
        compared = compare(rewards, mask, self.group_size, self.method, self.scale, valid)
        per_token = token_advantages(
            compared.advantages(),
            pad_rows([s.turn for s in samples], length, -1, torch.long),
            pad_rows([s.agent_mask for s in samples], length, 0, torch.bool),
            self.method,
        ).float()
        for row, sample in enumerate(samples):
            sample.advantages = per_token[row, : len(sample)].numpy().copy()
            sample.formula = compared.formula(row)
            if self.method == "reward" and self.orchestrator is None:
                sample.advantages = sample.rewards.copy()  # exactly as the environment placed them
        signal = has_signal(rewards, mask, self.group_size, self.method, self.min_group_std, valid)
        return Scored(samples, signal.tolist(), metrics)

    def _rewards(self, samples: list[Sample]) -> dict[str, Any]:
        trajectories = [s.trajectory for s in samples]
        if self.orchestrator is None or any(t is None for t in trajectories):
            for sample in samples:
                sample.step_rewards = rewards_by_turn(sample)
            return {}
        embeddings = None
        if all(s.embeddings is not None for s in samples):
            embeddings = [torch.from_numpy(_per_step(s)) for s in samples]
        result = self.orchestrator.calculate_total_reward(
            trajectories,
            [t.correct for t in trajectories],  # type: ignore[union-attr]
            embeddings=embeddings,
            groups=[s.prompt for s in samples],
        )
        for row, sample in enumerate(samples):
            sample.breakdown = result.breakdowns[row]
            steps = len(sample.trajectory.steps)  # type: ignore[union-attr]
            sample.step_rewards = _at_turns(result.total[row, :steps].float().numpy(), sample)
        return dict(result.metrics)


def refill(scored: Scored, group_size: int, buffer: ReplayBuffer, step: int) -> tuple[list[Sample], int]:
    """Selective sample replay: the batch with the groups that carry no signal replaced from the buffer.

    Afterwards the groups with signal are in the buffer. Returns the batch, in order and as large as before, and how
    many of its rows were replayed. Rows that the buffer could not fill stay, with their zero advantages.
    """
    batch = list(scored.samples)
    empty = [g * group_size + r for g, signal in enumerate(scored.signal) if not signal for r in range(group_size)]
    drawn = buffer.sample(len(empty), step)
    for row, sample in zip(empty, drawn, strict=False):
        batch[row] = dataclasses.replace(sample, trajectory=None, replayed=True)
    silence(batch, [row for row in empty[len(drawn) :]])
    kept = [s for i, s in enumerate(scored.samples) if scored.signal[i // group_size]]
    buffer.add((dataclasses.replace(s, trajectory=None, breakdown=None, embeddings=None) for s in kept), step)
    return batch, len(drawn)


def silence(samples: Sequence[Sample], rows: Sequence[int]) -> None:
    """Set the advantages of these rows to zero: what is filtered out must not act as amplified noise."""
    for row in rows:
        advantages = samples[row].advantages
        if advantages is not None:
            samples[row].advantages = np.zeros_like(advantages)


def scorable(sample: Sample) -> bool:
    """False when the environment failed this rollout: what it earned says nothing about the policy."""
    return sample.trajectory is None or sample.trajectory.stop_reason not in ("error", "timeout")


def _per_step(sample: Sample) -> np.ndarray:
    """Embeddings [S, D], one for each step of the trajectory; a step without tokens gets the one before it."""
    steps = len(sample.trajectory.steps)  # type: ignore[union-attr]
    found = sample.embeddings
    assert found is not None
    if len(found) == steps:
        return found
    out = np.zeros((steps, found.shape[1]), np.float32)
    for i in range(min(steps, len(found))):
        out[i] = found[i]
    for i in range(len(found), steps):
        out[i] = out[i - 1] if i else 0.0
    return out


def _at_turns(rewards: np.ndarray, sample: Sample) -> np.ndarray:
    """Rewards per step of the trajectory as rewards per turn of tokens: a last step without tokens adds to the one
    before it, so that nothing is lost."""
    turns = sample.turns
    if len(rewards) == turns:
        return rewards.astype(np.float32)
    out = np.zeros(turns, np.float32)
    n = min(turns, len(rewards))
    out[:n] = rewards[:n]
    if turns:
        out[-1] += rewards[n:].sum()
    return out
