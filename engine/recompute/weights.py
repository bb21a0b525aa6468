"""Weights of reward components that a dump does not write: those that give the rewards of all but a few rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .items import Item
from .ledger import Report

CLOSE = 1e-6
FEWEST = 12
"""Rollouts that must fit before weights count as found."""


def fitted(rollouts: Sequence[tuple[Item, dict[str, float]]], report: Report) -> None:
    """Find the weights of components, and name the rollouts whose reward is another than their sum."""
    names = sorted({name for _, values in rollouts for name in values})
    whole = [(item, values) for item, values in rollouts if len(values) == len(names)]
    if not names or len(whole) < max(FEWEST, 2 * len(names)):
        if rollouts:
            report.given["weighted sum of rewards"] = "the weights are not recorded, and too few rollouts show them"
        return
    rows = [[values[name] for name in names] for _, values in whole]
    rewards = [item.row.reward or 0.0 for item, _ in whole]
    kept = list(range(len(rows)))
    weights = _solved([rows[i] for i in kept], [rewards[i] for i in kept])
    for _ in range(max(3, len(rows) // 50)):
        gaps = {i: abs(_dot(rows[i], weights) - rewards[i]) for i in kept}
        worst = max(gaps, key=lambda i: gaps[i])
        if gaps[worst] <= CLOSE * max(1.0, abs(rewards[worst])):
            break
        # Without the rollout that keeps the others farthest from one solution.
        trials = {i: [k for k in kept if k != i] for i in sorted(kept, key=lambda i: -gaps[i])[:8]}
        solved = {i: _solved([rows[k] for k in t], [rewards[k] for k in t]) for i, t in trials.items()}
        left = {i: math.fsum((_dot(rows[k], solved[i]) - rewards[k]) ** 2 for k in trials[i]) for i in trials}
        gone = min(left, key=lambda i: left[i])
        kept, weights = trials[gone], solved[gone]
    if any(abs(_dot(rows[i], weights) - rewards[i]) > CLOSE * max(1.0, abs(rewards[i])) for i in kept):
        report.given["weighted sum of rewards"] = "the weights are not recorded, and no weights give the rewards"
        return
    found = ", ".join(f"{name} {w:.4g}" for name, w in zip(names, weights, strict=True))
    report.given["weights of rewards"] = f"not recorded; those that give {len(kept):,} rewards are {found}"
    for (item, _), row, reward in zip(whole, rows, rewards, strict=True):
        right = _dot(row, weights)
        report.number(item.place, "weighted sum of rewards", reward, right, tolerance=2 * CLOSE, size=1.0)


def _dot(row: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(row, weights, strict=True))


def _solved(rows: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return the least-squares solution. A component that others determine gets the weight 0."""
    n = len(rows[0])
    matrix = [[math.fsum(row[i] * row[j] for row in rows) for j in range(n)] for i in range(n)]
    for i in range(n):
        matrix[i].append(math.fsum(row[i] * y for row, y in zip(rows, right, strict=True)))
    pivots: list[tuple[int, int]] = []
    for column in range(n):
        used = {r for r, _ in pivots}
        free = [r for r in range(n) if r not in used]
        best = max(free, key=lambda r: abs(matrix[r][column]))
        if abs(matrix[best][column]) <= 1e-9 * (1 + max(abs(v) for v in matrix[best])):
            continue
        pivots.append((best, column))
        for r in range(n):
            if r != best:
                factor = matrix[r][column] / matrix[best][column]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[best], strict=True)]
    weights = [0.0] * n
    for row, column in pivots:
        weights[column] = matrix[row][n] / matrix[row][column]
    return weights
