"""The effect of each mechanism: `python -m benchmarks.mechanisms [--seeds 5] [--task default,rare] [--arm plain]`.

Trains once for each task, arm and seed, and prints every row as soon as it is known, then means with 95 % intervals
over the seeds. `plain` has no mechanism; `only X` adds one to it, `without X` takes one from the default configuration
(`default`). The built-in policy is trained on `default`, a small one on each small world (`benchmarks.small_worlds`).
On the default task every mechanism is tried, on a world the one that it is made for. Rows in `--results` are not run
again, so the command may be stopped and started at any time.

Columns: held-out success at temperature 1 halfway, at the end, and of `LONGER` arms after further steps; success of the
last quarter's training rollouts; the penalties a rollout (misuse); the KL to the policy of the start, nats per token;
thousands of sampled tokens up to the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.runs.write.writer import NullWriter
from grpo_tui.engine.training.rft import run_rft

from .small_worlds import Boxes, Doors, Keys, Lake, Long, Misuse, World, save_policy

SMALL_WORLDS = Path(__file__).with_name("small_worlds.py")

OFF = {
    "curiosity": ["rewards.w_curiosity=0"],
    "coherence": ["rewards.w_coherence=0"],
    "penalties": ["rewards.w_penalty=0"],
    "replay": ["training.replay.mode=off"],
    "beta": ["training.beta_mode=fixed"],
}
ON = {
    "curiosity": ["rewards.w_curiosity=0.1"],
    "coherence": ["rewards.w_coherence=0.1"],
    "penalties": ["rewards.w_penalty=1"],
    "replay": ["training.replay.mode=ssr"],
    "beta": ["training.beta_mode=auto"],
}
DIRECT = "training.compare_shaping=group"
PLAIN = [setting for settings in OFF.values() for setting in settings]
ARMS: dict[str, list[str]] = {
    "plain": PLAIN,
    "default": [],
    "unshaped": [*OFF["curiosity"], *OFF["coherence"], *OFF["penalties"]],
    **{f"only {name}": [*PLAIN, "training.replay.signal=reward", *settings] for name, settings in ON.items()},
    "direct": [DIRECT],
    "turn": [*PLAIN, "training.advantages=turn"],
    "gigpo": [*PLAIN, "training.advantages=gigpo"],
    "tree": [*PLAIN, "training.advantages=tree"],
    **{
        f"direct {name}": [*PLAIN, "training.replay.signal=reward", *ON[name], DIRECT]
        for name in ("curiosity", "coherence", "penalties")
    },
    **{f"without {name}": settings for name, settings in OFF.items()},
}
"""Settings of each arm over the default configuration. `direct`: shaping is part of the return, instead of deciding
between rollouts with the same success."""
LONGER = {"tree": 54}
"""Steps of arms that sample fewer tokens per step, so that they sample about as many as the others in 40 steps."""
SMALL = [
    *("model.sft_adapters=null", "model.lora=null", "model.device=cpu", "environment.config={}"),
    *("environment.train_tasks=208", "training.max_turn_tokens=3", "training.max_trajectory_tokens=160"),
    *("training.learning_rate=0.002", "training.trl.lr_scheduler_type=constant"),
]
"""Settings for small policies, which train all weights because they have no adapters."""
TASKS: dict[str, list[str]] = {
    "default": [],
    "doors": SMALL,
    "long": SMALL,
    "lake": [*SMALL, "training.max_trajectory_tokens=256"],
    "boxes": SMALL,
    "misuse": SMALL,
    "rare": SMALL,
    "drift": [*SMALL, "training.learning_rate=0.007"],
}
"""Settings of each task. doors: several actions with a reward only at the end (curiosity). long, lake: other worlds for
advantage methods. boxes: the policy looks again where it just looked (coherence). misuse: wrong calls before the right
one cost nothing (penalties). rare: most groups are all right or all wrong (replay). drift: updates so large that the
policy diverges (beta)."""
WORLDS: Mapping[str, type[World]] = {
    **{"doors": Doors, "long": Long, "lake": Lake},
    **{"boxes": Boxes, "misuse": Misuse, "rare": Keys, "drift": Keys},
}
SAME = {"without beta": "default", "only replay": "unshaped"}
"""Arms that equal another arm under the current defaults, where beta is fixed."""
MADE_FOR = {"doors": "curiosity", "boxes": "coherence", "misuse": "penalties", "rare": "replay", "drift": "beta"}
"""The mechanism that each task is designed for."""
STEPS = {"rare": 120}
"""Optimiser steps of each task, if not 40."""
COLUMNS = ("halfway", "end", "longer", "training", "penalties", "kl", "tokens")


def main() -> None:
    """Run the missing rows, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--task", default=",".join(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--arm", help=f"of {', '.join(ARMS)}; by default those of the task")
    parser.add_argument("--results", type=Path, default=Path("runs/mechanisms.jsonl"))
    given = parser.parse_args()
    logging.disable(logging.INFO)
    kept = KeptRows(given.results)
    wanted: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        for task in given.task.split(","):
            used = size_of(task)
            for arm in given.arm.split(",") if given.arm else arms_of(task):
                row, new = kept.get(_key(task, arm, seed, used), partial(one, task, arm, seed, used))
                wanted.append(row)
                if new:
                    print(line_of(f"{task:8} {arm:16} seed {seed}", row) + f"  {row['seconds']:.0f} s", flush=True)
    table(wanted)


