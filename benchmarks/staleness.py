"""The cost of rollouts of older policies: `python -m benchmarks.staleness [--seeds 3] [--quick] [--steps N]`.

Trains the built-in policy on the default task, once for each seed and arm: `synchronous` is the default training, whose
every step waits for its own rollouts; in `N steps old` rollouts come from a server over HTTP and are made up to N
optimiser steps ahead (`rollouts.max_staleness`), with the default importance correction. The server is that of the
tests: this machine, `TransformersAgent` behind vLLM's protocol. So success is what can be compared, and time is not.

Rows that `--results` holds already are not run again, so the command may be stopped and started as one likes. Columns:
held-out success before, halfway and at the end (temperature 1, and greedy at the end); how many steps old the rollouts
were, in the mean, and how far the log-probs of server and trainer were apart over them (nats a token).
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.policy.models import load_base
from grpo_tui.engine.policy.sources import load_tokenizer
from grpo_tui.engine.training.rft import run_rft
from tests.engine.agents.fake_vllm import FakeVLLM

from .mechanisms import KeptRows, Log, interval

FULL = {"prompts": 16, "steps": 75, "eval": 128}
QUICK = {"prompts": 6, "steps": 24, "eval": 48}
COLUMNS = ("before", "halfway", "end", "greedy", "staleness", "mismatch")


def main() -> None:
    """Run the missing rows, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--staleness", default="0,2", help="arms: 0 is the synchronous training")
    parser.add_argument("--correction", help="`rollouts.correction` in place of the default")
    parser.add_argument("--quick", action="store_true", help="smaller batches and fewer steps")
    parser.add_argument("--steps", type=int, help="of the training, in place of 75, or 24 with --quick")
    parser.add_argument("--results", type=Path, default=Path("runs/staleness.jsonl"))
    given = parser.parse_args()
    logging.disable(logging.INFO)
    size = QUICK if given.quick else FULL
    size = size | ({"steps": given.steps} if given.steps else {})
    kept = KeptRows(given.results)
    arms = [int(arm) for arm in given.staleness.split(",")]
    ends: dict[int, list[float]] = {arm: [] for arm in arms}
    print(f"{size['steps']} steps of {size['prompts']} x 8 rollouts, {size['eval']} held-out tasks")
    print(f"{'':<14}{'seed':>6}" + "".join(f"{name:>11}" for name in COLUMNS), flush=True)
    for seed in range(given.seeds):
        for arm in arms:
            how = {"correction": given.correction} if arm and given.correction else {}
            row, _ = kept.get({"arm": arm, "seed": seed, **size, **how}, partial(one, arm, seed, size, how))
            ends[arm].append(row["end"])
            print(f"{_name(arm):<14}{seed:>6}" + "".join(f"{row[c]:>11.4g}" for c in COLUMNS), flush=True)
    for arm, found in ends.items():
        print(f"{_name(arm):<14} at the end, mean ± 95 %: {interval(found)}")


def _name(arm: int) -> str:
    return f"{arm} steps old" if arm else "synchronous"


def one(staleness: int, seed: int, size: Mapping[str, int], how: Mapping[str, str]) -> dict[str, float]:
    """Train once and return the row."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        overrides = [
            f"seed={seed}",
            f"training.prompts_per_step={size['prompts']}",
            f"training.max_steps={size['steps']}",
            f"training.eval_every={size['steps'] // 2}",
            "training.save_every=0",
            f"environment.eval_tasks={size['eval']}",
            f"training.output_dir={home}/adapters",
        ]
        config = load_config(None, overrides)
        server = None
        if staleness:
            server = FakeVLLM(copy.deepcopy(load_base(config.model)), load_tokenizer(config.model)).start()
            served = ["rollouts.engine=vllm", f"rollouts.servers=[{server.url}]"]
            served += [f"rollouts.max_staleness={staleness}", *(f"rollouts.{k}={v}" for k, v in how.items())]
            config = load_config(None, [*overrides, *served])
        log = Log()
        finished = run_rft(config, Path(home), log)
        if server is not None:
            server.stop()
        if not finished:
            sys.exit("the training was stopped")
    steps = list(log.steps.values())
    return {
        "before": log.at(metric.SUCCESS_SAMPLED, 0),
        "halfway": log.at(metric.SUCCESS_SAMPLED, size["steps"] // 2),
        "end": log.at(metric.SUCCESS_SAMPLED, size["steps"]),
        "greedy": log.at(metric.SUCCESS_GREEDY, size["steps"]),
        "staleness": _mean(steps, metric.STALENESS),
        "mismatch": _mean(steps, metric.LOGPROB_MISMATCH),
        "seconds": time.monotonic() - began,
    }


def _mean(steps: list[dict[str, float]], name: str) -> float:
    found = [step[name] for step in steps if name in step]
    return fmean(found) if found else 0.0


if __name__ == "__main__":
    main()
