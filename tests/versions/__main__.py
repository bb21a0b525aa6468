"""Train, test and record with the libraries that other packages bring, each row in an environment of its own.

    python -m tests.versions [ROW…] [--keep torch==2.13.0] [--tests PATH…] [--workers 2]

Rows of `ROWS` train for a few steps, compare every reward and advantage with the first row, run the tests of `TESTS`
and record a training of TRL. Rows such as `trl==0.29.1` record a training of that version alone. Without names: all
of `ROWS` and `TRL`. Prints a line of a table for each row, with the median time of a step and the largest memory; exit
code 1 where one fails. To compare times, name two rows alternately.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.installs import ROOT, resolve
from grpo_tui.configs.metric_names import MEMORY_RSS, STEP_SECONDS
from grpo_tui.engine.runs.read.reader import RunReader

UV = [sys.executable, "-m", "uv"]
ROWS: dict[str, list[str]] = {
    "constraints": [],
    "oldest": [],
    "vLLM": ["vllm==0.32.*"],
    "Unsloth": ["unsloth==2026.10.*"],
    "newest": [],
}
"""Packages to resolve with, by row. They are not installed: their libraries are."""
TRL = {
    "trl==0.23.1": ["transformers<5"],
    "trl==0.26.2": ["transformers<5"],
    **{f"trl=={version}": [] for version in ("0.29.1", "1.0.0", "1.5.1", "1.10.0")},
}
MORE = {"Unsloth": ["triton"]}
"""Packages to install besides. The loss of TRL 1.15.0 is a Triton kernel, for which a CPU has an interpreter."""
TESTS = [
    "tests/engine/agents",
    "tests/engine/rollouts",
    "tests/engine/training",
    "tests/cli/test_usage.py",
    "tests/api",
]
EXTRAS = "[train,parquet,test]"
STEPS = 4
SHOWN = ("torch", "transformers", "trl", "datasets")


def versions(row: str, kept: list[str], folder: Path) -> dict[str, str]:
    """Return the versions of a row. Exit with the conflict where there is none."""
    options = ["--resolution", "lowest-direct"] if row == "oldest" else []
    if kept:
        (folder / "kept.txt").write_text("\n".join(kept))
        options += ["--override", str(folder / "kept.txt")]
    if row == "constraints":
        options += ["--constraint", "constraints.txt"]
    packages = ROWS[row] if row in ROWS else [row, *TRL.get(row, [])]
    system = {"Windows": "windows", "Darwin": "macos"}.get(platform.system(), "linux")
    python = ".".join(platform.python_version_tuple()[:2])
    found, problem = resolve(EXTRAS if row in ROWS else "[test]", packages, python, system, *options)
    return found or sys.exit(f"{row}: {problem}")


class Environment:
    """A virtual environment with the libraries of one row."""

    def __init__(self, row: str, pins: dict[str, str], folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        (folder / "pins.txt").write_text("\n".join(f"{name}=={version}" for name, version in pins.items()))
        extras = EXTRAS if row in ROWS else "[test]"
        exact = [f"{name}=={pins[name]}" for name in ("trl", "transformers", "torch")]
        more = MORE.get(row, []) if row in ROWS else exact
        into = ["--quiet", "--python", str(self.python)]
        for command in (
            ["venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)],
            ["pip", "install", *into, "--constraint", str(folder / "pins.txt"), "--editable", f"{ROOT}{extras}", *more],
        ):
            subprocess.run([*UV, *command], check=True, cwd=ROOT)

    def run(self, *command: str) -> tuple[bool, str]:
        """Run Python with these arguments. Return whether it succeeded, and its last line."""
        path = os.pathsep.join((str(ROOT / "typings"), str(ROOT)))
        done = subprocess.run(
            [str(self.python), *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        (self.folder / "output.txt").write_text(done.stdout)
        if done.returncode:
            print(done.stdout[-4000:], file=sys.stderr, flush=True)
        return done.returncode == 0, (done.stdout.strip().splitlines() or [""])[-1]

    def train(self) -> tuple[bool, str, str]:
        """Train the default policy. Return a digest of every reward and advantage, to the last bit, and the cost."""
        runs = self.folder / "runs"
        entry = ["-m", "grpo_tui.tui.entry"]
        settings = [f"training.max_steps={STEPS}", "environment.eval_tasks=8"]
        chosen = [word for setting in settings for word in ("--set", setting)]
        done, line = self.run(*entry, "train", "--headless", "--run-id", "row", "--runs-dir", str(runs), *chosen)
        if not done:
            return False, line, "–"
        with RunReader(runs / "row") as reader:
            rows = [row for row in reader.rollouts.page(limit=100_000) if row.split == "train"]
            seconds = median(value for _, value in reader.metrics.points(STEP_SECONDS)[1:])
            memory = max(value for _, value in reader.metrics.points(MEMORY_RSS))
        numbers = sorted((row.n, row.step, row.reward, row.advantage) for row in rows)
        digest = hashlib.sha256(repr(numbers).encode()).hexdigest()[:8]
        return bool(numbers), f"{len(numbers)} × {digest}", f"{seconds:.2f} s, {memory:,.0f} MiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=[*ROWS, *TRL])
    parser.add_argument("--keep", nargs="*", default=[], help="versions that replace those of every row")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="tests of the rows of ROWS; none: leave them out")
    parser.add_argument("--workers", default="2", help="tests at a time")
    given = parser.parse_args()
    print(
        "| row | versions | rewards and advantages | step, memory | tests | attach |\n|---|---|---|---|---|---|",
        flush=True,
    )
    first, failed = "", False
    for row in given.rows:
        with tempfile.TemporaryDirectory(prefix="grpo-tui-versions-") as folder:
            pins = versions(row, given.keep, Path(folder))
            environment = Environment(row, pins, Path(folder))
            trained, digest, cost, tested, counts = True, "–", "–", True, "–"
            if row in ROWS:
                trained, digest, cost = environment.train()
                first = first or digest
            if row in ROWS and given.tests:
                parallel = ["-p", "tests.workers", "--workers", given.workers]
                tests = ["-m", "pytest", *parallel, "-m", "not stress", *given.tests]
                tested, counts = environment.run(*tests)
            attached, line = environment.run("-m", "tests.versions.attach")
        shown = ", ".join(f"{name} {pins[name]}" for name in SHOWN if name in pins)
        equal = trained and digest in (first, "–")
        print(f"| {row} | {shown} | {digest}{'' if equal else ' differs'} | {cost} | {counts} | {line} |", flush=True)
        failed = failed or not (equal and tested and attached)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
