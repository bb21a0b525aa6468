"""Paths for learning while serving in a run's folder."""

from __future__ import annotations

from pathlib import Path

from ...runs.paths import SNAPSHOTS


class OnlineFolder:
    """The paths of one run. Creates no files or folders."""

    def __init__(self, run_dir: Path) -> None:
        root = run_dir / "online"
        self.run_dir = run_dir
        self.queue = root / "queue.sqlite"
        self.state = root / "state"
        """The worker's committed states."""
        self.snapshots = run_dir / SNAPSHOTS
        """Published versions, and the pointer to the newest one."""
        self.buffer = root / "experiences.npz"
        """The engine's saved experience buffer."""
        self.images = root / "images"
        """Images that were shown to the policy, named by content (`images.ImageFolder`)."""
        self.address = root / "address.json"
        """The engine's HTTP address, readable only by its owner: `{"url": …, "token_needed": …}`."""
