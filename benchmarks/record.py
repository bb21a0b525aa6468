"""What recording everything costs, as a share of a training step: `python -m benchmarks.record`.

A step of the default task is 128 trajectories and takes about 0.8 s on two cores. The benchmark hands such steps to
the record as the trainer does and prints, per step, the time in the training thread (what training waits for), the
processor time of the record's own thread, and how much a computation beside it is slowed (it holds Python's lock for
a part of its work), each divided by the step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.synthetic_run import batches, step_metrics
from grpo_tui.engine.runs.paths import DATABASE
from grpo_tui.engine.runs.write.writer import RunWriter

STEP_SECONDS = 0.8


def thread_seconds(thread_id: int) -> float:
    """Return the processor time of one thread of this process."""
    return next((t.user_time + t.system_time for t in psutil.Process().threads() if t.id == thread_id), 0.0)


def busy(seconds: float) -> int:
    """Count the rounds of plain Python that fit into a time. The count falls when another thread holds the GIL."""
    end = time.perf_counter() + seconds
    rounds = 0
    while time.perf_counter() < end:
        sum(range(200))
        rounds += 1
    return rounds


def measure(steps: int, pause: float, work: Callable[[float], object]) -> dict[str, float]:
    """Measure costs per step in seconds, while the training thread does `work` between steps."""
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder) / "run")
        writer.vocabulary([f"token{i}" for i in range(2048)])
        writer.flush()
        thread = next(t for t in threading.enumerate() if t.name == "run-record")
        before = thread_seconds(thread.native_id or 0)
        calls: list[float] = []
        for step, records in batches(steps * 128):  # generated right before recording, as in training
            began = time.perf_counter()
            writer.trajectories(step, records)
            writer.metrics(step, step_metrics(step, steps, 40))
            writer.status("running", step=step, total_steps=steps)
            calls.append(time.perf_counter() - began)
            work(pause)
        writer.flush()
        spent = thread_seconds(thread.native_id or 0) - before
        size = (writer.run_dir / DATABASE).stat().st_size
        writer.close()
    return {
        "caller": statistics.median(calls),
        "thread": spent / steps,
        "bytes": size / (steps * 128),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=STEP_SECONDS, help="length of the step compared with")
    given = parser.parse_args()
    alone = statistics.median(busy(0.1) for _ in range(20))
    rounds: list[int] = []
    result = measure(given.steps, 0.1, lambda pause: rounds.append(busy(pause)))
    # The work is shorter than a real step, so count the seconds lost in it instead of the ratio.
    lost = max(0.0, (1 - statistics.mean(rounds) / alone) * 0.1)
    step = given.step_seconds
    print(f"per step of {step} s with 128 trajectories and 40 metrics, tokens included:")
    rows = (
        ("in the training thread", result["caller"]),
        ("processor, record's thread", result["thread"]),
        ("pure Python beside it loses", lost),
    )
    for name, seconds in rows:
        print(f"  {name:28} {seconds * 1e3:8.2f} ms  {seconds / step:8.3%}")
    print(f"  {'on disk':28} {result['bytes']:8.0f} bytes a trajectory")


if __name__ == "__main__":
    main()
