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
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_tui.engine.launch.find import list_runs
from grpo_tui.engine.runs.read.reader import RunReader

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class Training:
    """One training: success (0 to 1) in the first and the last evaluation, by decoding method."""

    name: str
    seed: int
    seconds: float
    greedy: tuple[float, float]
    sampled: tuple[float, float]

    def __str__(self) -> str:
        told = [f"{before:.2f} -> {after:.2f}" for before, after in (self.greedy, self.sampled)]
        return f"{self.name:<17} {self.seed:>4}  {told[0]:>13}  {told[1]:>13}  {self.seconds:>7.0f}"


def train(name: str, seed: int) -> Training:
    """Train an example with its own command."""
    with tempfile.TemporaryDirectory() as folder:
        copy, runs = shutil.copytree(EXAMPLES / name, Path(folder) / name), Path(folder) / "runs"
        command = [sys.executable, "-m", "grpo_tui.tui.cli", "train", "config.yaml", "--headless"]
        command += ["--runs-dir", str(runs), "--set", f"seed={seed}"]
        began = time.monotonic()
        subprocess.run(command, cwd=copy, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        with RunReader(Path(max(list_runs(runs), key=lambda run: run.created or 0).path)) as reader:
            greedy, sampled = (
                [value for _, value in reader.metrics.points(f"success/eval_{way}")] for way in ("greedy", "sampled")
            )
    return Training(name, seed, seconds, (greedy[0], greedy[-1]), (sampled[0], sampled[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(p.parent.name for p in EXAMPLES.glob("*/config.yaml")))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="JSON lines: one for each training that has ended")
    given = parser.parse_args()
    kept: Path | None = given.results
    done = [Training(**json.loads(line)) for line in kept.read_text().splitlines()] if kept and kept.is_file() else []
    print(f"{'example':<17} {'seed':>4}  {'greedy':>13}  {'temperature 1':>13}  {'seconds':>7}")
    for name in given.names:
        for seed in range(given.seeds):
            found = next((d for d in done if (d.name, d.seed) == (name, seed)), None)
            if found is None:
                found = train(name, seed)
                if kept is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps(asdict(found)) + "\n")
            print(found, flush=True)


if __name__ == "__main__":
    main()
