"""Helpers for building both tiny policies: adapters, success by question, and progress."""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from transformers import PreTrainedModel

from grpo_tui.configs.sections.model import LoraSection
from grpo_tui.engine.policy.models import lora_config
from grpo_tui.envs.trajectory import Trajectory

LARGEST = 5 * 1024 * 1024
"""Maximum total bytes of the text policy's files."""


def adapters_of(model: PreTrainedModel, seed: int) -> PeftModel:
    """Add new adapters to the model, with the default configuration."""
    torch.manual_seed(seed)
    adapted = get_peft_model(model, lora_config(LoraSection(), model))
    assert isinstance(adapted, PeftModel)
    return adapted


def save_adapters(folder: Path, model: PeftModel, base: str = "builtin:tiny") -> None:
    """Save adapters with the name of their built-in base."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def success_by_question(tasks: Sequence[Mapping[str, Any]], trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the shares of right answers by question, and over `all`."""
    right: dict[str, list[bool]] = defaultdict(list)
    for task, trajectory in zip(tasks, trajectories, strict=True):
        right[str(task["question"])].append(bool(trajectory.correct))
        right["all"].append(bool(trajectory.correct))
    return {kind: sum(v) / len(v) for kind, v in sorted(right.items())}


def write_quality(output: Path, seed: int, report: Mapping[str, Mapping[str, float]], largest: int) -> None:
    """Write the policy's success into its folder. Raises RuntimeError if the files exceed `largest` bytes."""
    size = sum(f.stat().st_size for name in ("base", "sft") for f in (output / name).iterdir())
    if size > largest:
        raise RuntimeError(f"the tiny policy in {output} has {size:,} bytes; it must have at most {largest:,}")
    (output / "quality.json").write_text(json.dumps({"seed": seed, "bytes": size, "success": report}, indent=1) + "\n")


def table(report: Mapping[str, Mapping[str, float]]) -> str:
    """Format success by question, one line per policy."""
    kinds = list(next(iter(report.values())))
    lines = ["success".ljust(14) + "".join(k.rjust(13) for k in kinds)]
    lines += [name.ljust(14) + "".join(f"{values.get(k, 0):13.2f}" for k in kinds) for name, values in report.items()]
    return "\n".join(lines)


def main(
    build: Callable[..., Mapping[str, Mapping[str, float]]], home: Path, arguments: Sequence[str] | None = None
) -> None:
    """Build a policy from the command line. Each option is a keyword of `build`. home: the default of `--output`."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(build))
    parser.add_argument("--output", type=Path, default=home, help="the folder of base/ and sft/")
    for name, parameter in inspect.signature(build).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, type=int, default=parameter.default, help=f"default {parameter.default}")
    print(table(build(**vars(parser.parse_args(arguments)))))


class Clock:
    """Prints the progress and duration of each part of a build."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def __call__(self, phase: str, note: str) -> None:
        """Report the end of a part."""
        now = time.perf_counter()
        print(f"{phase:15}{now - self.last:6.1f} s  {note}", flush=True)
        self.last = now

    def on_step(self, step: int, steps: int, loss: float) -> None:
        """Report each tenth of a training."""
        if step % max(1, steps // 10) == 0 and step < steps:
            spent = time.perf_counter() - self.last
            print(f"  step {step}/{steps}  loss {loss:.3f}  {spent:.0f} s in this part", flush=True)
