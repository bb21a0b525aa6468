"""The columns of the list of trajectories, with routes and prompts shortened to a few cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.style import Style

from ...engine.runs.columns import COLUMNS, Column
from ...engine.runs.types import TrajectoryRow
from ..format import fitted, is_cut_short, mark, version_text, whole
from .theme import Palette
from .widgets.table import TableColumn


def route(actions: Sequence[str]) -> str:
    """Join the actions in order, with repeats counted: `SEGMENT ▸ GET ×3 ▸ ANSWER`."""
    parts = []
    for action, same in groupby(actions):
        times = len(list(same))
        parts.append(short(action) + (f" ×{times}" if times > 1 else ""))
    return " ▸ ".join(parts)


def shared_beginning(prompts: Iterable[str]) -> int:
    """Return how many characters different prompts share at the start, up to a word boundary; 0 if hardly any."""
    different = set(prompts) - {""}
    if len(different) < 2:
        return 0
    first, last = min(different), max(different)  # of all pairs, these two share the shortest beginning
    shared = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    cut = max(shared.rfind(" "), shared.rfind("\n")) + 1
    return cut if cut >= 12 else 0


def telling(prompt: str, shared: int) -> str:
    """Return a prompt with an ellipsis in place of the shared beginning."""
    return f"…{prompt[shared:]}" if shared and len(prompt) > shared else prompt


def short(action: str) -> str:
    """Return the first word of an action for routes: `SEGMENT` for `SEGMENT_OBJECT_AT`."""
    head = action.split("_")[0]
    return head if 2 <= len(head) <= 12 else action[:12]


def rollout_columns(p: Palette, extras: Sequence[str], around: Sequence[TrajectoryRow]) -> Sequence[TableColumn]:
    """Return the columns for the rows `around` the visible ones. Prompts start where they differ in these rows.
    Advantages, steps and token counts are left out if none of these rows has one, and turns if each has a single one.
    """
    shared = shared_beginning(row.prompt for row in around)
    has_words = [row.words is not None for row in around]
    title = "answer" if has_words and all(has_words) else "route or answer" if any(has_words) else "route"

    def known(name: str) -> bool:
        return not around or any(getattr(row, name) is not None for row in around)

    penalised = title != "answer" or any(row.penalties for row in around)

    def broken(row: TrajectoryRow) -> tuple[str, Style]:
        return f"✗{whole(row.penalties, 3)}" if row.penalties else "", p.warn

    def ended(row: TrajectoryRow) -> tuple[str, Style]:
        return row.stop_reason, p.warn if is_cut_short(row.stop_reason) else p.muted

    left_out = set() if known("tokens") else {"tokens"}
    if around and all(row.turns == 1 for row in around):
        left_out.add("turns")
    is_split = any(row.split != "train" for row in around)
    advantage = TableColumn(
        "advantage", "A", 6, lambda r: (fitted(r.advantage, 6, signed=True), p.sign(r.advantage)), ">", drop=1
    )
    return (
        TableColumn("n", "#", max([4, *(len(str(r.n)) for r in around)]), lambda r: (r.n, p.muted), ">"),
        *(_of_table(p, column) for column in COLUMNS[:1] if known(column.name)),
        TableColumn("", " ", 1, lambda r: (mark(r.correct), p.outcome(r.correct))),
        TableColumn("reward", "reward", 7, lambda r: (fitted(r.reward, 7), p.strong), ">"),
        *((advantage,) if known("advantage") else ()),
        *(_extra(p, name, index, around) for index, name in enumerate(extras)),
        *(_of_table(p, c) for c in COLUMNS[1:] if c.title and c.name not in left_out),
        *((TableColumn("penalties", "pen", 4, broken, ">", drop=2),) if penalised else ()),
        *(_learning(p) if any(row.gate for row in around) else ()),
        TableColumn("", "group", 9, lambda r: (r.group, p.muted), drop=8),
        *((TableColumn("", "split", 5, lambda r: (r.split, p.faint), drop=9),) if is_split else ()),
        *((TableColumn("", "ended by", 10, ended, drop=7),) if any(row.stop_reason for row in around) else ()),
        TableColumn(
            "",
            title,
            22,
            lambda r: (route(r.actions) if r.words is None else " ".join(r.words.split()) or "(empty)", p.text),
            grow=2.0,
        ),
        TableColumn("", "prompt", 16, lambda r: (telling(r.prompt, shared), p.muted), grow=1.0, drop=4),
    )


def _of_table(p: Palette, column: Column) -> TableColumn:

    def cell(row: TrajectoryRow) -> tuple[str, Style]:
        value = getattr(row, column.attribute, None)
        value = row.extra.get(column.name) if value is None else value
        if isinstance(value, str):
            return value, p.muted
        text = fitted(value, column.cells) if column.sql == "REAL" else whole(value, column.cells)
        return text, p.text if column.name == "turns" else p.muted

    sort = column.name if column.sortable else ""
    return TableColumn(sort, column.title, column.cells, cell, ">", drop=column.drop)


def _learning(p: Palette) -> Sequence[TableColumn]:

    def gate(row: TrajectoryRow) -> tuple[str, Style]:
        return row.gate.replace("_", " "), p.good if row.gate == "open" else p.muted

    def used(row: TrajectoryRow) -> tuple[str, Style]:
        return ", ".join(done.replace("_", " ") for done in row.uses or ()), p.text

    return (
        TableColumn("", "policy", 6, lambda r: (version_text(r.policy_version), p.muted), ">", drop=4),
        TableColumn("", "sent", 4, lambda r: ("✓" if r.sent else "", p.good), drop=5),
        TableColumn("", "conf", 5, lambda r: (fitted(r.confidence, 5), p.text), ">", drop=3),
        TableColumn("", "gate", 8, gate, drop=2),
        TableColumn("", "update", 10, used, drop=1),
    )


def _extra(p: Palette, name: str, index: int, around: Sequence[TrajectoryRow]) -> TableColumn:
    numbers = [v for row in around if isinstance(v := row.extra.get(name), (int, float))]
    places = 0 if all(float(v).is_integer() for v in numbers) else 2

    def cell(row: TrajectoryRow) -> tuple[str, Style]:
        value = row.extra.get(name)
        if value is None:
            return ("–" if name not in row.extra else "nan"), p.faint
        return (fitted(value, cells, places), p.text) if isinstance(value, (int, float)) else (str(value), p.muted)

    title = name.removeprefix("component.")
    cells = max(5, min(9, len(title)))
    return TableColumn("", title, cells, cell, ">", drop=4 if index < 4 else 10 + index)


def extras_shown(names: Sequence[str], filter_: str, varying: Sequence[str]) -> tuple[str, ...]:
    """Choose which of the record's own columns to show: those in the filter, then components, then others that differ
    between rollouts (`varying`)."""
    filtered = [n for n in names if n in filter_]
    components = [n for n in names if n.startswith("component.")][:4]
    return tuple(dict.fromkeys([*filtered, *components, *varying]))[:6]
