"""Train the corpus. One process imports the libraries, and each training runs the product in a fork of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from grpo_tui.configs import metric_names as metric

from .corpus import CORPUS
from .recipes import SETTINGS, Recipe

HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "grpo-tui" / "diagnosis"
RESULT = "result.json"
LEFT_OUT = ("checkpoints", "live", "adapters")
"""Run folders that the evaluation does not read."""


@dataclass(frozen=True)
class Trained:
    """A finished training: held-out success at temperature 1 before and after, processor seconds, and its folder."""

    recipe: Recipe
    seed: int
    before: float
    after: float
    seconds: float
    folder: Path


def folder_of(recipe: Recipe, seed: int) -> Path:
    """Return the folder of a training."""
    return HOME / f"{recipe.name}-{seed}"


def settings_of(recipe: Recipe, seed: int, folder: Path | None = None) -> list[str]:
    """Return the settings of a training in `--set` form. folder: replaces `folder_of`."""
    folder = folder or folder_of(recipe, seed)
    return [
        f"{key}={value}"
        for key, value in {
            **SETTINGS,
            **(recipe.settings or {}),
            "seed": seed,
            "model.base": f'"{HOME / recipe.world}"',
            "environment.class_path": f"benchmarks.diagnosis.worlds.{recipe.world}",
            **(recipe.settings or {}),  # repeated, because a recipe may override model and environment
            "training.output_dir": f'"{folder / "adapters" / "result"}"',
        }.items()
    ]


def trained(recipe: Recipe, seed: int) -> Trained | None:
    """Return a finished training, or None if there is none with the current settings."""
    file = folder_of(recipe, seed) / RESULT
    if not file.is_file():
        return None
    kept = json.loads(file.read_text())
    if kept["key"] != _key(recipe, seed):
        return None
    return Trained(recipe, seed, kept["before"], kept["after"], kept["seconds"], file.parent)


def train(names: Sequence[str], seeds: int) -> None:
    """Run missing trainings, seed by seed, and print a line for each."""
    jobs = [(recipe, seed) for seed in range(seeds) for recipe in CORPUS.values() if recipe.name in names]
    missing = [job for job in jobs if trained(*job) is None]
    print(f"{len(jobs)} trainings, {len(missing)} are missing", flush=True)
    if not missing:
        return
    prepare({recipe.world for recipe, _ in missing})
    for number, (recipe, seed) in enumerate(missing, 1):
        began = time.monotonic()
        done = _train(recipe, seed)
        what = f"{number}/{len(missing)} {recipe.family:12} {recipe.name:15} seed {seed}"
        if done is None:
            print(f"{what}  failed: {folder_of(recipe, seed) / 'log.txt'}", flush=True)
        else:
            print(
                f"{what}  held-out {done.before:.2f} -> {done.after:.2f}  {done.seconds:.1f} processor seconds, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )


def prepare(worlds: set[str]) -> None:
    """Import the libraries of the trainings, and create missing first policies."""
    import torch

    from . import patches  # noqa: F401 - forks have what it imports
    from . import worlds as module

    torch.set_num_threads(1)
    for name in sorted(worlds):
        if hasattr(module, name) and not (HOME / name / "config.json").is_file():
            print(f"the first policy of {name}", flush=True)
            module.save_first_policy(getattr(module, name), HOME / name)


def _train(recipe: Recipe, seed: int) -> Trained | None:
    folder = folder_of(recipe, seed)
    shutil.rmtree(folder, ignore_errors=True)
    seconds = in_a_fork(folder, settings_of(recipe, seed), recipe.patch)
    if seconds is None:
        return None
    points = held_out(folder)
    kept = {"key": _key(recipe, seed), "before": points[0], "after": points[-1], "seconds": seconds}
    for name in LEFT_OUT:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / RESULT).write_text(json.dumps(kept))
    return trained(recipe, seed)


def held_out(folder: Path) -> list[float]:
    """Return held-out success at temperature 1 for each evaluation."""
    from grpo_tui.engine.runs.read.reader import RunReader

    with closing(RunReader(folder)) as reader:
        return [value for _, value in reader.metrics.points(metric.SUCCESS_SAMPLED)]


def steps_of(folder: Path) -> int:
    """Return the number of steps of a training."""
    from grpo_tui.engine.runs.read.reader import RunReader

    with closing(RunReader(folder)) as reader:
        return reader.metrics.points(metric.LEARNING_RATE)[-1][0]


def in_a_fork(folder: Path, settings: Sequence[str], patch: str = "", *, resume: bool = False) -> float | None:
    """Train with these settings in a fork of this process. Returns processor seconds, or None if it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid == 0:
        os._exit(_child(folder, settings, patch, resume))
    _, status, usage = os.wait4(pid, 0)
    return usage.ru_utime + usage.ru_stime if os.waitstatus_to_exitcode(status) == 0 else None


def write_config(folder: Path, settings: Sequence[str]) -> None:
    """Write the configuration of a run."""
    from grpo_tui.configs.loading import load_config
    from grpo_tui.configs.writing import to_yaml

    (folder / "config.yaml").write_text(to_yaml(load_config(None, list(settings))))


def _child(folder: Path, settings: Sequence[str], patch: str, resume: bool) -> int:
    """Train in this process, writing its output to the folder. Returns the exit code."""
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        from grpo_tui.engine.training.__main__ import run

        from . import patches

        write_config(folder, settings)
        if patch:
            patches.apply(patch)
        return run(folder, resume=resume)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _key(recipe: Recipe, seed: int) -> str:
    text = json.dumps([settings_of(recipe, seed), recipe.patch]).replace(str(Path(__file__).parent), "")
    return hashlib.sha1(text.encode()).hexdigest()
