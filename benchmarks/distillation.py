"""On-policy distillation against GRPO: `python -m benchmarks.distillation [--seeds 3] [--world doors]`.

For each seed, GRPO first trains a teacher on a small world (`benchmarks.small_worlds`) for `--teacher` steps. Then the
policy of the start is trained again in three ways for `--steps` steps: `reward` (GRPO), `teacher` (the teacher's
log-probs alone) and `both`. Each row has held-out success at temperature 1 over the processor seconds of training,
evaluations not counted. Rows in `--results` are not run again. Intervals: 95 % over the seeds, Student's t.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.training.rft import run_rft

from .mechanisms import SMALL, SMALL_WORLDS, WORLDS, KeptRows, Log, interval
from .small_worlds import save_policy

ARMS: dict[str, list[str]] = {
    "reward": [],
    "teacher": ["training.distillation.with_reward=false"],
    "both": [],
}


class Clock(Log):
    """A `Log` that also records the processor seconds of training at the end of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[int, float] = {}
        self._used = 0.0
        self._since = time.process_time()

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        now = time.process_time()
        if metric.LOSS in values:
            self._used += now - self._since
            self.seconds[step] = self._used
        self._since = now
        super().metrics(step, values)


def main() -> None:
    """Run the missing rows, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--world", choices=list(WORLDS), default="doors")
    parser.add_argument("--teacher", type=int, default=80)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("runs/distillation.jsonl"))
    given = parser.parse_args()
    logging.disable(logging.INFO)
    kept = KeptRows(given.results)
    rows: dict[str, list[dict[str, Any]]] = {"GRPO, teacher": []}
    for seed in range(given.seeds):
        folder = given.results.parent / "distillation" / f"{given.world}-{given.teacher}-{seed}"
        key = [given.world, given.teacher, seed]
        row, _ = kept.get(key, partial(train, folder, given.world, seed, given.teacher, None, []))
        rows["GRPO, teacher"].append(row)
        say(f"teacher, seed {seed}", row)
        for arm, settings in ARMS.items():
            taught = [] if arm == "reward" else [f"training.distillation.teacher={folder}/adapters", *settings]
            row, _ = kept.get(
                [*key, arm, given.steps], partial(train, folder, given.world, seed, given.steps, arm, taught)
            )
            rows.setdefault(arm, []).append(row)
            say(f"{arm}, seed {seed}", row)
    print(f"\n| {given.world} | steps | before | half of the steps | after | processor seconds |\n{'|---' * 6}|")
    for arm, found in rows.items():
        curves = [row["curve"] for row in found]
        cells = [interval([c[i][2] for c in curves]) for i in (0, len(curves[0]) // 2, -1)]
        cells.append(interval([c[-1][1] for c in curves]))
        print(f"| {arm} | {curves[0][-1][0]} | " + " | ".join(cells) + " |")


def say(name: str, row: Mapping[str, Any]) -> None:
    curve = "  ".join(f"step {step} {seconds:.0f} s {success:.2f}" for step, seconds, success in row["curve"])
    print(f"{name}: {curve}", flush=True)


def train(folder: Path, world: str, seed: int, steps: int, arm: str | None, settings: list[str]) -> dict[str, Any]:
    """Train once. The curve has steps, processor seconds and held-out success. arm: None for the teacher."""
    if not (folder / "base").exists():
        save_policy(WORLDS[world](), folder / "base", seed)
    config = load_config(
        None,
        [
            *(f"model.base={folder}/base", f"environment.class_path={SMALL_WORLDS}:{WORLDS[world].__name__}"),
            *(*SMALL, "rewards.w_curiosity=0", "rewards.w_coherence=0", "rewards.w_penalty=0"),
            *(f"seed={seed if arm is None else seed + 100}", "training.prompts_per_step=8", "training.save_every=0"),
            *(f"training.max_steps={steps}", f"training.eval_every={max(steps // 4, 1)}"),
            *("environment.eval_tasks=104", f"training.output_dir={folder}/{arm or 'adapters'}"),
            *settings,
        ],
    )
    clock = Clock()
    place = folder / f"run-{arm or 'teacher'}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.yaml").write_text(config.model_dump_json())  # for the model card of the result
    if not run_rft(config, place, clock):
        sys.exit("the training was stopped")
    found = [(s, clock.seconds.get(s, 0.0), v[metric.SUCCESS_SAMPLED]) for s, v in sorted(clock.steps.items())
             if metric.SUCCESS_SAMPLED in v]  # fmt: skip
    return {"curve": found}


if __name__ == "__main__":
    main()