def arms_of(task: str) -> list[str]:
    """Return the arms of a task: each mechanism alone on and alone off for `default`, else only the task's own."""
    if task in ("long", "lake"):
        return ["plain", "turn", "gigpo", "tree"]
    mechanisms = [MADE_FOR[task]] if task in MADE_FOR else list(ON)
    shaped = [] if task in MADE_FOR else ["unshaped"]
    arms = [f"{way} {name}" for name in mechanisms for way in ("only", "without")]
    return ["plain", "default", "direct", *shaped, *(arm for arm in arms if arm not in SAME)]


def size_of(task: str) -> Mapping[str, int]:
    """Return prompts per step, steps, and held-out tasks."""
    return {"prompts": 8, "steps": STEPS.get(task, 40), "eval": 104 if task in WORLDS else 96}


def one(task: str, arm: str, seed: int, size: Mapping[str, int]) -> dict[str, Any]:
    """Train once."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = _training(Path(folder), task, arm, seed, size)
    return {"task": task, "arm": arm, "seed": seed, **found, "seconds": time.monotonic() - began}


def _training(folder: Path, task: str, arm: str, seed: int, size: Mapping[str, int]) -> dict[str, float]:
    log = Log()
    steps, longer = size["steps"], LONGER.get(arm, size["steps"])
    world: list[str] = []
    if task in WORLDS:
        save_policy(WORLDS[task](), folder / "base", seed)
        world = [f"model.base={folder}/base", f"environment.class_path={SMALL_WORLDS}:{WORLDS[task].__name__}"]
    config = load_config(
        None,
        [
            *world,
            *TASKS[task],
            *ARMS[arm],
            f"seed={seed}",
            f"training.prompts_per_step={size['prompts']}",
            f"training.max_steps={longer}",
            f"training.eval_every={steps // 2}",
            "training.save_every=0",
            f"environment.eval_tasks={size['eval']}",
            f"training.output_dir={folder}/adapters",
        ],
    )
    if not run_rft(config, folder, log):
        sys.exit("the training was stopped")
    last = [v for s, v in log.steps.items() if steps - steps // 4 < s <= steps]
    return {
        "halfway": log.at(metric.SUCCESS_SAMPLED, steps // 2),
        "end": log.at(metric.SUCCESS_SAMPLED, steps),
        **({"longer": log.at(metric.SUCCESS_SAMPLED, longer)} if longer > steps else {}),
        "training": fmean(v[metric.SUCCESS_TRAIN] for v in last),
        "penalties": fmean(v[metric.PENALTIES] for v in last),
        "kl": fmean(v[metric.KL_MEAN] for v in last),
        "tokens": sum(v.get(metric.TOKENS_AGENT, 0.0) for s, v in log.steps.items() if s <= steps) / 1000,
    }


class KeptRows:
    """The rows of a JSON-lines file, each with a `key`. Existing rows are not measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]

    def get(self, key: object, measure: Callable[[], Mapping[str, Any]]) -> tuple[dict[str, Any], bool]:
        """Return the row of a key, and whether it had to be measured."""
        for row in self.rows:
            if row["key"] == key:
                return row, False
        row = {"key": key, **measure()}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row, True


class Log(NullWriter):
    """Keeps the metrics of every step, and the first step of each alert."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, Any]] = {}
        self.alerts: dict[str, int] = {}

    def event(self, kind: str, message: str, *, step: int = 0, **data: Any) -> None:
        if kind == "alert":
            self.alerts.setdefault(str(data.get("detector")), step)

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Record the metrics of a step."""
        self.steps.setdefault(step, {}).update(values)

    def at(self, name: str, step: int) -> float:
        """Return a metric of a step."""
        return float(self.steps[step][name])


def table(rows: list[dict[str, Any]]) -> None:
    """Print means and intervals, and the difference to `plain` with its own interval, over the common seeds."""
    print("\nmean ± 95 %")
    for task in dict.fromkeys(row["task"] for row in rows):
        used = size_of(task)
        print(f"\n{used['steps']} steps of {used['prompts']} x 8 rollouts, evaluated on {used['eval']} tasks")
        print(f"\n{task:19}" + "".join(f"{name:>16}" for name in COLUMNS) + f"{'end - plain':>16}{'seeds':>7}")
        mine = [row for row in rows if row["task"] == task]
        base = {row["seed"]: row["end"] for row in mine if row["arm"] == "plain"}
        for arm in dict.fromkeys(row["arm"] for row in mine):
            of_arm = [row for row in mine if row["arm"] == arm]
            cells = [interval([row[c] for row in of_arm if c in row]) for c in COLUMNS]
            paired = interval([row["end"] - base[row["seed"]] for row in of_arm if row["seed"] in base])
            print(f"{arm:19}" + "".join(f"{c:>16}" for c in (*cells, paired)) + f"{len(of_arm):>7}")


def interval(values: list[float]) -> str:
    """Format the mean and the half width of its 95 % interval (Student's t)."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return f"{fmean(values):.3f} ± {half:.3f}"


def line_of(name: str, row: Mapping[str, Any]) -> str:
    """Format a single row."""
    return f"{name}  " + "  ".join(f"{c} {row[c]:.3f}" for c in COLUMNS if c in row)


def _key(task: str, arm: str, seed: int, size: Mapping[str, int]) -> str:
    """Return the key of a row, which includes a hash of its settings."""
    digest = hashlib.sha1(json.dumps([[*TASKS[task], *ARMS[arm]], dict(size)]).encode()).hexdigest()[:10]
    return f"{task}/{arm}/{seed}/{digest}"


if __name__ == "__main__":
    main()
