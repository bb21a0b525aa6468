"""The checkpoints in a run's folder, as anyone may look at them; `engine.training.checkpoints` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .checksums import find_damage
from .paths import CHECKPOINTS

PREFIX = "checkpoint-"


@dataclass(frozen=True)
class Damaged:
    """A checkpoint that cannot be gone on from, and why, in a few words."""

    path: Path
    why: str


def checkpoint_folder(run_dir: Path) -> Path:
    """Where a run's checkpoints are."""
    return run_dir / CHECKPOINTS


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Checkpoints in `folder` as (step, path), oldest first; whether they are whole is not looked at."""
    found = []
    for path in folder.glob(f"{PREFIX}*") if folder.is_dir() else ():
        step = path.name.removeprefix(PREFIX)
        if step.isdigit() and path.is_dir():
            found.append((int(step), path))
    return sorted(found)


def newest_whole(folder: Path) -> tuple[tuple[int, Path] | None, list[Damaged]]:
    """The newest checkpoint whose files are as they were written, or None; and the newer ones that are damaged.

    Reads every byte of each that it looks at.
    """
    damaged = []
    for step, path in reversed(checkpoints(folder)):
        why = find_damage(path)
        if why is None:
            return (step, path), damaged
        damaged.append(Damaged(path, why))
    return None, damaged
