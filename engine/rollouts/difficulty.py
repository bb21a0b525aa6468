"""`data.sampler: difficulty` prefers prompts that the policy solves sometimes.

A prompt's pass rate p has a Beta posterior, whose parameters are 1 plus its discounted counts of passes and fails.
Before new rollouts of a prompt are counted, its counts shrink by `DISCOUNT`, because the policy has changed (MoPPS,
arXiv 2507.04632). A prompt's weight is the expected variance of its outcome (learnability, arXiv 2502.12272):

    E[p (1 − p)] = a b / ((a + b) (a + b + 1))        for p ~ Beta(a, b)

The weight never reaches 0, so prompts that are always right or always wrong are still drawn from time to time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ...configs import metric_names as metric
from ...configs.errors import GrpoTuiError
from .rollout import Rollout

DISCOUNT = 0.5
"""The factor for a prompt's counts at its next rollouts."""
FILE = "difficulty.json"

Outcome = tuple[str, bool]
"""The id of a prompt, and whether a rollout of it was right."""


class PassRatesError(GrpoTuiError, ValueError):
    """`data.pass_rates` names no run with outcomes. The message is one sentence."""


class Difficulty:
    """The posterior of every prompt. ids: the prompt of each of the N rows. Rows of one prompt share its counts."""

    def __init__(self, ids: Sequence[str], seed: int = 0) -> None:
        self.seed = seed
        self._index = {id_: index for index, id_ in enumerate(dict.fromkeys(ids))}
        self._prompts = np.array([self._index[id_] for id_ in ids])
        self.counts = np.zeros((len(self._index), 2))
        """Discounted passes and fails of each prompt, float64 [P, 2]."""
        self._drawn: dict[int, list[int]] = {}

    @property
    def weights(self) -> np.ndarray:
        """Return the probability of each row to be drawn first, float64 [N]."""
        a, b = self.counts.T + 1.0
        found = (a * b / ((a + b) * (a + b + 1.0)))[self._prompts]
        return found / found.sum()

    @property
    def pass_rates(self) -> np.ndarray:
        """Return the posterior mean of each row, float64 [N]."""
        a, b = self.counts.T + 1.0
        return (a / (a + b))[self._prompts]

    def draw(self, n: int, step: int) -> list[int]:
        """Return `n` rows for a step, distinct if there are enough. A step that was drawn keeps its rows."""
        if step not in self._drawn:
            random = np.random.default_rng([self.seed, step, 1])
            rows = len(self._prompts)
            self._drawn[step] = random.choice(rows, n, replace=n > rows, p=self.weights).tolist()
        return self._drawn[step]

    def after(self, step: int, rollouts: Iterable[Rollout]) -> dict[str, float]:
        """Learn from the rollouts of a drawn step. Returns the metrics of its draw."""
        drawn = self._drawn.get(step, [])
        metrics = {
            metric.DRAWN_PASS_RATE: float(self.pass_rates[drawn].mean()),
            metric.PROMPTS_KNOWN: self.known,
        }
        self._drawn = {later: rows for later, rows in self._drawn.items() if later > step}
        done = [r.trajectory for r in rollouts if r.trajectory is not None and r.scorable]
        self.learn([(t.prompt_id, t.correct) for t in done if t.correct is not None])
        return metrics

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Add the outcomes of one step. Other prompts are ignored."""
        found = np.zeros_like(self.counts)
        for id_, right in outcomes:
            if (index := self._index.get(id_)) is not None:
                found[index, 0 if right else 1] += 1.0
        seen = found.sum(1) > 0
        self.counts[seen] = DISCOUNT * self.counts[seen] + found[seen]

    @property
    def known(self) -> float:
        """The share of prompts with outcomes."""
        return float((self.counts.sum(1) > 0).mean())

    def begin(self, run: str, steps: Iterable[Sequence[Outcome]]) -> float:
        """Learn from the steps of an earlier run. Returns the share of prompts that it contains.

        Raises PassRatesError if it contains none of them.
        """
        for outcomes in steps:
            self.learn(outcomes)
        if not self.counts.any():
            raise PassRatesError(f"data.pass_rates: the run {run} has rollouts of other prompts only")
        return self.known

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(self.counts.tolist()))

    def load(self, folder: Path) -> None:
        self.counts = np.array(json.loads((folder / FILE).read_text()), dtype=np.float64).reshape(self.counts.shape)
