"""Measure whether suggestions help: a broken training stops on its cause and continues with the suggestion.

`rewards.diagnosis.stop_on` stops it. The baseline is the same training continued without the suggestion.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from statistics import fmean

from .recipes import RECIPES, STEPS
from .training import HOME, LEFT_OUT, RESULT, held_out, in_a_fork, prepare, settings_of, steps_of, trained

SUGGESTIONS: Mapping[str, Mapping[str, object]] = {
    "lr_high": {"training.learning_rate": 0.002},
    "lr_low": {"training.learning_rate": 0.002},
    "kl_weight": {"training.beta": 0.01},
    "cold": {"training.temperature": 1.0},
    "greedy": {"training.top_k": 0},
    "clip_zero": {"training.trl.epsilon": 0.2, "training.trl.num_iterations": 1},
    "truncated": {"training.max_turn_tokens": 14},
    "one_prompt": {"environment.config": "{}"},
    "other_template": {"model.chat_template": "null"},
    "clipped_gradient": {"training.trl.max_grad_norm": 1.0},
}
"""The settings that `check` recommends for each recipe's cause."""


def suggestions(names: Sequence[str], seeds: int) -> None:
    """Run missing trainings, and print held-out success at the alert and after more steps with and without it."""
    print(f"{'fault':18}{'alert at':>9}{'then':>7}{'without':>9}{'with':>7}  seeds")
    for name in (n for n in SUGGESTIONS if n in names):
        rows = [row for seed in range(seeds) if (row := _continued(name, seed)) is not None]
        if rows:
            step, then, without, helped = (fmean(values) for values in zip(*rows, strict=True))
            print(f"{name:18}{step:>9.1f}{then:>7.2f}{without:>9.2f}{helped:>7.2f}  {len(rows)}", flush=True)


def _continued(name: str, seed: int) -> tuple[float, float, float, float] | None:
    """Return the step of the alert and success there, without and with the suggestion; None without an alert."""
    recipe, folder = RECIPES[name], HOME / "suggestions" / f"{name}-{seed}"
    if (folder / RESULT).is_file():
        return json.loads((folder / RESULT).read_text())
    broken = trained(recipe, seed)
    if broken is None:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    prepare({recipe.world})
    settings = settings_of(recipe, seed, folder)
    stop = [f"rewards.diagnosis.stop_on=[{', '.join(recipe.causes)}]"]
    if in_a_fork(folder, [*settings, *stop], recipe.patch) is None:
        return None
    before = held_out(folder)
    steps = steps_of(folder)
    if steps >= STEPS:
        return None
    changed = [f"{key}={value}" for key, value in SUGGESTIONS[name].items()]
    more = [f"training.max_steps={steps + STEPS}"]
    if in_a_fork(folder, [*settings, *changed, *more], recipe.patch, resume=True) is None:
        return None
    row = steps, before[-1], broken.after, held_out(folder)[-1]
    for part in LEFT_OUT:
        shutil.rmtree(folder / part, ignore_errors=True)
    (folder / RESULT).write_text(json.dumps(row))
    return row
