"""The model card of a run, generated from its record. It replaces PEFT's blank README.md of the adapters."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from ...configs import metric_names as metric
from ...configs.errors import GrpoTuiError, count
from ...configs.schema import RunConfig
from ..launch.find import list_runs
from ..launch.settings import read_config
from ..runs.paths import CONFIG_FILE
from ..runs.read.reader import RunReader
from .results import read_evaluation
from .statistics import Interval

CURVES = (metric.TRL("reward"), metric.SUCCESS_TRAIN, metric.KL_MEAN, metric.ENTROPY, metric.LOSS)
POINTS = 6
"""Points per curve in the card."""


def model_card(run_dir: Path, result: Path, *, merged: bool = False) -> str:
    """Return the model card of a run's result as Markdown.

    result: the folder of the weights; the card lists evaluations of them. merged: the weights are a whole model, not
    adapters. Raises ConfigError, RecordError.
    """
    config = read_config(run_dir)
    with RunReader(run_dir) as reader:
        parts = [_front_matter(config, merged), f"# {config.name or run_dir.name}", *_facts(reader, config)]
        parts += ["## Success", *_success(reader, run_dir, result), "## Curves", *_curves(reader)]
        alerts = [f"- step {event.step}: {' '.join(event.message.split())}" for event in reader.events(["alert"])]
        parts += ["## Findings", "\n".join(alerts) or "No detector reported anything."]
        packages = reader.info().facts.get("packages", {})
        parts += ["## Versions", ", ".join(f"{name} {found}" for name, found in packages.items()) or "not recorded"]
        parts += ["## Record", f"SHA-256 of metrics and rollouts of run {run_dir.name}: `{record_hash(reader)}`"]
    settings = (run_dir / CONFIG_FILE).read_text(encoding="utf-8").strip()
    parts += ["## Configuration", f"```yaml\n{settings}\n```"]
    text, home = "\n\n".join(parts) + "\n", os.path.expanduser("~")
    return text if home == "/" else text.replace(home, "~")


def record_hash(reader: RunReader) -> str:
    """Return the SHA-256 of all metrics, and of the id, step and reward of all rollouts in recording order."""
    found = hashlib.sha256()
    for name in sorted(reader.metrics.names()):
        found.update(repr((name, [(step, value) for step, value in reader.metrics.points(name)])).encode())
    for row in reader.rollouts.page(limit=max(reader.rollouts.total(), 1)):
        found.update(repr((row.id, row.step, row.reward)).encode())
    return found.hexdigest()


def _front_matter(config: RunConfig, merged: bool) -> str:
    facts: dict[str, object] = {"pipeline_tag": "text-generation", "tags": ["grpo", "grpo-tui"]}
    facts["library_name"] = "transformers" if merged or config.model.lora is None else "peft"
    if _on_hub(config.model.base):
        facts["base_model"] = config.model.base
    if config.data.source is not None and _on_hub(config.data.source):
        facts["datasets"] = [config.data.source]
    return f"---\n{yaml.safe_dump(facts, sort_keys=True).strip()}\n---"


def _on_hub(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


def _facts(reader: RunReader, config: RunConfig) -> Iterator[str]:
    info = reader.info()
    how = "supervised fine-tuning" if config.mode == "sft" else "GRPO"
    what = "all weights" if config.model.lora is None else f"LoRA of rank {config.model.lora.r}"
    yield (
        f"`{config.model.base}`, trained by {how} ({what}) for {count(reader.metrics.last_step(), 'step')} with "
        f"[grpo-tui](https://pypi.org/project/grpo-tui/)."
    )
    data = config.sft.data if config.mode == "sft" and config.sft.data else config.data.source
    yield f"Data: {f'`{data}`' if data else f'tasks of the environment {info.environment}'}."
    if config.mode == "rft":
        rewards = ", ".join(f"{name} × {weight:g}" for name, weight in config.rewards.weights.items() if weight)
        functions = "".join(f", `{name}` × {weight:g}" for name, weight in config.environment.reward_funcs.items())
        yield f"Reward: {rewards}{functions}. Rollouts: {reader.rollouts.total():,}."


def _success(reader: RunReader, run_dir: Path, result: Path) -> Iterator[str]:
    """Yield held-out success during training and in finished evaluations of the result, with 95 % intervals."""
    rows = []
    for event in reader.events(["eval"], limit=1):
        for name in ("greedy", "sampled"):
            if f"{name}_interval" in event.data:
                low, high = event.data[f"{name}_interval"]
                n = int(event.data["n"])
                rows.append(("during training", event.step, name, n, Interval(event.data[name], low, high, n)))
    for run in list_runs(run_dir.parent):
        if run.mode == "eval" and run.status == "finished":
            try:
                config = read_config(run.path)
                weights = (Path(p).expanduser().resolve() for p in (config.model.sft_adapters, config.model.base) if p)
                if config.evaluation.branch.run or result.resolve() not in weights:
                    continue
                evaluation = read_evaluation(Path(run.path))
            except (GrpoTuiError, OSError):
                continue
            if evaluation.success is not None:
                how = f"temperature {evaluation.spec.temperature:g}, {evaluation.spec.samples} samples"
                rows.append(
                    (f"evaluation {run.id}", evaluation.spec.step, how, len(evaluation.tasks), evaluation.success)
                )
    if not rows:
        yield "No success was measured."
        return
    lines = ["| measured | step | sampling | tasks | success | 95 % interval |", "|---|---|---|---|---|---|"]
    for label, step, how, n, found in rows:
        lines.append(f"| {label} | {step} | {how} | {n} | {found.estimate:.1%} | {found.low:.1%} to {found.high:.1%} |")
    yield "\n".join(lines)


def _curves(reader: RunReader) -> Iterator[str]:
    curves = {name: dict(reader.metrics.points(name)) for name in CURVES}
    curves = {name: points for name, points in curves.items() if points}
    steps = sorted(set().union(*curves.values()))
    if not steps:
        yield "No metrics were recorded."
        return
    chosen = sorted({steps[round(i * (len(steps) - 1) / (POINTS - 1))] for i in range(POINTS)})
    lines = [f"| step | {' | '.join(map(str, chosen))} |", "|---" * (len(chosen) + 1) + "|"]
    for name, points in curves.items():
        lines.append(f"| `{name}` | {' | '.join(f'{points[s]:.4g}' if s in points else '' for s in chosen)} |")
    yield "\n".join(lines)
