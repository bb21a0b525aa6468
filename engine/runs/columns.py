"""The columns of the list of rollouts, in one table.

`COLUMNS` determines the SQL tables (`schema.py`), the rows that are written (`write/store.py`) and read
(`read/rollouts.py`), filters (`conditions.py`), orders (`views.py`), the index of a dump, and the table on screen.

To add a column, append it here and increment `SCHEMA_VERSION`. If dumps of other frameworks hold the value, also set it
in `engine/imports/convert.py`. Only records of the current version are readable. An outdated index is rebuilt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntFlag, auto
from typing import Literal, NamedTuple

from ...envs.tools import ToolSpec
from ...envs.trajectory import TEXT, Trajectory
from .types import TrajectoryRecord

Value = float | int | bool | str | None


class Kind(Enum):
    """The kind of value in a column."""

    NUMBER = auto()
    BOOLEAN = auto()
    NAME = auto()
    """A repeated name, stored as its id in the table `labels`."""
    LINK = auto()
    """An id in another table, or bits, computed when the row is written."""


class Flag(IntFlag):
    """Bits of the column `flags`."""

    ERROR = 1
    """The rollout, its environment or one of its tools failed."""
    UNPARSED = 2
    """No call could be parsed in some turn."""
    NAN = 4
    """The reward or an advantage is not a finite number."""
    SENT = 8
    """The rollout's answer was sent to the client."""
    AGREES = 16
    """The rollout's answer equals its pseudo-label."""
    DISAGREES = 32
    """The rollout's answer differs from its pseudo-label."""
    UNANSWERED = 64
    """The listed answer is only the rollout's last text."""


@dataclass(frozen=True)
class Column:
    """One column of the table `rows`.

    value: reads the value from a record (None: the writer of rows computes it). numeric: whether filters compare it
    with numbers. sortable: whether it has an index, so that lists can sort by it. field: the attribute of
    `TrajectoryRow` if its name differs. A column without an attribute is in `TrajectoryRow.extra`. title, cells, drop:
    heading and width on screen, and the order in which a narrow terminal drops columns. An empty title hides it.
    """

    name: str
    sql: Literal["INTEGER", "REAL"] = "INTEGER"
    value: Callable[[TrajectoryRecord], Value] | None = None
    kind: Kind = Kind.NUMBER
    numeric: bool = False
    sortable: bool = False
    field: str = ""
    title: str = ""
    cells: int = 6
    drop: int = 9

    @property
    def attribute(self) -> str:
        return self.field or self.name


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)  # also converts NumPy numbers


def is_finite(record: TrajectoryRecord) -> bool:
    """Return whether the reward and the advantages are finite."""
    numbers = [record.trajectory.env_reward, record.advantage, *record.step_advantages]
    if record.breakdown is not None:
        numbers.append(record.breakdown.total)
    return all(n is None or math.isfinite(n) for n in numbers)


def _flags(record: TrajectoryRecord) -> int:
    trajectory, served = record.trajectory, record.served
    flags = {
        Flag.ERROR: trajectory.error or any(s.error for s in trajectory.steps),
        Flag.UNPARSED: any(s.unreadable for s in trajectory.steps),
        Flag.NAN: not is_finite(record),
        Flag.SENT: served is not None and served.sent,
        Flag.AGREES: served is not None and served.agrees is True,
        Flag.DISAGREES: served is not None and served.agrees is False,
        Flag.UNANSWERED: trajectory.answer is None,
    }
    return sum(flag for flag, is_set in flags.items() if is_set)


COLUMNS = (
    Column("step", numeric=True, sortable=True, title="step", drop=3),
    Column("reward", "REAL", lambda r: _real(r.reward), numeric=True, sortable=True),
    Column("correct", value=lambda r: None if (c := r.trajectory.correct) is None else bool(c), kind=Kind.BOOLEAN),
    Column("advantage", "REAL", lambda r: _real(r.advantage), numeric=True, sortable=True),
    Column("turns", value=lambda r: len(r.trajectory.steps), numeric=True, sortable=True, title="turns", drop=5),
    Column(
        "tokens",
        value=lambda r: r.token_count if r.tokens is None else len(r.tokens),
        numeric=True,
        sortable=True,
        title="tokens",
        cells=7,
        drop=6,
    ),
    Column("penalties", kind=Kind.LINK, numeric=True, sortable=True),
    Column("actions", kind=Kind.LINK),
    Column("rules", kind=Kind.LINK),
    Column("flags", value=_flags),
    Column("env", value=lambda r: r.trajectory.env, kind=Kind.NAME),
    Column("split", value=lambda r: r.split, kind=Kind.NAME),
    Column("stop", value=lambda r: r.trajectory.stop_reason, kind=Kind.NAME, field="stop_reason"),
    Column("rollout", value=lambda r: r.trajectory.rollout, numeric=True),
    Column("version", value=lambda r: r.policy_version, numeric=True, field="policy_version"),
    Column("grp", kind=Kind.LINK),
    Column("prompt", kind=Kind.LINK),
    Column("toolset", kind=Kind.LINK),
    Column("uses", value=lambda r: None if r.use is None else r.use.mask),
    Column("gate", value=lambda r: None if r.served is None else r.served.gate, kind=Kind.NAME),
    Column("confidence", "REAL", lambda r: None if r.served is None else r.served.confidence, numeric=True),
)
SCHEMA_VERSION = 3
"""The version of a record: its columns, and the formats of `schema.py` and `codec.py`."""
SORTS = ("n", *(column.name for column in COLUMNS if column.sortable))
WHOLE = ("n", *(column.name for column in COLUMNS if column.sql == "INTEGER"))
INDEXED_LINKS = ("grp", "prompt")
"""Links by which lists look up rows."""


class Listed(NamedTuple):
    """The row of one trajectory before it is written. It is a named tuple because a dump may hold millions.

    values: by column name (missing: unknown). labels: one per call, or one for the text of a turn without a call (None:
    the turns are not known yet). rules: the penalty rules. head: at least the beginning of the prompt.
    """

    id: str
    group: str
    prompt_id: str
    head: str
    values: Mapping[str, Value]
    labels: Sequence[str] | None
    answer: str | None = None
    rules: Sequence[str] = ()
    tools: tuple[ToolSpec, ...] = ()
    extra: Mapping[str, object] = {}


def listed(step: int | None, record: TrajectoryRecord) -> Listed:
    """Return the row of a record."""
    trajectory, breakdown = record.trajectory, record.breakdown
    values = {column.name: column.value(record) for column in COLUMNS if column.value is not None}
    return Listed(
        id=trajectory.id,
        group=trajectory.group,
        prompt_id=trajectory.prompt_id,
        head=trajectory.prompt,
        values={**values, "step": step},
        labels=[label for s in trajectory.steps for label in s.labels],
        answer=_answer(trajectory),
        rules=[p.rule for p in breakdown.penalties] if breakdown is not None else (),
        tools=trajectory.tools,
        extra=trajectory.extra,
    )


def _answer(trajectory: Trajectory) -> str | None:
    """Return the answer, or without one, the last text of a rollout that wrote only text (a truncated answer)."""
    if trajectory.answer is None and trajectory.steps and all(s.label == TEXT for s in trajectory.steps):
        return trajectory.steps[-1].text
    return trajectory.answer
