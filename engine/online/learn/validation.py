"""Background validation, in its own low-priority process (`validator.py` is its entry).

It takes the state that the worker offers as a candidate, which holds the live and the EMA model of the same instant,
and measures both on the same held-out tasks, greedily; their difference is `Δvalidation`. On the canary tasks, whose
answers are known, it samples and votes as serving does and counts how often the voted label is right, and how many
labels changed since the last look. The result goes into the queue's file; the worker judges it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....configs.schema import RunConfig
from ...rollouts.dataset import load_rows
from ...rollouts.evaluation import evaluate
from ...rollouts.runner import RolloutRunner, Row
from ...runs.control import ControlChannel
from ...runs.writer import RunWriter
from ..process import load_serving_policy, serving_agent
from ..serve.voting import canonical, vote
from ..store.folder import OnlineFolder
from ..store.opening import open_queue
from ..store.update_queue import QueueDamaged, QueueError, UpdateQueue
from .worker_state import StateError, read_state

POLL_S = 1.0


class Validator:
    """Measures policies on `rows` (success, greedy) and `canary` rows (label accuracy) with a model of its own."""

    def __init__(
        self, model: nn.Module, runner: RolloutRunner, rows: Sequence[Row], canary: Sequence[Row], samples: int
    ) -> None:
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.runner = runner
        self.rows = rows
        self.canary = canary
        self.samples = samples
        self._labels: list[str | None] | None = None

    def validate(self, live: Mapping[str, Tensor], ema: Mapping[str, Tensor]) -> dict[str, Any]:
        """Success of both models in [0, 1], their difference (live − EMA), and how good voted labels are."""
        found: dict[str, Any] = {"n": len(self.rows)}
        self._load(live)
        found["live"] = self._success()
        self._load(ema)
        found["ema"] = self._success()
        found["delta"] = found["live"] - found["ema"]
        if self.canary:
            found |= self._labels_of_canary()
        return found

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.data.copy_(tensors[name])

    def _success(self) -> float:
        return evaluate(self.runner, self.rows, temperature=0.0).success

    def _labels_of_canary(self) -> dict[str, float]:
        samples = self.runner.run(self.canary, seed=0, split="eval", num_rollouts=self.samples)
        labels, right, known = [], 0, 0
        for start in range(0, len(samples), self.samples):
            group = [s.trajectory for s in samples[start : start + self.samples] if s.trajectory is not None]
            label = canonical(vote([t.answer for t in group]).answer)
            labels.append(label)
            expected = next((canonical(t.expected) for t in group if t.expected is not None), None)
            if expected is not None:
                known += 1
                right += label == expected
        before, self._labels = self._labels, labels
        found = {"label_accuracy": right / known} if known else {}
        if before is not None:
            found["label_flips"] = sum(a != b for a, b in zip(before, labels, strict=True)) / len(labels)
        return found


def validate_forever(
    config: RunConfig, run_dir: Path, writer: RunWriter, control: ControlChannel, resume: bool
) -> bool:
    """Validate each candidate that the worker offers, until stopped; it ends with the worker."""
    online = config.online
    torch.set_num_threads(1)
    model, tokenizer = load_serving_policy(config)
    agent = serving_agent(config, model, tokenizer)
    settings = online.validation
    data = config.environment.model_copy(update={"eval_tasks": settings.tasks + settings.canary_tasks})
    rows = load_rows(data, "eval", config.seed, tokenizer)
    canary = rows[: settings.canary_tasks]
    held_out = rows[settings.canary_tasks :][: settings.tasks] or canary
    validator = Validator(model, RolloutRunner(agent, tokenizer, online.samples), held_out, canary, online.samples)
    folder = OnlineFolder(run_dir)
    queue: UpdateQueue | None = None
    writer.status("running")
    while True:
        if any(r.command == "stop" for r in control.poll()):
            return False
        try:
            queue = queue or open_queue(folder, online)
            if not validate_next(validator, folder, queue):
                time.sleep(POLL_S)
        except (QueueError, StateError) as error:  # a full disk, or a state that was replaced while it was looked at
            if isinstance(error, QueueDamaged) and queue is not None:  # the worker mends it
                queue.close()
                queue = None
            time.sleep(POLL_S)


def validate_next(validator: Validator, folder: OnlineFolder, queue: UpdateQueue) -> bool:
    """Validate the candidate that waits, and leave the result in the queue; False when none waits.

    Raises StateError, QueueError.
    """
    candidate, done = queue.get("candidate"), queue.get("validation")
    if not isinstance(candidate, dict) or (isinstance(done, dict) and done.get("state") == candidate["state"]):
        return False
    began = time.perf_counter()
    result: dict[str, Any] = {"state": candidate["state"], "update": int(candidate["update"])}
    if not validator.rows:
        result["missing"] = (
            "there are no held-out tasks to validate with; give the environment some (environment.eval_tasks), or "
            "publish without validation (online.validation.enabled=false)"
        )
    else:
        tensors, _ = read_state(folder.state / candidate["state"])
        result |= validator.validate(_part(tensors, "live/"), _part(tensors, "ema/"))
    queue.set(validation={**result, "seconds": time.perf_counter() - began, "validated": time.time()})
    return True


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
