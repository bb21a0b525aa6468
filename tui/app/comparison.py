"""Two rollouts aligned, as data: which steps stand beside each other, where the two part, which words differ."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ...engine.runs.types import Step, TrajectoryRecord
from .brief import arguments_text
from .calls import summary

_WORDS = 400
"""Words of a field that are compared; beyond, the texts are shown unmarked."""
_CHARACTERS = 40_000
_ALIKE = 200
"""Characters of each argument by which calls are told apart before they are compared."""
_ALIGNED = 2_000
"""Steps of a rollout up to which an edit script is computed; beyond, steps are aligned by position."""


@dataclass(frozen=True)
class Pair:
    """Two steps that stand beside each other, by their positions; None where one rollout has none there."""

    left: int | None
    right: int | None


def align(left: Sequence[Step], right: Sequence[Step]) -> list[Pair]:
    """An edit script over the actions: first over whole calls, then, between those, over the tools' names."""
    if max(len(left), len(right)) > _ALIGNED:
        return [Pair(*pair) for pair in zip_longest(range(len(left)), range(len(right)))]
    calls = _numbered([*left, *right])
    pairs: list[Pair] = []
    for i1, i2, j1, j2, same in _blocks(calls[: len(left)], calls[len(left) :]):
        if same:
            pairs += [Pair(i, j) for i, j in zip(range(i1, i2), range(j1, j2), strict=True)]
            continue
        names = [[s.action or "?" for s in steps] for steps in (left[i1:i2], right[j1:j2])]
        for a1, a2, b1, b2, alike in _blocks(names[0], names[1]):
            beside = zip_longest(range(i1 + a1, i1 + a2), range(j1 + b1, j1 + b2))
            if alike or min(a2 - a1, b2 - b1) > 0:
                pairs += [Pair(i, j) for i, j in beside]
            else:
                pairs += [Pair(i, None) for i in range(i1 + a1, i1 + a2)]
                pairs += [Pair(None, j) for j in range(j1 + b1, j1 + b2)]
    return pairs


def _numbered(steps: Sequence[Step]) -> list[int]:
    """A number for each step, the same for the same call: without writing out arguments, which may hold megabytes."""
    kinds: dict[str, list[tuple[Step, int]]] = {}
    numbers: list[int] = []
    for number, step in enumerate(steps):
        alike = kinds.setdefault(f"{step.action}{arguments_text(step.arguments, _ALIKE)}", [])
        numbers.append(next((known for other, known in alike if _same_call(step, other)), number))
        if numbers[-1] == number:
            alike.append((step, number))
    return numbers


def _blocks(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int, int, int, bool]]:
    script = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2, tag == "equal") for tag, i1, i2, j1, j2 in script]


def parting(left: Sequence[Step], right: Sequence[Step], pairs: Sequence[Pair]) -> str:
    """One sentence: up to where the two did the same, and what each did then."""
    for at, pair in enumerate(pairs):
        a = left[pair.left] if pair.left is not None else None
        b = right[pair.right] if pair.right is not None else None
        if a is not None and b is not None and _same(a, b):
            continue
        where = f"They part at step {at + 1}" if at else "They part at the first step"
        if a is None or b is None:
            side, step = ("right", b) if a is None else ("left", a)
            return f"{where}: only the {side} one has {summary(step) if step is not None else 'a step'} there."
        if not _same_call(a, b):
            return f"{where}: left {summary(a)}, right {summary(b)}."
        if a.action is None and a.text != b.text:
            return f"{where}: both made no call, in other words."
        what = "was answered differently" if a.observation != b.observation else "was thought through differently"
        return f"{where}: the same call {summary(a)} {what}."
    return "They did the same in every step."


@dataclass(frozen=True)
class Comparison:
    """Two rollouts by their numbers, beside each other. It may take a second to make: not for the thread of the screen.

    differing: positions of the pairs of which call, thought or observation differ. parting: where the two part, said.
    """

    left: TrajectoryRecord
    right: TrajectoryRecord
    numbers: tuple[int, int]
    pairs: Sequence[Pair]
    differing: Sequence[int]
    parting: str

    @classmethod
    def of(cls, left: TrajectoryRecord, right: TrajectoryRecord, numbers: tuple[int, int]) -> Comparison:
        """Align and compare."""
        a, b = left.trajectory.steps, right.trajectory.steps
        pairs = align(a, b)
        differing = [
            i
            for i, pair in enumerate(pairs)
            if pair.left is None or pair.right is None or not _same(a[pair.left], b[pair.right])
        ]
        return cls(left, right, numbers, pairs, differing, parting(a, b, pairs))


def _same_call(a: Step, b: Step) -> bool:
    if a.action is None or b.action is None:
        return a.action == b.action
    return a.action == b.action and a.arguments == b.arguments


def _same(a: Step, b: Step) -> bool:
    said = a.text == b.text if a.action is None else True
    return said and _same_call(a, b) and a.thought == b.thought and a.observation == b.observation


def marks(left: str, right: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Words of both texts, each with whether it is only there."""
    if len(left) + len(right) > _CHARACTERS or left == right:
        return [(left, False)], [(right, False)]
    a, b = left.split(" "), right.split(" ")
    if len(a) > _WORDS or len(b) > _WORDS:
        return [(left, False)], [(right, False)]
    out_a: list[tuple[str, bool]] = []
    out_b: list[tuple[str, bool]] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        changed = tag != "equal"
        out_a += [(w, changed) for w in a[i:j]]
        out_b += [(w, changed) for w in b[k:m]]
    return out_a, out_b
