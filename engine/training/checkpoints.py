"""Checkpoints that are whole or not there: everything a run needs to go on as if it had never stopped.

Protocol of a save, in order, and what each step protects from:

1. Everything is written into `checkpoints/.tmp-checkpoint-N`    (a reader never sees a half-written checkpoint)
2. the run's record is flushed                                   (no step of the checkpoint is missing in the record)
3. every file and the folder are fsynced                         (a rename that survives a power cut has its contents)
4. the folder is renamed to `checkpoint-N`                       (from here on it exists, in one instant)
5. `checkpoints/` is fsynced, older checkpoints are removed      (there is always at least one whole checkpoint)

Files: adapters (or model) as safetensors, `optimizer.safetensors` + `.json`, `scheduler.json`, `rng_R.safetensors` +
`.json` for each process R, `trainer_state.json`, `replay.safetensors` + `.json`, `rewards.safetensors` + `.json`
(running statistics, dynamics model), `beta.json`. The record's position is the step in the folder's name: what was
recorded after it is removed on a resume. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..runs.paths import CHECKPOINTS

PREFIX = "checkpoint-"
TEMPORARY = ".tmp-"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the message names it and says what is wrong."""


def checkpoint_folder(run_dir: Path) -> Path:
    """Where a run's checkpoints are."""
    return run_dir / CHECKPOINTS


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Whole checkpoints in `folder` as (step, path), oldest first."""
    found = []
    for path in folder.glob(f"{PREFIX}*") if folder.is_dir() else ():
        step = path.name.removeprefix(PREFIX)
        if step.isdigit() and path.is_dir():
            found.append((int(step), path))
    return sorted(found)


def latest(folder: Path) -> tuple[int, Path] | None:
    """The newest whole checkpoint, or None."""
    found = checkpoints(folder)
    return found[-1] if found else None


def begin(folder: Path, step: int) -> Path:
    """An empty temporary folder for the checkpoint of `step`; leftovers of an interrupted save are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(old, ignore_errors=True)
    temporary = folder / f"{TEMPORARY}{PREFIX}{step}"
    temporary.mkdir()
    return temporary


def commit(temporary: Path, keep: int) -> Path:
    """Make the checkpoint exist, and remove all but the newest `keep`."""
    for path in [p for p in temporary.rglob("*") if p.is_file()]:
        _fsync(path)
    for path in [temporary, *(p for p in temporary.rglob("*") if p.is_dir())]:
        _fsync(path)
    final = temporary.with_name(temporary.name.removeprefix(TEMPORARY))
    if final.exists():  # the same step again, after a resume: the new one takes its place
        shutil.rmtree(final)
    os.rename(temporary, final)
    _fsync(final.parent)
    for _, old in checkpoints(final.parent)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# The parts. torch is imported where it is needed: `latest` is asked before anything heavy is loaded.


def save_optimizer(state: Mapping[str, Any], folder: Path) -> None:
    """A torch optimiser's `state_dict` as tensors and JSON."""
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    plain: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous().clone()
            else:
                plain.setdefault(str(index), {})[name] = value
    save_file(tensors, folder / "optimizer.safetensors")
    groups = [{k: v for k, v in g.items()} for g in state["param_groups"]]
    (folder / "optimizer.json").write_text(json.dumps({"values": plain, "param_groups": groups}))


def load_optimizer(folder: Path) -> dict[str, Any]:
    """The inverse of `save_optimizer`: a `state_dict`."""
    from safetensors.torch import load_file

    facts = json.loads((folder / "optimizer.json").read_text())
    state: dict[int, dict[str, Any]] = {int(i): dict(v) for i, v in facts["values"].items()}
    for name, tensor in load_file(folder / "optimizer.safetensors").items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    groups = [{k: tuple(v) if k == "betas" else v for k, v in g.items()} for g in facts["param_groups"]]
    return {"state": state, "param_groups": groups}


def save_rng(folder: Path, rank: int) -> None:
    """Random states of Python, numpy and torch in this process."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors |= {f"cuda.{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    save_file(tensors, folder / f"rng_{rank}.safetensors")
    version, internal, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()
    facts = {"python": [version, list(internal), gauss], "numpy": [name, keys.tolist(), *rest]}  # type: ignore[union-attr]
    (folder / f"rng_{rank}.json").write_text(json.dumps(facts))


def load_rng(folder: Path, rank: int) -> bool:
    """The inverse of `save_rng`; False when the checkpoint was written by fewer processes."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    path = folder / f"rng_{rank}.json"
    if not path.is_file():
        return False
    facts = json.loads(path.read_text())
    version, internal, gauss = facts["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = facts["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    tensors = load_file(folder / f"rng_{rank}.safetensors")
    torch.set_rng_state(tensors["cpu"])
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            if f"cuda.{i}" in tensors:
                torch.cuda.set_rng_state(tensors[f"cuda.{i}"], i)
    return True


def save_rewards(orchestrator: Any, folder: Path) -> None:
    """Running statistics and dynamics model of the reward orchestrator."""
    from safetensors.torch import save_file

    save_file(orchestrator.state_tensors(), folder / "rewards.safetensors")
    (folder / "rewards.json").write_text(json.dumps(orchestrator.state_facts()))


def load_rewards(orchestrator: Any, folder: Path) -> None:
    """The inverse of `save_rewards`."""
    from safetensors.torch import load_file

    facts = json.loads((folder / "rewards.json").read_text())
    orchestrator.load_state(load_file(folder / "rewards.safetensors"), facts)
