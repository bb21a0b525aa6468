"""A trajectory and everything computed from it, as plain data. `app/printed.py` prints it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..engine.runs.notes import Note
from ..engine.runs.types import AdvantageFormula, AdvantageTerm, Event, TrajectoryRecord, TrajectoryRow, Use
from ..rewards.advantages.base import EPSILON
from .advantage import SAME, formula_of, recomputed

if TYPE_CHECKING:
    from ..engine.runs.read.reader import RunReader


@dataclass(frozen=True)
class Whole:
    """A trajectory with its number, the updates that used it, and the formula of its advantage (None: unknown).

    `recomputed`: the advantage that GRPO would give, if none was recorded and the rewards of the group are known.
    `step`: the training step (None: not recorded, or not read). `validations`: evaluations of the online learner on
    held-out tasks, oldest first.
    """

    n: int
    record: TrajectoryRecord
    uses: Sequence[Use] = ()
    formula: AdvantageFormula | None = None
    recomputed: AdvantageTerm | None = None
    note: Note | None = None
    step: int | None = None
    validations: Sequence[Event] = ()


def read_whole(
    reader: RunReader, ref: str | int, group_of: Callable[[str], Sequence[TrajectoryRow]] | None = None
) -> Whole:
    """Read a trajectory by id or number. `group_of` reads a group. Raises LookupError or RecordDamaged."""
    n = reader.bodies.number(ref)
    record = reader.bodies.trajectory(n)
    group: Sequence[TrajectoryRow] = ()
    if record.formula is None and (record.advantage is not None or "advantage" in record.unknown):
        group_of = group_of or reader.rollouts.group
        group = [row for here in reader.rollouts.rows([n]) for row in group_of(here.group)]
    note = reader.notes.read().get(record.trajectory.id)
    return Whole(n, record, reader.bodies.uses(n, record), formula_of(record, group), recomputed(record, group), note)


def trajectory_data(whole: Whole) -> dict[str, object]:
    """Return one plain dictionary. Token arrays are only in the record."""
    record = whole.record
    return {
        "n": whole.n,
        "trajectory": record.trajectory.to_json(),
        "breakdown": asdict(record.breakdown) if record.breakdown is not None else None,
        "reward": record.reward,
        "advantage": record.advantage,
        "step_advantages": list(record.step_advantages),
        "advantage_formula": asdict(whole.formula) if whole.formula is not None else None,
        "note": whole.note.to_json() if whole.note is not None else None,
        "recomputed": None if whole.recomputed is None else _recomputed(whole.recomputed),
        "policy_version": record.policy_version,
        "split": record.split,
        "token_count": record.token_count if record.tokens is None else len(record.tokens),
        "not_recorded": dict(record.unknown),
        "uses": [asdict(use) for use in whole.uses],
        "served": asdict(record.served) if record.served is not None else None,
    }


def _recomputed(term: AdvantageTerm) -> dict[str, object]:
    advantage = term.result(EPSILON) if term.std and term.std >= SAME else 0.0
    return {"advantage": advantage, "group_mean": term.mean, "group_std": term.std, "group_size": term.size}
