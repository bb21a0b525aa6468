"""`python -m benchmarks.examples [--seeds 3] [--results FILE] [NAME …]`: success in the cases of `examples/`.

Each is trained by its own command, in a copy of its folder; success is measured on held-out tasks. With `--results`
trainings that have ended are kept in a file, and a call that is repeated goes on where the last one was stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from grpo_tui.engine.launch import list_runs
from grpo_tui.engine.runs.reader import RunReader

EXAMPLES = Path(__file__).parents[1] / "examples"
WAYS = ("greedy", "sampled")


def train(name: str, seed: int) -> dict[str, object]:
    """One training: success of its first and last evaluation, by how tokens were chosen, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        copy, runs = shutil.copytree(EXAMPLES / name, Path(folder) / name), Path(folder) / "runs"
        command = [sys.executable, "-m", "grpo_tui.tui.cli", "train", "config.yaml", "--headless"]
        command += ["--runs-dir", str(runs), "--set", f"seed={seed}"]
        began = time.monotonic()
        subprocess.run(command, cwd=copy, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        with RunReader(Path(max(list_runs(runs), key=lambda run: run.created or 0).path)) as reader:
            points = {way: [value for _, value in reader.metrics.points(f"success/eval_{way}")] for way in WAYS}
    return {"name": name, "seed": seed, "seconds": seconds, **{way: [p[0], p[-1]] for way, p in points.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(p.parent.name for p in EXAMPLES.glob("*/config.yaml")))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="JSON lines: one for each training that has ended")
    given = parser.parse_args()
    kept: Path | None = given.results
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept and kept.is_file() else []
    print(f"{'example':<17} {'seed':>4}  {'greedy':>13}  {'temperature 1':>13}  {'seconds':>7}")
    for name in given.names:
        for seed in range(given.seeds):
            found = next((d for d in done if (d["name"], d["seed"]) == (name, seed)), None)
            if found is None:
                found = train(name, seed)
                if kept is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps(found) + "\n")
            told = [f"{found[way][0]:.2f} -> {found[way][1]:.2f}" for way in WAYS]
            print(f"{name:<17} {seed:>4}  {told[0]:>13}  {told[1]:>13}  {found['seconds']:>7.0f}", flush=True)


if __name__ == "__main__":
    main()
