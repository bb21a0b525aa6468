"""`python -m benchmarks.examples [--seeds 3] [NAME …]`: success in the cases of `examples/`, before and after training.

Each is trained by its own command, in a copy of its folder; success is measured on held-out tasks.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from grpo_tui.engine.launch import list_runs
from grpo_tui.engine.runs.reader import RunReader

EXAMPLES = Path(__file__).parents[1] / "examples"
WAYS = ("greedy", "sampled")


def success(example: Path, seed: int, runs: Path) -> dict[str, list[float]]:
    """Success of each evaluation of a training, by the way in which tokens were chosen."""
    command = [sys.executable, "-m", "grpo_tui.tui.cli", "train", "config.yaml", "--headless", "--runs-dir", str(runs)]
    subprocess.run([*command, "--set", f"seed={seed}"], cwd=example, check=True, stdout=subprocess.DEVNULL)
    with RunReader(Path(max(list_runs(runs), key=lambda run: run.created or 0).path)) as reader:
        return {way: [value for _, value in reader.metrics.points(f"success/eval_{way}")] for way in WAYS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(p.parent.name for p in EXAMPLES.glob("*/config.yaml")))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print(f"{'example':<16} {'seed':>4}  {'greedy':>15}  {'temperature 1':>15}")
    for name in given.names:
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as folder:
                copy = shutil.copytree(EXAMPLES / name, Path(folder) / name)
                found = success(copy, seed, Path(folder) / "runs")
            told = [f"{found[way][0]:.2f} -> {found[way][-1]:.2f}" for way in WAYS]
            print(f"{name:<16} {seed:>4}  {told[0]:>15}  {told[1]:>15}", flush=True)


if __name__ == "__main__":
    main()
