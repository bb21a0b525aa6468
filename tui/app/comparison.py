"""Two rollouts aligned, as data: pairs of steps, the first difference, and the words that differ."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ...engine.runs.types import Step, TrajectoryRecord
from .calls import arguments_text, calls_of, shown, summary

Pieces = list[tuple[str, bool]]
"""A line as pieces of text, each flagged if only this side has it."""
Pair = tuple[int | None, int | None]
"""Two aligned steps by position. None marks a step that one rollout lacks."""
_WORDS = 200
"""Maximum number of words of a line that are compared. A longer line is marked whole."""
_CHARACTERS = 4_000
_LINES = 1_200
"""Maximum number of lines of two texts, together, that are compared."""
_COMMON = 0.3
"""Minimum share of the shorter text that both must have in common for differences to be marked."""
_ALIKE = 200
"""Characters of each argument that distinguish calls before they are compared."""


def align(left: Sequence[Step], right: Sequence[Step]) -> list[Pair]:
    """Align steps by whole calls, then by call and main argument (such as a file), then by tool name. Align more than
    2,000 steps by position."""
    if max(len(left), len(right)) > 2_000:
        return list(zip_longest(range(len(left)), range(len(right))))
    keys: list[tuple[Hashable, ...]] = []
    for step, number in zip((*left, *right), _numbered([*left, *right]), strict=True):
        aims = (f"{call.head} {call.text[:_ALIKE]}" for call in map(shown, calls_of(step)))
        keys.append((step.action or "?", " ".join(aims), number))
    return list(_aligned(keys[: len(left)], keys[len(left) :], 0, 0, 3))


def _aligned(
    a: Sequence[tuple[Hashable, ...]], b: Sequence[tuple[Hashable, ...]], i: int, j: int, exact: int
) -> Iterator[Pair]:
    """Align by the first `exact` parts of the keys, then align the gaps by fewer parts."""
    for i1, i2, j1, j2, same in _blocks([key[:exact] for key in a], [key[:exact] for key in b]):
        if same or exact == 1:
            yield from zip_longest(range(i + i1, i + i2), range(j + j1, j + j2))
        else:
            yield from _aligned(a[i1:i2], b[j1:j2], i + i1, j + j1, exact - 1)


def _numbered(steps: Sequence[Step]) -> list[int]:
    """Give equal calls the same number without formatting whole arguments, which may hold megabytes."""
    kinds: dict[str, list[tuple[Step, int]]] = {}
    numbers: list[int] = []
    for number, step in enumerate(steps):
        numbered = kinds.setdefault(f"{step.action}{arguments_text(step.arguments, _ALIKE)}", [])
        numbers.append(next((known for other, known in numbered if _same_call(step, other)), number))
        if numbers[-1] == number:
            numbered.append((step, number))
    return numbers


def _blocks(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int, int, int, bool]]:
    script = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2, tag == "equal") for tag, i1, i2, j1, j2 in script]


def parting(left: Sequence[Step], right: Sequence[Step], pairs: Sequence[Pair]) -> str:
    """Describe in one sentence the first difference between two rollouts."""
    for index, (i, j) in enumerate(pairs):
        a = left[i] if i is not None else None
        b = right[j] if j is not None else None
        if a is not None and b is not None and _same(a, b):
            continue
        where = f"They first differ at step {index + 1}"
        if a is None or b is None:
            side, step = ("right", b) if a is None else ("left", a)
            return f"{where}: only the {side} side has {summary(step) if step is not None else 'a step'}."
        if not _same_call(a, b):
            return f"{where}: left {summary(a)}, right {summary(b)}."
        if a.action is None and a.text != b.text:
            return f"{where}: neither made a call, and the texts differ."
        what = "with different results" if a.observation != b.observation else "with different thoughts"
        return f"{where}: the same call {summary(a)} {what}."
    return "All steps are the same."


@dataclass(frozen=True)
class RolloutComparison:
    """Two aligned rollouts. Never make it on the screen's thread: it may take a second. `differing`: positions of the
    pairs whose call, thought or observation differs. `parting`: a description of the first difference."""

    left: TrajectoryRecord
    right: TrajectoryRecord
    numbers: tuple[int, int]
    pairs: Sequence[Pair]
    differing: Sequence[int]
    parting: str

    @classmethod
    def of(cls, left: TrajectoryRecord, right: TrajectoryRecord, numbers: tuple[int, int]) -> RolloutComparison:
        a, b = left.trajectory.steps, right.trajectory.steps
        pairs = align(a, b)
        differing = [n for n, (i, j) in enumerate(pairs) if i is None or j is None or not _same(a[i], b[j])]
        return cls(left, right, numbers, pairs, differing, parting(a, b, pairs))


def _same_call(a: Step, b: Step) -> bool:
    return a.action == b.action and (a.action is None or a.arguments == b.arguments)


def _same(a: Step, b: Step) -> bool:
    same_call = _same_call(a, b) and (a.action is not None or a.text == b.text)
    return same_call and a.thought == b.thought and a.observation == b.observation


@dataclass(frozen=True)
class ComparisonRow:
    """A line of two texts in columns. None: the side has no such line. `equal`: the number of folded equal lines."""

    left: Pieces | None = None
    right: Pieces | None = None
    equal: int = 0


def rows(left: str, right: str) -> list[ComparisonRow]:
    """Return the lines of two texts in columns. Equal lines fold, except for one next to each difference."""
    if not left or not right:
        return [_row(x if left else None, None if left else x, False) for x in (left or right).split("\n")]
    a, b = left.split("\n"), right.split("\n")
    if len(a) + len(b) > _LINES:
        return [_row(x, y, True) for x, y in zip_longest(a, b)]
    result: list[ComparisonRow] = []
    blocks = _blocks(a, b)
    paired = any(same for *_, same in blocks)  # if all lines differ, marks show nothing
    for i1, i2, j1, j2, same in blocks:
        if same:
            kept = [ComparisonRow([(x, False)], [(x, False)]) for x in a[i1:i2]]
            if len(kept) > 3:  # fold
                first, last = (kept[:1] if result else []), (kept[-1:] if i2 < len(a) or j2 < len(b) else [])
                kept = [*first, ComparisonRow(equal=len(kept) - len(first) - len(last)), *last]
            result += kept
            continue
        for x, y in zip_longest(a[i1:i2], b[j1:j2]):
            result.append(_row(x, y, paired) if x is None or y is None else ComparisonRow(*marks(x, y)))
    return result


def _row(left: str | None, right: str | None, marked: bool) -> ComparisonRow:
    one, other = (None if text is None else [(text, marked)] for text in (left, right))
    return ComparisonRow(one, other)


def marks(left: str, right: str) -> tuple[Pieces, Pieces]:
    """Split both texts into words, each flagged if only that text has it."""
    if left == right:
        return [(left, False)], [(right, False)]
    a, b = left.split(" "), right.split(" ")
    if len(left) + len(right) > _CHARACTERS or len(a) > _WORDS or len(b) > _WORDS:
        return [(left, True)], [(right, True)]
    blocks = _blocks(a, b)
    common = sum(len("".join(a[i:j])) for i, j, _, _, same in blocks if same)
    # differences of short texts are always marked
    if min(len(a), len(b)) > 6 and common < _COMMON * min(len(left), len(right)):
        return [(left, False)], [(right, False)]  # if everything differs, marks show nothing
    out_a: list[tuple[str, bool]] = []
    out_b: list[tuple[str, bool]] = []
    for i, j, k, m, same in blocks:
        out_a += [(w, not same) for w in a[i:j]]
        out_b += [(w, not same) for w in b[k:m]]
    return out_a, out_b
