"""Where the files of learning while serving lie in a run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...runs.paths import SNAPSHOTS


@dataclass(frozen=True)
class OnlineFolder:
    """Paths of one run; nothing is made by naming it."""

    run_dir: Path

    @property
    def root(self) -> Path:
        """Everything of ours that has no name in the requirement."""
        return self.run_dir / "online"

    @property
    def queue(self) -> Path:
        """The update queue, with the journal of updates."""
        return self.root / "queue.sqlite"

    @property
    def state(self) -> Path:
        """The folder of the worker's committed states."""
        return self.root / "state"

    @property
    def snapshots(self) -> Path:
        """Published versions and the pointer to the newest."""
        return self.run_dir / SNAPSHOTS

    @property
    def buffer(self) -> Path:
        """The experience buffer as the engine left it."""
        return self.root / "experiences.npz"

    @property
    def images(self) -> Path:
        """What a policy that sees was shown, by content (`images.ImageFolder`)."""
        return self.root / "images"

    @property
    def address(self) -> Path:
        """Where the engine answers over HTTP: `{"url": …, "token_needed": …}`, readable by its owner only."""
        return self.root / "address.json"
