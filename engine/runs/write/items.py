"""The items that the record's thread stores: one class a kind. Each stores itself into the tables."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ..codec import encode_json
from ..masking import mask
from ..position import meta_key
from ..types import EventKind, TrajectoryRecord, Use
from .images import encode_image, write_image
from .store import RecordStore

if TYPE_CHECKING:
    from .images import Image

log = logging.getLogger(__name__)


class Item(ABC):
    """One thing to record."""

    @property
    @abstractmethod
    def cost(self) -> int:
        """About how many bytes it holds in memory."""

    @property
    def rows(self) -> int:
        """How many rows are lost with it."""
        return 1

    @property
    def parts(self) -> tuple[Item, ...]:
        """Its parts in the order of storing."""
        return (self,)

    def pieces(self, size: int) -> Sequence[Item]:
        """The same as items of about `size` bytes at most, where it has parts that may be stored one after another."""
        return (self,)

    def apart(self) -> Sequence[Item]:
        """Return the same as smaller items, for when it cannot be stored as a whole; empty if there are no smaller
        ones."""
        return ()

    @abstractmethod
    def store(self, store: RecordStore) -> int:
        """Add its rows inside the open transaction. Returns how many of them cannot be recorded."""


@dataclass(frozen=True)
class Metrics(Item):
    """Numbers of a step, by their flat names."""

    step: int
    values: Mapping[str, float]

    @property
    def cost(self) -> int:
        """A name and a number each."""
        return 64 * len(self.values)

    def store(self, store: RecordStore) -> int:
        store.metrics.add(self.step, self.values)
        return 0


@dataclass(frozen=True)
class Trajectories(Item):
    """Trajectories of a step."""

    step: int
    records: Sequence[TrajectoryRecord]

    @property
    def cost(self) -> int:
        """Their texts and tokens, counted quickly."""
        return sum(map(_size, self.records))

    @property
    def rows(self) -> int:
        return len(self.records)

    def pieces(self, size: int) -> Sequence[Item]:
        ends = [sum_ // size for sum_ in accumulate(map(_size, self.records))]
        return [
            Trajectories(self.step, [record for record, _ in part])
            for _, part in groupby(zip(self.records, ends, strict=True), key=lambda pair: pair[1])
        ]

    def apart(self) -> Sequence[Item]:
        """Return the trajectories one by one."""
        return [Trajectories(self.step, [record]) for record in self.records] if len(self.records) > 1 else ()

    def store(self, store: RecordStore) -> int:
        refused = store.add_trajectories(self.step, self.records)
        for sentence in refused:
            log.warning("record: %s", sentence)
            store.add_event("record", sentence, self.step, time.time(), b"{}")
        return len(refused)


@dataclass(frozen=True)
class Uses(Item):
    """How later updates used rollouts, by the rollouts' ids."""

    uses: Sequence[tuple[str, Use]]

    @property
    def cost(self) -> int:
        return 512 * len(self.uses)

    def store(self, store: RecordStore) -> int:
        store.rows.add_uses(self.uses)
        return 0


@dataclass(frozen=True)
class Event(Item):
    """Something that happened. `time` is in seconds since 1970. Secrets in `data` are masked when it is stored."""

    kind: EventKind
    message: str
    step: int
    time: float
    data: Mapping[str, object]

    @property
    def cost(self) -> int:
        return 256 + len(self.message)

    def store(self, store: RecordStore) -> int:
        store.add_event(self.kind, self.message, self.step, self.time, encode_json(mask(self.data)))
        return 0


@dataclass(frozen=True)
class Vocabulary(Item):
    """The text of every token id, in order. byte_level: whether it is in the alphabet of byte-level BPE."""

    texts: Sequence[str]
    byte_level: bool

    @property
    def cost(self) -> int:
        """Nothing: it comes once, and is never left out for want of room."""
        return 0

    def store(self, store: RecordStore) -> int:
        store.add_vocabulary(self.texts)
        store.set_meta("vocabulary", "byte-level" if self.byte_level else "text")
        return 0


@dataclass(frozen=True)
class SavedImage(Item):
    """An image and its path inside the run's folder: a file of its own, written before the rows that name it."""

    path: str
    image: Image

    @property
    def cost(self) -> int:
        """The array's bytes, or a guess."""
        return int(getattr(self.image, "nbytes", 0) or 0) or 1 << 18

    def write(self, run_dir: Path) -> None:
        """Write the file. Values that are no image are logged, and readers show them as missing. Raises OSError."""
        try:
            data = encode_image(self.path, self.image)
        except ValueError as error:
            log.warning("the record leaves out image %s: %s", self.path, error)
            return
        write_image(run_dir / self.path, data)

    def store(self, store: RecordStore) -> int:
        return 0


@dataclass(frozen=True)
class Positions(Item):
    """How far other journals are copied, by their names."""

    positions: Mapping[str, int]

    @property
    def cost(self) -> int:
        return 0

    def store(self, store: RecordStore) -> int:
        for name, position in self.positions.items():
            store.set_meta(meta_key(name), str(position))
        return 0


@dataclass(frozen=True)
class Together(Item):
    """Items that are stored in one transaction or not at all, and with them how far other journals are copied."""

    items: tuple[Item, ...]
    positions: Positions

    @property
    def cost(self) -> int:
        return sum(item.cost for item in self.items)

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.items)

    @property
    def parts(self) -> tuple[Item, ...]:
        """Its items, then the positions."""
        return (*self.items, self.positions)

    def apart(self) -> Sequence[Item]:
        """Return the items one by one: at least some of them can be recorded."""
        return self.parts

    def store(self, store: RecordStore) -> int:
        return sum(part.store(store) for part in self.parts)


def _size(record: TrajectoryRecord) -> int:
    try:
        size = 1024 + len(record.trajectory.prompt)
        for step in record.trajectory.steps:
            size += len(step.text) + len(step.observation) + 512
        return size + (0 if record.tokens is None else 16 * len(record.tokens))
    except (AttributeError, TypeError):  # not storable; the record's thread will say so
        return 1024
