"""Checkpoints that are complete or absent, and hold everything a run needs to resume as if it had never stopped.

Saving follows this protocol; each step has a purpose:

1. write everything into `checkpoints/.tmp-checkpoint-N`         (a reader never sees a half-written checkpoint)
2. flush the run's record                                        (the record contains every step of the checkpoint)
3. write the length and SHA-256 of each file into a file         (damage is found before a file is used)
4. fsync every file and the folder                               (a rename that survives a power cut has its contents)
5. rename the folder to `checkpoint-N`                           (the checkpoint appears atomically)
6. fsync `checkpoints/`, then remove older checkpoints           (at least one whole checkpoint always exists)

An existing whole checkpoint of step N stays, since it holds the same state. A run saves its first checkpoint, of step
0, before it does anything else, and another after its first step, so that a killed run can be resumed.

Files: adapters (or model) as safetensors, `optimizer.safetensors` (or `optimizer/`, see `optimizer_state`) + `.json`,
`scheduler.json`, `rng_R.safetensors` + `.json` for each process R, `trainer_state.json`, `replay.safetensors` +
`.json`, `rewards.safetensors` + `.json` (running statistics, dynamics model), `judge.json` (whether the reward is
graded), `beta.json`, `checksums.json`. The step in the folder's name is the position in the record: resuming removes
everything recorded after it. Nothing is pickled.

A resume continues from the newest whole checkpoint (`find_start`). Newer damaged ones are renamed to
`damaged-checkpoint-N`, and removed once the run has a whole checkpoint of that step again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs.errors import count
from ..runs.durable import find_damage, make_folder, sync_folder, sync_tree, write_checksums
from ..runs.health.checkpoints import (
    PREFIX,
    SPARSE,
    Damaged,
    checkpoint_folder,
    checkpoints,
    newest_whole,
    sparse_adapters,
)
from ..runs.read.reader import RunReader
from . import TrainingError

if TYPE_CHECKING:  # imports torch
    from ...rewards.orchestrator import RewardOrchestrator

TEMPORARY = ".tmp-"
DAMAGED = "damaged-"


@dataclass(frozen=True)
class Start:
    """Where training begins: at `step`, with the state in `checkpoint` (None: from the beginning).

    record_from: remove and repeat everything recorded after this step (None: keep everything). damaged: newer
    checkpoints that cannot be used. note: one sentence for the user.
    """

    step: int = 0
    checkpoint: Path | None = None
    record_from: int | None = None
    damaged: tuple[Damaged, ...] = ()
    note: str = ""


def find_start(run_dir: Path) -> Start:
    """Find the newest whole checkpoint, from which a run resumes. Changes nothing.

    Raises TrainingError if steps are recorded but no whole checkpoint exists, so that no recorded data is lost.
    """
    found, damaged = newest_whole(checkpoint_folder(run_dir))
    with RunReader(run_dir) as record:
        recorded = record.metrics.last_step()
        evaluated = any(event.step == 0 for event in record.events(kinds=["eval"], limit=100_000))
    damage = "; ".join(f"{d.path.name} is damaged ({d.why})" for d in damaged)
    if found is None:
        if damaged or recorded:
            kept = f"its {recorded} recorded steps are unchanged" if recorded else "there is nothing to resume"
            raise TrainingError(
                f"run {run_dir.name} has no complete checkpoint{f': {damage}' if damage else ''}; {kept}. Start a new "
                f"run with its configuration: grpo-tui train {run_dir / 'config.yaml'}"
            )
        return Start(record_from=0 if evaluated else -1)
    step, path = found
    note = f"{damage}; " if damage else ""
    note += f"resuming from {path.name}"
    newest = max([recorded, *(int(d.path.name.removeprefix(PREFIX)) for d in damaged)])
    if newest > step:
        note += f"; the {count(newest - step, 'step after it is', 'steps after it are')} repeated"
    elif recorded < step:
        note += f"; steps {recorded + 1} to {step} are missing in the record"
    return Start(step, path, step if step or evaluated else -1, tuple(damaged), note)


def set_aside(damaged: Sequence[Damaged]) -> None:
    """Rename damaged checkpoints so that nothing mistakes them for whole ones. Raises OSError."""
    for checkpoint in damaged:
        target = checkpoint.path.with_name(DAMAGED + checkpoint.path.name)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(checkpoint.path, target)


def begin(folder: Path, step: int) -> Path:
    """Make a temporary folder for the checkpoint of `step`, and remove leftovers of interrupted saves."""
    make_folder(folder)
    discard(folder)
    temporary = folder / f"{TEMPORARY}{PREFIX}{step}"
    temporary.mkdir()
    return temporary


def commit(temporary: Path, keep: int, keep_adapters: int = 0) -> Path:
    """Publish the checkpoint, and remove all but the newest `keep` (at least 1). Raises OSError.

    keep_adapters: how many of the removed ones leave their adapters behind, spread over the steps (0: none).
    """
    folder, final = temporary.parent, temporary.with_name(temporary.name.removeprefix(TEMPORARY))
    if final.exists() and find_damage(final) is None:  # requested twice: it already holds this state
        shutil.rmtree(temporary, ignore_errors=True)
        return final
    write_checksums(temporary)
    sync_tree(temporary)
    if final.exists():
        shutil.rmtree(final)
    os.rename(temporary, final)
    sync_folder(folder)
    for step, old in checkpoints(folder)[:-keep]:
        if keep_adapters and step and (old / "adapter_config.json").is_file():  # step 0 is the base
            _leave_adapters(old, folder / f"{SPARSE}{step}")
        shutil.rmtree(old, ignore_errors=True)
    thin(sparse_adapters(folder), keep_adapters)
    newest = int(final.name.removeprefix(PREFIX))
    for path in folder.glob(f"{DAMAGED}{PREFIX}*"):
        if (step := path.name.removeprefix(DAMAGED + PREFIX)).isdigit() and int(step) <= newest:
            shutil.rmtree(path, ignore_errors=True)
    return final


def _leave_adapters(checkpoint: Path, target: Path) -> None:
    """Move the adapters out of a checkpoint. A failure costs only these adapters."""
    temporary = target.with_name(f"{TEMPORARY}{target.name}")
    with suppress(OSError):
        temporary.mkdir(exist_ok=True)
        for file in checkpoint.glob("adapter_*"):
            os.replace(file, temporary / file.name)
        os.rename(temporary, target)


def thin(kept: list[tuple[int, Path]], limit: int) -> None:
    """Remove adapters until at most `limit` are left, each time the one with the closest neighbours in steps."""
    kept = list(kept)
    while len(kept) > limit:
        ends = [0, *(step for step, _ in kept), kept[-1][0]]
        closest = min(range(len(kept) - 1), key=lambda i: ends[i + 2] - ends[i], default=0)
        shutil.rmtree(kept.pop(closest)[1], ignore_errors=True)


@contextmanager
def replacing(folder: Path | str) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder`, with checksums, unless the block fails. Raises OSError."""
    target = Path(folder).expanduser()
    temporary, old = target.with_name(f".tmp-{target.name}"), target.with_name(f".old-{target.name}")
    make_folder(target.parent)
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        yield temporary
        write_checksums(temporary)
        sync_tree(temporary)
        if target.exists():
            os.rename(target, old)
        os.rename(temporary, target)
        sync_folder(target.parent)
    finally:
        if old.exists() and not target.exists():
            os.rename(old, target)
        for leftover in (temporary, old):
            shutil.rmtree(leftover, ignore_errors=True)


def discard(folder: Path) -> None:
    """Remove leftovers of unfinished saves from `folder`."""
    for path in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


def save_rewards(orchestrator: RewardOrchestrator, folder: Path) -> None:
    """Save the running statistics and the dynamics model."""
    from safetensors.torch import save_file

    save_file(orchestrator.state_tensors(), folder / "rewards.safetensors")
    (folder / "rewards.json").write_text(json.dumps(orchestrator.state_facts()))


def load_rewards(orchestrator: RewardOrchestrator, folder: Path) -> None:
    """Load the state that `save_rewards` wrote."""
    from safetensors.torch import load_file

    facts = json.loads((folder / "rewards.json").read_text())
    orchestrator.load_state(load_file(folder / "rewards.safetensors"), facts)
