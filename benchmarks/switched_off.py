"""What each optimisation of a step is worth: the same training with one of them switched off at a time.

    python -m benchmarks.switched_off [--steps 4] [--rounds 2] [--task default|long|described] [--only NAME ...]

Prints processor time and wall time of a step as a ratio to the step with everything on, and the memory beside it. Each
variant trains from one seed in a process of its own, in turns with the full one, so that a busy machine disturbs both
alike; the processor time is the number to trust there. Above 1.03 an optimisation earns its place. `long` is the task
of ten turns of `benchmarks.grpo_step`; in `described` tools and the form of a call stand in every prompt.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from .grpo_step import TASKS

EVERYTHING = "everything on"
VARIANTS = {
    EVERYTHING: "",
    "packing": "padded rows in the loss and in the reference pass",
    "prefix sharing": "packed rows, but every rollout with a prompt of its own",
    "reading in the last layer": "the last layer attends from every token, not from those alone that are read",
    "merged adapters": "LoRA layers multiply twice",
    "norms": "RMSNorm as the model has it",
    "keeping activations": "gradient checkpointing: all but attention and the last layer runs again",
    "selective checkpointing": "torch's plain gradient checkpointing: every layer runs again",
    "compaction": "finished rows stay in the batch until the turn ends",
    "huge pages": "large tensors on ordinary pages",
}


@contextlib.contextmanager
def switched_off(name: str) -> Iterator[None]:
    """Training inside does without one optimisation."""
    from grpo_tui.engine.agents import session
    from grpo_tui.engine.policy import activations, merged, norms, packed, packing, prepared

    with contextlib.ExitStack() as stack:

        def put(target: Any, attribute: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(target, attribute, value))

        if name == "packing":
            put(packed.PackedForward, "agrees", lambda self, tokens=24: False)
        elif name == "prefix sharing":
            put(packing, "_prompt_key", lambda prompt, row: (row, prompt.tobytes()))
        elif name == "reading in the last layer":
            put(packing, "lay_out_last", lambda cut, read, every: every)
        elif name == "merged adapters":
            for module in (merged, prepared):
                put(module, "merged_weights", lambda model, gradient=False: contextlib.nullcontext())
        elif name == "norms":
            for module in (norms, prepared):
                put(module, "fast_norms", lambda model: contextlib.nullcontext())
        elif name == "selective checkpointing":
            plain = {"use_reentrant": False}
            put(activations, "KEPT", 0)
            put(activations, "checkpoint_activations", lambda model: model.activation_checkpointing_enable(plain))
        elif name == "keeping activations":
            put(activations, "KEPT", 0)
        elif name == "compaction":
            put(session, "COMPACT_BELOW", -1.0)
        yield


def settings(task: str, steps: int, folder: str) -> dict[str, Any]:
    """The configuration of a training on a task."""
    environment: dict[str, Any] = {"train_tasks": 64, "eval_tasks": 0}
    training: dict[str, Any] = {"prompts_per_step": 8}
    if task == "described":
        environment["config"] = {"prompt_style": "full"}
    if task == "long":
        row = TASKS["long"]
        environment |= {"class_path": row["environment"], "config": {"max_turns": row["turns"]}}
        limits = {"max_turn_tokens": row["turn_tokens"], "max_trajectory_tokens": row["trajectory_tokens"]}
        training = {"prompts_per_step": row["prompts"], "num_generations": row["group"], **limits}
    return {
        "mode": "rft",
        "seed": 5,
        "model": {"device": "cpu"},
        "environment": environment,
        "training": {
            **training,
            "max_steps": steps + 1,
            "learning_rate": 1e-7,  # the policy stays what it is, so that all steps are alike
            "eval_every": 0,
            "save_every": 0,
            "output_dir": str(Path(folder) / "adapters"),
        },
    }


def measure(name: str, steps: int, task: str) -> dict[str, float]:
    """Seconds of processor and of wall of a step (medians after one to warm up), and the process's largest memory."""
    from grpo_tui.configs.schema import RunConfig
    from grpo_tui.engine.record.step_recorder import StepRecorder
    from grpo_tui.engine.runs.write.writer import NullWriter
    from grpo_tui.engine.training.rft import build_trainer

    warnings.simplefilter("ignore")
    ends: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder, switched_off(name):
        config = RunConfig.model_validate(settings(task, steps, folder))
        trainer, callbacks = build_trainer(config, Path(folder) / "run", StepRecorder(NullWriter()))
        callbacks.recording.observers.append(lambda *_: ends.append((time.process_time(), time.perf_counter())))
        trainer.train()
    spent = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(ends)]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu": median(s[0] for s in spent), "wall": median(s[1] for s in spent), "mib": memory}


def in_a_process(name: str, steps: int, task: str) -> dict[str, float]:
    """`measure` in a process of its own."""
    from grpo_tui.engine.launch.children import CPU_SETTINGS

    pages = {"THP_MEM_ALLOC_ENABLE": "0"} if name == "huge pages" else {}
    environment = {**CPU_SETTINGS, **os.environ, **pages, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "benchmarks.switched_off", "--variant", name, "--steps", str(steps)]
    command += ["--task", task]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    return json.loads(lines[-1].removeprefix("RESULT "))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--task", choices=["default", "long", "described"], default="default")
    parser.add_argument("--only", nargs="+", choices=[v for v in VARIANTS if v != EVERYTHING])
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.variant:
        print("RESULT " + json.dumps(measure(given.variant, given.steps, given.task)), flush=True)
        return
    print(f"{'switched off':26}{'processor':>10}{'wall':>8}{'MiB':>14}   what happens instead")
    for name in given.only or [v for v in VARIANTS if v != EVERYTHING]:
        full, less = [], []
        for _ in range(given.rounds):
            full.append(in_a_process(EVERYTHING, given.steps, given.task))
            less.append(in_a_process(name, given.steps, given.task))
        cpu, wall = (median(r[k] for r in less) / median(r[k] for r in full) for k in ("cpu", "wall"))
        memory = f"{max(r['mib'] for r in full):.0f} → {max(r['mib'] for r in less):.0f}"
        print(f"{name:26}{cpu:>9.2f}x{wall:>7.2f}x{memory:>14}   {VARIANTS[name]}", flush=True)


if __name__ == "__main__":
    main()
