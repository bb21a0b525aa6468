"""Finds sources of feedback that contradict the others, by the directions of their updates.

No two sources judge the same answer, so their labels cannot be compared. Their gradients can: sources that want the
same of the policy pull its parameters in the same direction, whatever they were asked about. FLTrust
(arXiv 2012.13995) leaves out contributions whose gradient has a negative cosine with a trusted one. Here the other
sources of the same level take the place of the trusted one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

SIZE = 1024
"""Numbers in a sketch. Cosines of sketches are off by about 1 / √SIZE."""
DECAY = 0.99
"""Weight of a source's older updates, per update of this source."""
LEAST_UPDATES = 8
"""Updates of a source before it is compared."""
LEAST_SOURCES = 3
"""Of two sources that contradict each other, either may be wrong."""
LIMIT = -3.0
"""Standard errors below 0 at which a source contradicts the others."""
MOST_SOURCES = 64
"""Sources that are remembered, the latest ones."""


class Agreement:
    """The summed directions of each source's updates.

    A source is `caller` or `caller/user`. Callers are compared with callers, and users with the other users of their
    caller, so that invented users cannot outvote other callers. Each source counts once, however much feedback it
    gives.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        """Sums of unit vectors [SIZE], float64, the latest source last."""
        self._counts: dict[str, float] = {}
        self._squares, self._compared = 1.0, 1.0
        """The sum and number of the squared cosines of updates with other sources."""

    def contradicts(self, levels: Sequence[str], gradients: Iterable[Tensor]) -> bool:
        """Add an update's gradient to its source; return whether the source contradicts the others.

        levels: the names of the source, from the caller to the user.
        """
        drawn = sketch(gradients) if levels else torch.zeros(SIZE)
        size = float(drawn.norm())
        if not size or not math.isfinite(size):
            return False
        unit = drawn / size
        for name in levels:
            others = self._direction(other for other in self._peers(name) if other != name)
            if others is not None:
                self._squares += float(unit @ others) ** 2
                self._compared += 1
            self._sums[name] = DECAY * self._sums.pop(name, torch.zeros(SIZE, dtype=torch.float64)) + unit
            self._counts[name] = DECAY * self._counts.get(name, 0.0) + 1
            if len(self._sums) > MOST_SOURCES:
                oldest = next(iter(self._sums))
                del self._sums[oldest], self._counts[oldest]
        return any(name not in self._agreeing(name) for name in levels)

    def _agreeing(self, name: str) -> set[str]:
        """Return the sources of this level without those that contradict the rest, the worst one first."""
        left = {peer for peer in self._peers(name) if self._counts[peer] >= LEAST_UPDATES}
        while len(left) >= LEAST_SOURCES:
            scores = {peer: self._score(peer, left - {peer}) for peer in left}
            worst = min(scores, key=lambda peer: scores[peer])
            if scores[worst] > LIMIT:
                break
            left.discard(worst)
        return left if self._counts[name] >= LEAST_UPDATES else left | {name}

    def _score(self, name: str, others: Iterable[str]) -> float:
        """Return the component of a source's sum along the others' direction, in standard errors."""
        direction = self._direction(others)
        if direction is None:
            return 0.0
        return float(self._sums[name] @ direction) / math.sqrt(self._counts[name] * self._squares / self._compared)

    def _direction(self, names: Iterable[str]) -> Tensor | None:
        """Return the unit vector of these sources' mean direction; None if they have none."""
        sums = [self._sums[name] / self._sums[name].norm().clamp_min(1e-12) for name in names]
        total = torch.stack(sums).sum(0) if sums else torch.zeros(SIZE)
        return total / total.norm() if float(total.norm()) > 1e-9 else None

    def _peers(self, name: str) -> list[str]:
        parent = name.rpartition("/")[0]
        return [known for known in self._sums if known.rpartition("/")[0] == parent]

    def state_dict(self) -> dict[str, Any]:
        sums = {name: [self._counts[name], vector.tolist()] for name, vector in self._sums.items()}
        return {"sums": sums, "squares": self._squares, "compared": self._compared}

    def load_state_dict(self, state: Any) -> None:
        sums = state["sums"].items()
        self._sums = {name: torch.tensor(vector, dtype=torch.float64) for name, (_, vector) in sums}
        self._counts = {name: float(count) for name, (count, _) in sums}
        self._squares, self._compared = float(state["squares"]), float(state["compared"])


def sketch(tensors: Iterable[Tensor]) -> Tensor:
    """Return a random projection of all numbers to [SIZE], float64, the same at every call.

    Each number is added to one place with a random sign (a count sketch), so inner products are kept in expectation.
    """
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(SIZE, dtype=torch.float64)
    for tensor in tensors:
        flat = tensor.detach().flatten().float().cpu()
        signs = torch.randint(0, 2, flat.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
        flat = torch.nn.functional.pad(flat * signs, (0, -len(flat) % SIZE))
        total += flat.view(-1, SIZE).sum(0)
    return total
