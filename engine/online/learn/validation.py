"""Background validation in a low-priority process (entry: `validator.py`).

It measures the live and the EMA model of a candidate state greedily on the same held-out tasks. Their difference is
`Δvalidation`. On the canary tasks, whose answers are known, it samples and votes as serving does, and counts correct
labels and labels that changed since the last candidate. It also measures how well the policy still models unrelated
texts, because learning from a few requests must not harm its language. The worker reads the result from the queue and
judges it.

The tasks are split into fixed portions, and the results of each portion are stored in the queue. A process that was
killed resumes there and gets the same result.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import xxhash
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ....configs.schema import RunConfig
from ...policy.kl import kl_directions
from ...policy.unwrap import base_of, device_of
from ...rollouts.dataset import load_rows
from ...rollouts.evaluation import evaluate
from ...rollouts.runner import RolloutRunner, Row
from ...runs.control.requests import ControlChannel
from ...runs.durable import read_as
from ...runs.paths import OnlineFolder
from ...runs.write.writer import RunWriter
from ..process import load_serving_policy, serving_agent, serving_settings
from ..store.opening import open_store
from ..store.snapshots import weights_in_place
from ..store.update_queue import QueueDamaged, QueueError, UpdateQueue
from ..voting import canonical, vote
from .worker_state import StateError, read_state

POLL_S = 1.0
PORTION = 32
"""Rollouts between saves of the results. Changing this changes the batches, and so the last bits of the results."""
TEXTS = (
    "The river rises in the hills north of the town and reaches the sea after about two hundred kilometres.",
    "Photosynthesis converts light energy into chemical energy, which plants store in sugars.",
    "She closed the door quietly, put her keys on the table and listened to the rain on the roof.",
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n",
    "Preheat the oven to 180 degrees, mix the flour with the butter and the sugar, and bake the cake for an hour.",
    "In 1969 two astronauts walked on the surface of the Moon while a third remained in orbit around it.",
    "Dear customer, thank you for your message. We will send the replacement part within three working days.",
    "A contract is an agreement between two parties that a court can enforce if one of them does not keep it.",
    "Q: Why is the sky blue?\nA: Air scatters short wavelengths of sunlight more strongly than long ones.",
    "The committee met on Tuesday to discuss the budget, but no decision was reached before the summer break.",
)
"""English prose, code, a recipe, a letter and a dialogue, written for this purpose."""


class TextGuard:
    """Measures the log-likelihood of `TEXTS` (nats per token) under a candidate and under the first policy."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        started: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._model = base_of(model)
        self._started = started
        """Puts the first policy's weights in place."""
        self._rows = [torch.tensor(tokenizer.encode(t, add_special_tokens=False)) for t in TEXTS]
        self._tokens = sum(len(row) - 1 for row in self._rows)
        with started():
            self._before = sum(float(self._logprobs(row)[1].sum()) for row in self._rows) / self._tokens
        vocabulary = cast(nn.Linear, self._model.get_output_embeddings()).weight.shape[0]
        self.applies = self._before > -0.5 * math.log(vocabulary)
        """False if the first policy does not model such texts, and so has little to lose."""

    def measure(self) -> Mapping[str, float]:
        """Measure `text_before` and `text_now`, the log-likelihood per token at the start and now, and `text_kl`, the
        exact KL(now ‖ start) per token. Empty if the guard does not apply.
        """
        if not self.applies:
            return {}
        now = kl = 0.0
        for row in self._rows:
            logits, chosen = self._logprobs(row)
            with self._started():
                old, _ = self._logprobs(row)
            now += float(chosen.sum())
            kl += float(kl_directions(logits, old).reverse.sum())
        return {"text_before": self._before, "text_now": now / self._tokens, "text_kl": kl / self._tokens}

    @torch.no_grad()
    def _logprobs(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [T - 1, V] and the log-probs [T - 1] of the tokens after the first."""
        ids = row.to(device_of(self._model))[None]
        logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, :-1].float()
        return logits, logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]


@dataclass(frozen=True)
class ValidationProgress:
    """The results for one candidate so far, stored as a JSON value in the queue.

    state: the candidate's state file. measure: the `Validator.measure` used; results with another one do not count.
    live, ema: success of each model on the first held-out tasks. labels: the voted labels of the first canary tasks.
    right: whether each label is the known answer, None if unknown. before: the labels of the previous candidate. texts:
    `TextGuard.measure` of the smoothed model. seconds: the time spent.
    """

    state: str
    measure: str
    live: list[bool] = field(default_factory=list)
    ema: list[bool] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    right: list[bool | None] = field(default_factory=list)
    before: list[str | None] | None = None
    texts: dict[str, float] | None = None
    seconds: float = 0.0

    def result(self) -> dict[str, Any]:
        """Return both models' success rates, their difference (live − EMA), and the quality of the voted labels."""
        live, ema = (sum(outcomes) / max(len(outcomes), 1) for outcomes in (self.live, self.ema))
        found: dict[str, Any] = dict(self.texts or {})
        if self.live:
            found |= {"n": len(self.live), "live": live, "ema": ema, "delta": live - ema}
        known = [right for right in self.right if right is not None]
        if known:
            found["label_accuracy"] = sum(known) / len(known)
        if self.before and self.labels:
            changed = sum(a != b for a, b in zip(self.before, self.labels, strict=True))
            found["label_flips"] = changed / len(self.labels)
        return found


@dataclass(eq=False)
class Validator:
    """Measures candidates on `rows` (greedy success) and `canary` rows (label accuracy) with its own model. Candidates
    come from the queue; progress and results are stored there.

    settings: other values that the results depend on, such as the agent's temperature. Results with different settings
    are never combined.
    """

    folder: OnlineFolder
    model: nn.Module
    runner: RolloutRunner
    rows: Sequence[Row]
    canary: Sequence[Row]
    samples: int
    settings: Mapping[str, object] = field(default_factory=dict)
    tokenizer: PreTrainedTokenizerBase | None = None

    def __post_init__(self) -> None:
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        rows, canary = ([asdict(row) for row in tasks] for tasks in (self.rows, self.canary))
        inputs = [rows, canary, self.samples, PORTION, self.settings]
        self.measure = xxhash.xxh3_128_hexdigest(json.dumps(inputs, sort_keys=True, default=str).encode())
        """A checksum of the tasks and settings."""
        start = {n: p.detach().clone() for n, p in self.parameters.items()}
        started = partial(weights_in_place, self.parameters, start)
        self._read: tuple[str, dict[str, Tensor]] | None = None
        self.guard = None if self.tokenizer is None else TextGuard(self.model, self.tokenizer, started)

    def go_on(self, queue: UpdateQueue) -> bool:
        """Measure the next portion of the candidate. Returns False if none waits. Raises StateError, QueueError."""
        candidate, done = queue.get("candidate"), queue.get("validation")
        if not isinstance(candidate, dict) or (isinstance(done, dict) and done.get("state") == candidate["state"]):
            self._read = None
            return False
        state = str(candidate["state"])
        result: dict[str, Any] = {"state": state, "update": int(candidate["update"]), "validated": time.time()}
        if not self.rows and (self.guard is None or not self.guard.applies):
            missing = (
                "there are no held-out tasks. Give the environment some (environment.eval_tasks), or "
                "publish without validation (online.validation.enabled=false)"
            )
            queue.set(validation=result | {"missing": missing, "seconds": 0.0})
            return True
        progress = self.begun(state, queue.get("validating"))
        if not self.is_whole(progress):
            try:
                if self._read is None or self._read[0] != state:
                    self._read = state, read_state(self.folder.state / state)[0]
            except StateError as error:
                if not (self.folder.state / state).exists():  # it may be on another machine, whose worker handles it
                    raise
                queue.set(validation=result | {"unreadable": str(error)})
                return True
            progress = self.portion(progress, self._read[1])
            queue.set(validating=asdict(progress))
        if self.is_whole(progress):
            queue.set(validation=result | progress.result() | {"seconds": progress.seconds})
        return True

    def begun(self, state: str, kept: object) -> ValidationProgress:
        """Return the progress of `state`. kept: the last stored progress, of this candidate or another."""
        last = read_as(ValidationProgress, kept)
        if last is None or last.measure != self.measure:
            return ValidationProgress(state, self.measure)
        if last.state == state:
            return last
        complete = len(last.labels) == len(self.canary)
        return ValidationProgress(state, self.measure, before=last.labels if complete else last.before)

    def is_whole(self, progress: ValidationProgress) -> bool:
        texts = self.guard is None or progress.texts is not None
        return texts and len(progress.ema) == len(self.rows) and len(progress.labels) == len(self.canary)

    def portion(self, progress: ValidationProgress, tensors: Mapping[str, Tensor]) -> ValidationProgress:
        """Measure the next portion. tensors: `live/…` and `ema/…` from the candidate's state."""
        started = time.perf_counter()
        is_live = len(progress.live) < len(self.rows)
        for name, parameter in self.parameters.items():
            parameter.data.copy_(tensors[f"{'live' if is_live else 'ema'}/{name}"])
        if is_live:
            progress = replace(progress, live=progress.live + self._outcomes(len(progress.live)))
        elif len(progress.ema) < len(self.rows):
            progress = replace(progress, ema=progress.ema + self._outcomes(len(progress.ema)))
        elif self.guard is not None and progress.texts is None:
            progress = replace(progress, texts=dict(self.guard.measure()))
        else:
            labels, right = self._labels(len(progress.labels))
            progress = replace(progress, labels=progress.labels + labels, right=progress.right + right)
        return replace(progress, seconds=progress.seconds + time.perf_counter() - started)

    def _outcomes(self, first: int) -> list[bool]:
        portion = self.rows[first : first + PORTION]
        return [bool(o) for o in evaluate(self.runner, portion, first=first, temperature=0.0).outcomes]

    def _labels(self, first: int) -> tuple[list[str | None], list[bool | None]]:
        rows = self.canary[first : first + max(PORTION // self.samples, 1)]
        samples = self.runner.run(rows, first=first, seed=0, split="eval", num_rollouts=self.samples)
        labels: list[str | None] = []
        right: list[bool | None] = []
        for start in range(0, len(samples), self.samples):
            group = [s.trajectory for s in samples[start : start + self.samples] if s.trajectory is not None]
            label = canonical(vote([t.answer for t in group]).answer)
            expected = next((canonical(t.expected) for t in group if t.expected is not None), None)
            labels.append(label)
            right.append(None if expected is None else label == expected)
        return labels, right


def validate_forever(
    config: RunConfig, run_dir: Path, writer: RunWriter, control: ControlChannel, resume: bool
) -> bool:
    """Validate the worker's candidates until stopped."""
    online = config.online
    torch.set_num_threads(1)
    model, tokenizer = load_serving_policy(config)
    agent = serving_agent(config, model, tokenizer)
    settings = online.validation
    data = config.environment.model_copy(update={"eval_tasks": settings.tasks + settings.canary_tasks})
    rows = load_rows(data, "eval", config.seed, tokenizer, config.data) if config.environment.eval_tasks else []
    canary = rows[: settings.canary_tasks]
    held_out = rows[settings.canary_tasks :][: settings.tasks] or canary
    acts = config.model.model_dump(mode="json") | serving_settings(config)
    runner = RolloutRunner(agent, tokenizer, online.samples)
    validator = Validator(OnlineFolder(run_dir), model, runner, held_out, canary, online.samples, acts, tokenizer)
    queue: UpdateQueue | None = None
    writer.status("running")
    while True:
        if any(r.command == "stop" for r in control.poll()):
            return False
        try:
            queue = queue or open_store(validator.folder, online).open_queue()
            if not validator.go_on(queue):
                time.sleep(POLL_S)
        except (QueueError, StateError) as error:  # a full disk, or a state that was replaced while being read
            if isinstance(error, QueueDamaged) and queue is not None:  # the worker repairs it
                queue.close()
                queue = None
            time.sleep(POLL_S)
