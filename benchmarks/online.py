"""Learning while serving, measured: `python -m benchmarks.online [learning|publishing|latency|all]`.

learning: a policy from a short offline training on the usual scenes serves a stream of *shifted* scenes (larger
objects, noisier pictures). The same stream with the same seeds three times: updates off, updates on, and updates on
with 30 % of the pseudo-labels forced wrong. Served success (the vote of 4) in the first and in the last quarter.
Candidates are drawn at temperature 1.5: a vote is worth something where its voters differ; at 1.0 this policy's errors
are alike.
Required: at least 10 points above updates off at the end, mean of 3 seeds; with wrong labels not below the start.

publishing: `SnapshotWriter.publish` against a plain safetensors save and fsync of the same tensors. Required: 1.25×.

latency: time to answer while the worker trains against while it is paused, in alternating stretches of one run.
Required: p95 not more than 5 % higher.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.launch.children import spawn
from grpo_tui.engine.launch.settings import rendered
from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.launch.stop import stop_run
from grpo_tui.engine.online.process import run_process
from grpo_tui.engine.online.serve.inference_engine import InferenceEngine
from grpo_tui.engine.online.store.snapshots import SnapshotWriter, prune
from grpo_tui.engine.online.voting import Vote, canonical
from grpo_tui.engine.runs.control import requests as control
from grpo_tui.engine.runs.control.status import ENDED, look
from grpo_tui.engine.runs.durable import write_json
from grpo_tui.engine.runs.paths import CONFIG_FILE
from grpo_tui.engine.runs.read.reader import RunReader

SHIFT: dict[str, Any] = {"radii": [12.0, 20.0], "noise": 5.0}
"""Shifted scenes: larger objects and noisier pixels than in training."""
LEARNING: dict[str, Any] = {
    "temperature": 1.5,
    "samples": 4,
    "samples_to_learn": 8,
    "batch_requests": 8,
    "neighbours": 0,
    "lr_adaptive_min": 5e-4,
    "ema_decay": 0.8,
    "kl": {"target_kl": 0.2},
}
"""Settings that differ from the defaults in all three arms of the learning benchmark."""
WRONG_SHARE = 0.3
ARMS = ("off", "on", "corrupted")


# ------------------------------------------------------------------------------------------------------------ learning


def force_wrong(outcome: Vote, samples: Sequence[Any], seed: str, share: float) -> Vote:
    """Replace all labels of a vote with a wrong answer, for a share of the requests."""
    if random.Random(seed).random() >= share:
        return outcome
    keys = [canonical(s.trajectory.answer) if s.trajectory else None for s in samples]
    truth = canonical(samples[0].trajectory.expected) if samples[0].trajectory else None
    wrong = next((k for k in keys if k is not None and k != truth), "wrong")
    return replace(
        outcome,
        labels=(wrong,) * len(keys),
        correct=tuple(k == wrong for k in keys),
        flipped=keys[0] != wrong,
    )


class CorruptedEngine(InferenceEngine):
    """Serves normally, but forces a share of the pseudo-labels to a wrong answer."""

    def vote(self, request: Any, samples: Sequence[Any], neighbours: Sequence[Any]) -> Vote:
        """Vote, then replace the labels for some requests."""
        outcome = super().vote(request, samples, neighbours)
        return force_wrong(outcome, samples, f"{self.seed} {request.number}", WRONG_SHARE)


def offline(folder: Path, steps: int, seed: int, settings: dict[str, Any]) -> str:
    """Train the deployed policy: adapters from a short reinforcement fine-tuning on the usual scenes."""
    target = folder / f"adapters-{seed}"
    config = RunConfig.model_validate(
        {
            "mode": "rft",
            "seed": seed,
            **settings,
            "training": {"max_steps": steps, "eval_every": 0, "save_every": 0, "output_dir": str(target)},
        }
    )
    run = start_run(config, runs_dir=folder / "offline", run_id=f"seed-{seed}")
    finished(Path(run.path), 600)
    return str(target)


def finished(run_dir: Path, seconds: float) -> None:
    """Wait for a run. Raises RuntimeError with the end of its log if it does not finish."""
    until = time.monotonic() + seconds
    while (info := look(run_dir)).status not in ENDED and time.monotonic() < until:
        time.sleep(0.2)
    if info.status != "finished":
        tails = [f"{p}:\n{p.read_text()[-2000:]}" for p in (run_dir / "logs").glob("*.log")]
        raise RuntimeError(f"run {info.id} is {info.status}: {info.error}\n" + "\n".join(tails))


def stream(folder: Path, arm: str, seed: int, adapters: str, requests: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Serve the shifted stream in real processes. Returns success by quarter and the worker's counts."""
    config = RunConfig.model_validate(
        {
            "mode": "online",
            "seed": seed,
            **settings,
            "model": {**settings.get("model", {}), "sft_adapters": adapters},
            "environment": {"config": SHIFT, "train_tasks": requests},
            "online": {
                "updates": arm != "off",
                "max_requests": requests,
                "validation": {"enabled": False},
                **LEARNING,
                **settings.get("online", {}),
            },
            "logging": {"record_tokens": False},
        }
    )
    run_dir = folder / f"{arm}-{seed}"
    run_dir.mkdir(parents=True)
    text, secrets = rendered(config)
    (run_dir / CONFIG_FILE).write_bytes(text)
    write_json(run_dir / "run.json", {"id": run_dir.name, "mode": "online", "created": time.time()})
    began = time.monotonic()
    module = ["benchmarks.online", "--engine"] if arm == "corrupted" else ["grpo_tui.engine.online.serve.engine"]
    spawn(run_dir, "engine", [sys.executable, "-m", *module, str(run_dir)], environment=secrets)
    if arm != "off":
        worker = [sys.executable, "-m", "grpo_tui.engine.online.learn.worker", str(run_dir)]
        spawn(run_dir, "worker", worker, environment=secrets)
    finished(run_dir, 1200)
    reader = RunReader(run_dir)
    served = np.array([v for _, v in reader.metrics.points(metric.ONLINE_SUCCESS)])
    initial = np.array([v for _, v in reader.metrics.points(metric.ONLINE_SUCCESS_INITIAL)])
    quarter = max(1, len(served) // 4)
    latest = reader.metrics.latest()
    return {
        "arm": arm,
        "seed": seed,
        "served_first": float(served[:quarter].mean()),
        "served_last": float(served[-quarter:].mean()),
        "initial_first": float(initial[:quarter].mean()),
        "initial_last": float(initial[-quarter:].mean()),
        "updates": int(latest.get(metric.UPDATES, 0)),
        "version": int(latest.get(metric.SERVING_VERSION, 0)),
        "seconds": time.monotonic() - began,
        "curve": [round(float(c.mean()), 3) for c in np.array_split(served, 8)],
    }


def learning(seeds: int, requests: int, steps: int, settings: dict[str, Any], arms: Sequence[str]) -> dict[str, Any]:
    """Run the learning benchmark of the module docstring."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(seeds):
            began = time.monotonic()
            adapters = offline(folder, steps, seed, {k: v for k, v in settings.items() if k != "online"})
            print(f"seed {seed}: offline training of {steps} steps, {time.monotonic() - began:.0f} s", flush=True)
            for arm in arms:
                rows.append(stream(folder / "online", arm, seed, adapters, requests, settings))
                row = rows[-1]
                print(
                    f"seed {seed} {arm:<9}  served {row['served_first']:.3f} → {row['served_last']:.3f}   "
                    f"single {row['initial_first']:.3f} → {row['initial_last']:.3f}   {row['updates']:4d} updates, "
                    f"v{row['version']}, {row['seconds']:.0f} s   {row['curve']}",
                    flush=True,
                )
    mean = {
        arm: {
            key: statistics.fmean(r[key] for r in rows if r["arm"] == arm)
            for key in ("served_first", "served_last", "initial_first", "initial_last")
        }
        for arm in arms
    }
    print(f"\nserved success on shifted scenes, {requests} requests, mean of {seeds} seeds")
    print(f"{'updates':<12}{'first quarter':>15}{'last quarter':>15}{'one sample':>22}")
    for arm, m in mean.items():
        single = f"{m['initial_first']:.3f} → {m['initial_last']:.3f}"
        print(f"{arm:<12}{m['served_first']:>15.3f}{m['served_last']:>15.3f}{single:>22}")
    if {"on", "off"} <= mean.keys():
        gain = 100 * (mean["on"]["served_last"] - mean["off"]["served_last"])
        print(f"on − off in the last quarter: {gain:+.1f} points (required: +10)")
    if "corrupted" in mean:
        change = 100 * (mean["corrupted"]["served_last"] - mean["corrupted"]["served_first"])
        print(f"with {WRONG_SHARE:.0%} wrong labels, end − start: {change:+.1f} points (required: not below)")
    return {"rows": rows, "mean": mean}


# ---------------------------------------------------------------------------------------------------------- publishing


def plain_save(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Save without a protocol: overwrite the last snapshot and fsync."""
    target = folder / "plain.safetensors"
    save_file(tensors, target)
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def publishing(megabytes: Sequence[float], repeats: int) -> dict[str, Any]:
    """Return medians of alternating measurements, and the median of their ratios."""
    print(f"{'MB':>8}{'plain save + fsync':>20}{'publish':>12}{'ratio':>8}   (required: 1.25)")
    found = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("GRPO_TUI_HOME")) as name:
        for size in megabytes:
            folder = Path(name) / f"{size:g}"
            writer = SnapshotWriter(folder, base_model="benchmark")
            tensors = {f"layer.{i}": torch.randn(int(size * 1e6 / 4 / 20)) for i in range(20)}
            plain, published = [], []
            for i in range(repeats + 2):
                ways = [(plain, partial(plain_save, tensors, folder)), (published, partial(writer.publish, tensors))]
                for times, save in ways if i % 2 else reversed(ways):
                    began = time.perf_counter()
                    save()
                    times.append(time.perf_counter() - began)
                prune(folder, 1)
            ratio = statistics.median(p / q for p, q in zip(published[2:], plain[2:], strict=True))
            row = (1e3 * statistics.median(plain[2:]), 1e3 * statistics.median(published[2:]), ratio)
            print(f"{size:>8g}{row[0]:>17.1f} ms{row[1]:>9.1f} ms{row[2]:>8.2f}", flush=True)
            found[f"{size:g}"] = ratio
            writer.close()
    return found


