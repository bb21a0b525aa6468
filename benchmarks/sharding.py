"""Memory and time of a training whose processes divide the weights (FSDP2): `python -m benchmarks.sharding`.

SmolLM2-135M in float32, all weights trained, `--steps` steps of 4 x 4 rollouts of at most 24 tokens, with one process
and with two that each hold the model (data parallelism) or divide it. The largest memory of a process is in GiB
(VmHWM), and a step in seconds is the median after the first.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from grpo_tui.configs.metric_names import STEP_SECONDS
from grpo_tui.engine.runs.durable import read_json
from grpo_tui.engine.runs.read.reader import RunReader

from .smollm2 import smollm2

KINDS = {"one process": (1, None), "two, whole": (2, "MULTI_GPU"), "two, divided": (2, "FSDP")}
SETTINGS = (
    "model.lora=null",
    "model.compute=float32",
    "training.prompts_per_step=4",
    "training.num_generations=4",
    "training.micro_batch_size=4",
    "training.max_turn_tokens=24",
    "training.replay.mode=off",
    "training.save_every=0",
)
CLI = [sys.executable, "-m", "grpo_tui.tui.cli"]


def measure(kind: str, steps: int, folder: Path) -> tuple[float, float, float]:
    """Train once. Returns GiB of the main process and of the other process, and seconds per step."""
    number, distributed = KINDS[kind]
    run_id = kind.replace(" ", "-").replace(",", "")
    command = [*CLI, "train", "--headless", "--run-id", run_id, "--runs-dir", str(folder), "--model", str(smollm2())]
    command += ["--dataset", str(folder / "rows.jsonl"), "--reward", f"{folder / 'reward.py'}:short"]
    for setting in (*SETTINGS, f"training.max_steps={steps}"):
        command += ["--set", setting]
    if distributed is not None:
        config = folder / f"{distributed}.yaml"
        config.write_text(
            f"distributed_type: {distributed}\nnum_machines: 1\nnum_processes: {number}\nmixed_precision: 'no'\n"
            + ("fsdp_config: {fsdp_version: 2}\n" if distributed == "FSDP" else "")
        )
        command += ["--accelerate-config", str(config)]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most: dict[bool, float] = {True: 0.0, False: 0.0}
    while training.poll() is None:
        main = read_json(folder / run_id / "processes" / "training.json").get("pid")
        for process in psutil.process_iter(["pid", "cmdline"]):
            words = process.info["cmdline"] or []
            if str(folder / run_id) in words and words[-2] == "grpo_tui.engine.training" and "launch" not in words[2]:
                peak = _peak(process.info["pid"])
                most[process.info["pid"] == main] = max(most[process.info["pid"] == main], peak)
        time.sleep(0.5)
    if training.returncode:
        sys.exit(f"{kind}: the training failed")
    with RunReader(folder / run_id) as reader:
        seconds = [value for _, value in reader.metrics.points(STEP_SECONDS)]
        return most[True], most[False], statistics.median(seconds[1:])


def _peak(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmHWM")), 0.0)


def main() -> None:
    """Measure each kind once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.jsonl").write_text("".join(f'{{"prompt": "Name {n} animals."}}\n' for n in range(2, 34)))
        (folder / "reward.py").write_text(
            "def short(completions, **_):\n    return [1 / (1 + len(c)) for c in completions]\n"
        )
        print("| | GiB, main process | GiB, other | seconds a step |\n|---|---|---|---|")
        for kind in KINDS:
            main_gib, other, seconds = measure(kind, given.steps, folder)
            print(f"| {kind} | {main_gib:.2f} | {other:.2f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
