"""Read the rollouts of a dump from the user's files."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..runs.errors import RecordDamaged
from ..runs.learning import Use
from ..runs.read.bodies import Bodies
from ..runs.read.record import Record
from ..runs.read.rollouts import by_number
from ..runs.types import TokenArrays, TrajectoryRecord
from .convert import record_of
from .dump import PlacedItems, formats_of
from .errors import DumpError
from .format import Format
from .options import Options
from .rollout import Amendment, Rollout


class DumpBodies(Bodies):
    """Reads each rollout from its location in the writer's files."""

    def __init__(self, record: Record, dump: Path, options: Options) -> None:
        super().__init__(record)
        self.dump = dump
        self.options = options

    def trajectory(self, id_or_n: str | int) -> TrajectoryRecord:
        n = self.number(id_or_n)
        rollout, reader = self._rollout(n)
        row = by_number(self._record, [n])[0]
        record = record_of(rollout, fallback_id=row.id, index=row.rollout, unknown=reader.unknown)
        listed = {name: getattr(row, name) for name in ("id", "group", "prompt_id", "rollout", "extra")}
        trajectory = replace(record.trajectory, **listed)
        advantage = record.advantage if row.advantage is None else row.advantage
        unknown = {k: v for k, v in record.unknown.items() if k != "advantage" or advantage is None}
        return replace(record, trajectory=trajectory, advantage=advantage, split=row.split, unknown=unknown)

    def uses(self, id_or_n: str | int, record: TrajectoryRecord | None = None) -> list[Use]:
        return []

    def tokens(self, id_or_n: str | int) -> TokenArrays[Any] | None:
        """Return the token arrays if the writer kept them. Raises LookupError or RecordDamaged."""
        n = self.number(id_or_n)
        rollout, _ = self._rollout(n)
        try:
            return None if rollout.tokens is None else rollout.tokens()
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise RecordDamaged(f"the tokens of rollout {n} cannot be read ({error})") from error

    def _rollout(self, n: int) -> tuple[Rollout, Format]:
        found = self._record.all(
            "SELECT path, container, at, length, part FROM places JOIN sources ON sources.id = source WHERE n = ?", (n,)
        )
        if not found:
            raise RecordDamaged(f"rollout {n} of {self.dump} cannot be read: its place is not in the index")
        path, container, offset, length, part = found[0]
        try:
            rollout, reader = self._placed.rollout((path, container, offset, length), part)
            return self._amended(rollout) if rollout.id else rollout, reader
        except OSError as error:
            raise RecordDamaged(f"{path} cannot be read: {error.strerror}") from error
        except DumpError as error:
            raise RecordDamaged(str(error)) from error

    def _amended(self, rollout: Rollout) -> Rollout:
        places = self._record.all(
            "SELECT path, container, at, length FROM amendments JOIN sources ON sources.id = source "
            "WHERE amendments.id = ? LIMIT 64",
            (rollout.id,),
        )
        for place in places:
            for item in self._placed.items(place):
                if isinstance(item, Amendment) and item.id == rollout.id:
                    rollout = item.folded(rollout)
        return rollout

    @cached_property
    def _placed(self) -> PlacedItems:
        return PlacedItems(self.dump, formats_of(self.options))
