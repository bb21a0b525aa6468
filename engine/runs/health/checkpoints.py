"""The checkpoints in a run's folder, for readers. `engine.training.checkpoints` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..durable import find_damage
from ..paths import CHECKPOINTS

PREFIX = "checkpoint-"


@dataclass(frozen=True)
class Damaged:
    """A checkpoint that no run can resume from, and the reason in a few words."""

    path: Path
    why: str


def checkpoint_folder(run_dir: Path) -> Path:
    """Return where a run's checkpoints are."""
    return run_dir / CHECKPOINTS


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in `folder` as (step, path), oldest first, without checking their files."""
    found = []
    for path in folder.glob(f"{PREFIX}*") if folder.is_dir() else ():
        step = path.name.removeprefix(PREFIX)
        if step.isdigit() and path.is_dir():
            found.append((int(step), path))
    return sorted(found)


def newest_whole(folder: Path) -> tuple[tuple[int, Path] | None, list[Damaged]]:
    """Return the newest checkpoint whose files match their checksums, or None, and the newer ones that are damaged.

    Reads every byte of each checkpoint that it checks.
    """
    damaged = []
    for step, path in reversed(checkpoints(folder)):
        why = find_damage(path)
        if why is None:
            return (step, path), damaged
        damaged.append(Damaged(path, why))
    return None, damaged
