"""The items that the record's thread stores. Each item stores itself into the tables.

The queue holds entries. An `Entry` is stored in one transaction or not at all.
"""

from __future__ import annotations

import io
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ..durable import replace_file
from ..paths import IMAGES
from ..schema import meta_key
from ..types import TrajectoryRecord
from .store import RecordStore

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image as PILImage

    Image = np.ndarray | PILImage
    """A picture: uint8 `[H, W]` or `[H, W, 3]`, bool `[H, W]`, or a PIL image."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Item(ABC):
    """One thing to record. cost: its approximate memory in bytes. rows: the number of rows that are lost with it."""

    cost: int = 0
    rows: int = 1

    def pieces(self, size: int) -> Sequence[Item]:
        """Split the item into items of about `size` bytes (1: as small as possible) that may be stored separately."""
        return (self,)

    @abstractmethod
    def store(self, store: RecordStore) -> int | None:
        """Add the rows inside the open transaction. Return how many of them cannot be recorded, if any."""


@dataclass(frozen=True)
class Write(Item):
    """Anything that a single call of the store records."""

    name: str
    write: Callable[[RecordStore], None]

    def store(self, store: RecordStore) -> None:
        self.write(store)


@dataclass(frozen=True)
class MetricsItem(Item):
    """Numbers of a step by flat name."""

    step: int
    values: Mapping[str, float]
    replace: bool = False

    def store(self, store: RecordStore) -> None:
        (store.metrics.replace if self.replace else store.metrics.add)(self.step, self.values)


@dataclass(frozen=True)
class TrajectoriesItem(Item):
    """Trajectories of a step."""

    step: int
    records: Sequence[TrajectoryRecord]

    @classmethod
    def of(cls, step: int, records: Sequence[TrajectoryRecord]) -> TrajectoriesItem:
        return cls(step, records, cost=sum(map(_size, records)), rows=len(records))

    def pieces(self, size: int) -> Sequence[Item]:
        ends = [sum_ // size for sum_ in accumulate(map(_size, self.records))]
        return [
            TrajectoriesItem.of(self.step, [record for record, _ in part])
            for _, part in groupby(zip(self.records, ends, strict=True), key=lambda pair: pair[1])
        ]

    def store(self, store: RecordStore) -> int:
        refused = store.add_trajectories(self.step, self.records)
        for sentence in refused:
            log.warning("record: %s", sentence)
            store.add_event("record", sentence, self.step, time.time(), b"{}")
        return len(refused)


@dataclass(frozen=True)
class SavedImage(Item):
    """An image and its path inside the run's folder. The file is written before the rows that name it."""

    path: str
    image: Image

    def write(self, run_dir: Path) -> None:
        """Write the file. Log values that are not images, which readers show as missing. Raises OSError."""
        try:
            data = _encoded(self.path, self.image)
        except ValueError as error:
            log.warning("the record leaves out image %s: %s", self.path, error)
            return
        target = run_dir / self.path
        target.parent.mkdir(exist_ok=True)  # no parents: a removed run folder stays removed
        replace_file(target, data, wait=False)

    def store(self, store: RecordStore) -> None:
        pass


@dataclass(frozen=True)
class PositionsItem(Item):
    """The positions up to which other journals are copied, by journal name."""

    positions: Mapping[str, int]

    def store(self, store: RecordStore) -> None:
        for name, position in self.positions.items():
            store.set_meta(meta_key(name), str(position))


Entry = tuple[Item, ...]


def _size(record: TrajectoryRecord) -> int:
    try:
        size = 1024 + len(record.trajectory.prompt)
        for step in record.trajectory.steps:
            size += len(step.text) + len(step.observation) + 512
        return size + (0 if record.tokens is None else 16 * len(record.tokens))
    except (AttributeError, TypeError):  # not storable; the record's thread reports it
        return 1024


def image_path(name: str) -> str:
    """Return the path of an image inside the run's folder. Characters that are unsafe in file names become `_`."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:120] or "image"
    return f"{IMAGES}/{stem}" if stem.lower().endswith((".png", ".jpg", ".jpeg")) else f"{IMAGES}/{stem}.png"


def _encoded(name: str, image: Image) -> bytes:
    """Return the bytes of a PNG (or JPEG, by the name). Raises ValueError for anything but an image."""
    from PIL import Image as Pictures

    try:
        if not isinstance(image, Pictures.Image):
            import numpy as np

            array = np.asarray(image)
            if array.dtype == bool:
                array = array.astype(np.uint8) * 255
            image = Pictures.fromarray(array)
        buffer = io.BytesIO()
        image.save(buffer, format="PNG" if name.lower().endswith(".png") else "JPEG")
    except (OSError, KeyError, TypeError, AttributeError) as error:  # PIL raises OSError for modes that it cannot write
        raise ValueError(str(error)) from error
    return buffer.getvalue()
