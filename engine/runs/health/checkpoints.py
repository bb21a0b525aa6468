"""The checkpoints in a run's folder, for readers. `engine.training.checkpoints` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..durable import find_damage
from ..paths import CHECKPOINTS

PREFIX = "checkpoint-"
SPARSE = "adapters-"
"""The prefix of adapters kept from a removed checkpoint."""


@dataclass(frozen=True)
class Damaged:
    """A damaged checkpoint that cannot be resumed from, and the reason in a few words."""

    path: Path
    why: str


def checkpoint_folder(run_dir: Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return run_dir / CHECKPOINTS


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in `folder` as (step, path), oldest first, without checking their files."""
    return _by_step(folder, PREFIX)


def sparse_adapters(folder: Path) -> list[tuple[int, Path]]:
    """Return the adapters kept from removed checkpoints as (step, path), oldest first."""
    return _by_step(folder, SPARSE)


def policies(folder: Path) -> dict[int, Path]:
    """Return the kept weights by step: complete checkpoints and adapters."""
    return dict(sorted([*sparse_adapters(folder), *checkpoints(folder)]))


def _by_step(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    found = []
    for path in folder.glob(f"{prefix}*") if folder.is_dir() else ():
        step = path.name.removeprefix(prefix)
        if step.isdigit() and path.is_dir():
            found.append((int(step), path))
    return sorted(found)


def newest_whole(folder: Path) -> tuple[tuple[int, Path] | None, list[Damaged]]:
    """Return the newest checkpoint whose files match their checksums (or None), and the newer, damaged ones.

    It reads every byte of each checkpoint that it checks.
    """
    damaged = []
    for step, path in reversed(checkpoints(folder)):
        damage = find_damage(path)
        if damage is None:
            return (step, path), damaged
        damaged.append(Damaged(path, damage))
    return None, damaged
