"""The writer of every rank but the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .images import image_path
from .types import EventKind, RunStatus, TrajectoryRecord, Use

if TYPE_CHECKING:
    from .images import Image

Values = Mapping[str, "float | Mapping[str, float]"]


class NullWriter:
    """The writer of every rank but the first: takes everything, writes nothing."""

    dropped = 0
    live = None

    def metrics(self, step: int, values: Values) -> None:
        """See `RunWriter.metrics`."""

    def trajectories(self, step: int, records: Sequence[TrajectoryRecord]) -> None:
        """See `RunWriter.trajectories`."""

    def uses(self, uses: Sequence[tuple[str, Use]]) -> None:
        """See `RunWriter.uses`."""

    def event(self, kind: EventKind, message: str, *, step: int = 0, **data: Any) -> None:
        """See `RunWriter.event`."""

    def status(
        self,
        status: RunStatus,
        *,
        step: int | None = None,
        total_steps: int | None = None,
        error: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        """See `RunWriter.status`."""

    def progress(self, phase: str, done: int = 0, total: int = 0) -> None:
        """See `RunWriter.progress`."""

    def begin(self, id_: str, what: str = "") -> None:
        """See `RunWriter.begin`."""

    def end(self, id_: str) -> None:
        """See `RunWriter.end`."""

    def vocabulary(self, texts: Sequence[str], *, byte_level: bool = False) -> None:
        """See `RunWriter.vocabulary`."""

    def save_image(self, image: Image, name: str) -> str:
        """The path that the first rank uses for this name."""
        return image_path(name)

    def flush(self, timeout: float | None = None) -> bool:
        """True: nothing waits to be written."""
        return True

    def position(self) -> int:
        """0: nothing is recorded."""
        return 0

    def close(self, timeout: float = 30.0) -> None:
        """See `RunWriter.close`."""
