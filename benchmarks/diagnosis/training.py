"""Trains the corpus. One process imports the libraries, and each training is a fork of it that runs the product."""

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

from .recipes import RECIPES, SETTINGS, Recipe

HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "grpo-tui" / "diagnosis"
RESULT = "result.json"
LEFT_OUT = ("checkpoints", "live", "adapters")
"""Folders of a run that the evaluation does not read."""


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


def settings_of(recipe: Recipe, seed: int) -> list[str]:
    """Return the settings of a training as `--set` takes them."""
    folder = folder_of(recipe, seed)
    return [
        f"{key}={value}"
        for key, value in {
            **SETTINGS,
            **(recipe.settings or {}),
            "seed": seed,
            "model.base": f'"{HOME / recipe.world}"',
            "environment.class_path": f"benchmarks.diagnosis.worlds.{recipe.world}",
            "training.output_dir": f'"{folder / "adapters" / "result"}"',
        }.items()
    ]


def trained(recipe: Recipe, seed: int) -> Trained | None:
    """Return a finished training; None if there is none with the present settings."""
    file = folder_of(recipe, seed) / RESULT
    if not file.is_file():
        return None
    kept = json.loads(file.read_text())
    if kept["key"] != _key(recipe, seed):
        return None
    return Trained(recipe, seed, kept["before"], kept["after"], kept["seconds"], file.parent)


def train(names: Sequence[str], seeds: int) -> None:
    """Train what is missing, seed by seed, and print a line for each."""
    jobs = [(recipe, seed) for seed in range(seeds) for recipe in RECIPES.values() if recipe.name in names]
    missing = [job for job in jobs if trained(*job) is None]
    print(f"{len(jobs)} trainings, {len(missing)} are missing", flush=True)
    if not missing:
        return
    _prepare({recipe.world for recipe, _ in missing})
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


def _prepare(worlds: set[str]) -> None:
    """Import what trainings import, and make the first policies that are missing."""
    import torch

    from . import patches  # noqa: F401 - forks have what it imports
    from . import worlds as module

    torch.set_num_threads(1)
    for name in sorted(worlds):
        if not (HOME / name / "config.json").is_file():
            print(f"the first policy of {name}", flush=True)
            module.save_first_policy(getattr(module, name), HOME / name)


def _train(recipe: Recipe, seed: int) -> Trained | None:
    folder = folder_of(recipe, seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pid = os.fork()
    if pid == 0:
        os._exit(_child(recipe, seed, folder))
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        return None
    from grpo_tui.engine.runs.read.reader import RunReader

    with closing(RunReader(folder)) as reader:
        points = reader.metrics.points(metric.SUCCESS_SAMPLED)
    kept = {
        "key": _key(recipe, seed),
        "before": points[0][1],
        "after": points[-1][1],
        "seconds": usage.ru_utime + usage.ru_stime,
    }
    for name in LEFT_OUT:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / RESULT).write_text(json.dumps(kept))
    return trained(recipe, seed)


def _child(recipe: Recipe, seed: int, folder: Path) -> int:
    """Train in this process, with its output in the folder. Returns the exit code."""
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        from grpo_tui.configs.loading import load_config
        from grpo_tui.configs.writing import to_yaml
        from grpo_tui.engine.training.__main__ import run

        from . import patches

        config = load_config(None, settings_of(recipe, seed))
        (folder / "config.yaml").write_text(to_yaml(config))
        if recipe.patch:
            patches.apply(recipe.patch)
        return run(folder)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _key(recipe: Recipe, seed: int) -> str:
    text = json.dumps([settings_of(recipe, seed), recipe.patch]).replace(str(Path(__file__).parent), "")
    return hashlib.sha1(text.encode()).hexdigest()
