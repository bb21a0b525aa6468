"""Success of the default training: `python -m benchmarks.success [--seeds 3] [--set training.max_steps=100]`.

Runs the default configuration once for each seed, each run in a process of its own as `grpo-tui train` starts it, and
prints held-out success before and after, greedy and at temperature 1, with the time from the trainer's start to the
first step and to the end. To reach: from at most 0.55 to at least 0.85, mean of 3 seeds, 4 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.launch.children import CPU_SETTINGS
from grpo_tui.engine.runs.read.reader import RunReader

KEYS = (metric.SUCCESS_GREEDY, metric.SUCCESS_SAMPLED)


def main() -> None:
    """Train, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--config", default=None)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--curve", action="store_true", help="print every evaluation, too")
    given = parser.parse_args()
    rows = [one(seed, given) for seed in range(given.seeds)]
    print(f"{'seed':>5}{'greedy':>16}{'temperature 1':>18}{'first step':>12}{'steps':>7}{'s/step':>8}{'total':>9}")
    for row in rows:
        show(str(row["seed"]), row)
    keys = [k for k in rows[0] if k not in ("seed", "curve")]
    show("mean", {k: mean(r[k] for r in rows) for k in keys})


def show(name: str, row: dict[str, Any]) -> None:
    """Print one line of the table."""
    greedy = f"{row['greedy_before']:.2f} -> {row['greedy_after']:.2f}"
    sampled = f"{row['sampled_before']:.2f} -> {row['sampled_after']:.2f}"
    print(
        f"{name:>5}{greedy:>16}{sampled:>18}{row['first_step']:>10.1f} s{row['steps']:>7.0f}{row['per_step']:>8.2f}"
        f"{row['total']:>7.0f} s",
        flush=True,
    )


def one(seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Run once from start to end, and read the result from the record."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "run"
        folder.mkdir()
        overrides = [*given.overrides, f"seed={seed}", f'training.output_dir="{home}/adapters"']
        config = load_config(given.config, overrides)
        (folder / "config.yaml").write_text(yaml.safe_dump(json.loads(config.model_dump_json())))
        environment = {**CPU_SETTINGS, **os.environ, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "grpo_tui.engine.training", str(folder)]
        began = time.time()
        with (folder / "log.txt").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            first = None
            while process.poll() is None:
                time.sleep(0.1)
                if first is None and (folder / "record.sqlite").exists() and _steps(folder):
                    first = time.time() - began
        if process.returncode != 0:
            sys.exit((folder / "log.txt").read_text()[-3000:])
        total = time.time() - began
        reader = RunReader(folder)
        greedy, sampled = (reader.metrics.points(key) for key in KEYS)
        seconds = [v for _, v in reader.metrics.points(metric.STEP_SECONDS)]
        reader.close()
    if given.curve:
        for (step, a), (_, b) in zip(greedy, sampled, strict=True):
            print(f"  seed {seed} step {step:4d}  greedy {a:.3f}  temperature 1 {b:.3f}", flush=True)
    return {
        "seed": seed,
        "greedy_before": greedy[0][1],
        "greedy_after": greedy[-1][1],
        "sampled_before": sampled[0][1],
        "sampled_after": sampled[-1][1],
        "first_step": first if first is not None else total,
        "steps": len(seconds),
        "per_step": mean(seconds),
        "total": total,
    }


def _steps(folder: Path) -> int:
    try:
        reader = RunReader(folder)
        try:
            return len(reader.metrics.points(metric.LOSS))
        finally:
            reader.close()
    except Exception:  # the record is still being created
        return 0


if __name__ == "__main__":
    main()