# ------------------------------------------------------------------------------------------------------------- latency


def latency(stretches: int, requests: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Alternate stretches with the worker running and paused, one request at a time."""
    total = requests * 2 * stretches + requests
    config = RunConfig.model_validate(
        {
            "mode": "online",
            **settings,
            "environment": {"config": SHIFT, "train_tasks": total},
            "online": {
                "batch_requests": 1,
                "max_requests": total,
                "staleness_limit": 10**6,
                "min_confidence": 0.0,
                "validation": {"enabled": False},
                **settings.get("online", {}),
            },
        }
    )
    samples: dict[str, list[float]] = {"resume": [], "pause": []}
    with tempfile.TemporaryDirectory() as name:
        run_dir = Path(start_run(config, runs_dir=Path(name), run_id="latency").path)
        while look(run_dir).step < requests // 2:  # warm up, and fill the queue
            time.sleep(0.05)
        for _ in range(stretches):
            for command in ("resume", "pause"):
                asked = control.request(run_dir, command)  # type: ignore[arg-type]
                while control.outcome(run_dir, asked, "worker") is None:
                    time.sleep(0.01)
                first = look(run_dir).step + 2
                while look(run_dir).step < min(first + requests, total) and look(run_dir).status not in ENDED:
                    time.sleep(0.05)
                reader = RunReader(run_dir)
                values = dict(reader.metrics.points(metric.LATENCY, after_step=first))
                reader.close()
                samples[command] += list(values.values())
        depth = RunReader(run_dir).metrics.latest().get(metric.QUEUE_DEPTH)
        stop_run(look(run_dir), timeout=60, force=True)
    rows = {k: [1e3 * float(q) for q in np.percentile(v, [50, 95])] for k, v in samples.items()}
    ratio = rows["resume"][1] / rows["pause"][1]
    print(f"{'worker':<10}{'requests':>10}{'median':>12}{'p95':>12}")
    for key, title in (("pause", "paused"), ("resume", "training")):
        print(f"{title:<10}{len(samples[key]):>10}{rows[key][0]:>9.1f} ms{rows[key][1]:>9.1f} ms")
    print(f"p95 ratio {ratio:.3f} (required: 1.05); tasks waiting at the end: {depth:.0f}")
    return {"p95_ratio": ratio, **rows}


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", choices=["learning", "publishing", "latency", "all"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--offline-steps", type=int, default=15)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--megabytes", default="0.4,1,4,50,400")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--stretches", type=int, default=4)
    parser.add_argument("--set", default="{}", help="JSON merged into the configuration")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--engine", metavar="RUN_DIR", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine:
        from grpo_tui.engine.online.serve.assembly import serve

        def corrupted(*arguments: Any) -> bool:
            return serve(*arguments, engine_class=CorruptedEngine)

        sys.exit(run_process("engine", corrupted, [given.engine]))
    settings = json.loads(given.set)
    results: dict[str, Any] = {}
    if given.what in ("publishing", "all"):
        results["publishing"] = publishing([float(m) for m in given.megabytes.split(",")], given.repeats)
    if given.what in ("latency", "all"):
        results["latency"] = latency(given.stretches, 60, settings)
    if given.what in ("learning", "all"):
        results["learning"] = learning(
            given.seeds, given.requests, given.offline_steps, settings, given.arms.split(",")
        )
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
