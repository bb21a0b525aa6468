"""Paths of learning while serving in a run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...runs.paths import SNAPSHOTS


@dataclass(frozen=True)
class OnlineFolder:
    """Paths of one run. Naming them creates nothing."""

    run_dir: Path

    @property
    def root(self) -> Path:
        return self.run_dir / "online"

    @property
    def queue(self) -> Path:
        return self.root / "queue.sqlite"

    @property
    def state(self) -> Path:
        """The worker's committed states."""
        return self.root / "state"

    @property
    def snapshots(self) -> Path:
        """Published versions and the pointer to the newest."""
        return self.run_dir / SNAPSHOTS

    @property
    def buffer(self) -> Path:
        """The engine's saved experience buffer."""
        return self.root / "experiences.npz"

    @property
    def images(self) -> Path:
        """Images that the policy was shown, by content (`images.ImageFolder`)."""
        return self.root / "images"

    @property
    def address(self) -> Path:
        """The engine's HTTP address, readable by its owner only: `{"url": …, "token_needed": …}`."""
        return self.root / "address.json"
