"""Replace groups without signal: by other groups, or by trajectories of a buffer (selective sample replay).

A group in which every rollout earned the same reward has no gradient. Selective sample replay (VL-Rethinker,
arXiv 2504.08837) replaces it by earlier trajectories with p ∝ |A|^α. Old ones mislead (arXiv 2604.16918), so the weight
decays with age, p ∝ |A|^α · exp(−age / τ), and beyond a maximum age nothing is drawn. A trajectory keeps its behaviour
log-probs as `old_per_token_logps`, so that the ratio corrects for the policy's changes since then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from ..policy.vision.processor import read_images, stored_images
from .rollout import Group, Rollout, Selected, rollouts_of

ARRAYS = ("token_ids", "agent_mask", "turn_ids", "rewards", "logprobs", "ref_logprobs", "advantages", "importance")
FACTS = ("group", "index", "final_reward", "policy_version", "id", "masked")


class ReplayBuffer:
    """At most `capacity` trajectories; ages are in optimiser steps."""

    def __init__(
        self, capacity: int = 1024, alpha: float = 1.0, tau: float = 4.0, max_age: int = 12, seed: int = 0
    ) -> None:
        self.capacity, self.alpha, self.tau, self.max_age = capacity, alpha, tau, max_age
        self.entries: list[Rollout] = []
        self._random = np.random.Generator(np.random.PCG64(seed))

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, rollouts: Iterable[Rollout]) -> None:
        """Keep rollouts with a non-zero advantage and known behaviour log-probs. Drops the oldest to make room."""
        self.entries += [r for r in rollouts if r.logprobs is not None and magnitude(r) > 0]
        del self.entries[: max(len(self.entries) - self.capacity, 0)]

    def expire(self, step: int) -> None:
        """Delete trajectories older than `max_age`."""
        self.entries = [r for r in self.entries if step - r.policy_version <= self.max_age]

    def weights(self, step: int) -> np.ndarray:
        """Return the probability of each entry to be drawn first at `step`, float64 [len(self)]; 0 beyond `max_age`."""
        age = np.array([step - r.policy_version for r in self.entries], dtype=np.float64)
        size = np.array([magnitude(r) for r in self.entries], dtype=np.float64)
        weight = np.where(age <= self.max_age, size**self.alpha * np.exp(-age / self.tau), 0.0)
        total = weight.sum()
        return weight / total if total > 0 else weight

    def sample(self, n: int, step: int) -> list[Rollout]:
        """Draw up to `n` distinct trajectories for `step`, with the probability of each; fewer if the buffer has no
        more."""
        self.expire(step)
        p = self.weights(step)
        n = min(n, int((p > 0).sum()))
        if n == 0:
            return []
        chosen = self._random.choice(len(p), size=n, replace=False, p=p)
        return [replace(self.entries[i], replayed=True, draw_probability=float(p[i])) for i in chosen]

    def save(self, folder: Path) -> None:
        """Write `replay.safetensors` and `replay.json` into `folder`."""
        arrays: dict[str, np.ndarray] = {}
        for name in ARRAYS:
            found = ((getattr(r, name), len(r)) for r in self.entries)
            parts = [np.zeros(length, np.float32) if part is None else part for part, length in found]
            if parts:
                arrays[name] = np.concatenate(parts)
        pixels, images = stored_images([r.images for r in self.entries])
        save_file(arrays | pixels, folder / "replay.safetensors")
        facts = {
            "lengths": [len(r) for r in self.entries],
            "absent": [[name for name in ARRAYS if getattr(r, name) is None] for r in self.entries],
            **{name: [getattr(r, name) for r in self.entries] for name in FACTS},
            "images": images,
            "random": self._random.bit_generator.state,
        }
        (folder / "replay.json").write_text(json.dumps(facts))

    def load(self, folder: Path) -> None:
        """Load the result of `save`. Capacity, alpha, tau and maximum age stay this buffer's own."""
        facts: Mapping[str, Any] = json.loads((folder / "replay.json").read_text())
        arrays = load_file(folder / "replay.safetensors")
        starts = np.cumsum([0, *facts["lengths"]])
        shown = read_images(arrays, facts["images"])
        self.entries = []
        for i, absent in enumerate(facts["absent"]):
            present = [name for name in ARRAYS if name not in absent]
            parts: dict[str, Any] = {name: arrays[name][starts[i] : starts[i + 1]].copy() for name in present}
            known = {name: facts[name][i] for name in FACTS}
            self.entries.append(Rollout(**parts, **known, images=shown[i]))
        del self.entries[: max(len(self.entries) - self.capacity, 0)]
        self._random.bit_generator.state = facts["random"]


def magnitude(rollout: Rollout) -> float:
    """Return |A| of a rollout: the mean of |advantage| over its agent tokens."""
    if rollout.advantages is None or not rollout.agent_mask.any():
        return 0.0
    return float(np.abs(rollout.advantages[rollout.agent_mask]).mean())


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
