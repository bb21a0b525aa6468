"""A small supervised trainer for the tiny policy: shuffled batches, loss on the agent's tokens, one rate schedule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from grpo_tui.engine.policy.unwrap import base_of
from grpo_tui.engine.policy.vision.inputs import Images, VisionModel
from grpo_tui.envs.trajectory import TokenArrays

OnStep = Callable[[int, int, float], None]
"""`on_step(step, steps, loss)` reports progress."""
BUCKET = 16
"""Sort lessons by length within this many batches, to reduce padding."""


def teach(
    model: torch.nn.Module,
    lessons: Sequence[TokenArrays],
    *,
    steps: int,
    batch_size: int = 16,
    learning_rate: float = 3e-3,
    muon_learning_rate: float | None = None,
    seed: int = 0,
    images: Sequence[Images] | None = None,
    on_step: OnStep = lambda step, steps, loss: None,
) -> float:
    """Train the parameters that require a gradient. Returns the mean loss of the last 50 steps. images[i]: the images
    of lesson i, for a vision model. on_step: called after each step.

    Uses AdamW or, with `muon_learning_rate`, Muon for the matrices inside the layers. With Muon the base learns to copy
    in about half the steps. The rates warm up, stay constant, and decay to a fiftieth over the second half.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    inside = [p for name, p in parameters.items() if p.ndim == 2 and "embed" not in name]
    optimisers: list[torch.optim.Optimizer] = []
    if muon_learning_rate is not None:
        optimisers.append(torch.optim.Muon(inside, lr=muon_learning_rate, weight_decay=0.01))
        parameters = {name: p for name, p in parameters.items() if not any(p is q for q in inside)}
    optimisers.append(torch.optim.AdamW(parameters.values(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0))
    warmup = max(1, steps // 20)

    def rate(step: int) -> float:
        return min((step + 1) / warmup, 1.0, 0.02 + 0.98 * 2 * (1 - step / steps))

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimiser, rate) for optimiser in optimisers]
    trained = [p for group in optimisers for part in group.param_groups for p in part["params"]]
    model.train()
    recent: list[float] = []
    seeing = None if images is None else VisionModel.of(base_of(model))
    batches = _batches(lessons, batch_size, random.Random(seed))
    for step in range(steps):
        batch, chosen = next(batches)
        given = {k: batch[k] for k in ("input_ids", "attention_mask")}
        if seeing is not None and images is not None:
            given |= seeing.padded(batch["input_ids"], [images[i] for i in chosen])
        logits = model(**given).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
        recent = [*recent[-49:], float(loss.detach())]
        on_step(step + 1, steps, recent[-1])
    model.eval()
    return sum(recent) / max(len(recent), 1)


def _batches(
    lessons: Sequence[TokenArrays], size: int, rng: random.Random
) -> Iterator[tuple[dict[str, torch.Tensor], list[int]]]:
    """Yield batches of similar length with their lessons' indices, endlessly. Each epoch has every lesson once."""
    while True:
        order = list(range(len(lessons)))
        rng.shuffle(order)
        ready: list[list[int]] = []
        for start in range(0, len(order), size * BUCKET):
            part = sorted(order[start : start + size * BUCKET], key=lambda i: len(lessons[i]))
            ready += [part[i : i + size] for i in range(0, len(part), size)]
        rng.shuffle(ready)
        for chosen in ready:
            yield _collate([lessons[i] for i in chosen]), chosen


def _collate(lessons: Sequence[TokenArrays]) -> dict[str, Any]:
    width = max(map(len, lessons))
    ids = np.zeros((len(lessons), width), dtype=np.int64)
    labels = np.full((len(lessons), width), -100, dtype=np.int64)
    attention = np.zeros((len(lessons), width), dtype=np.int64)
    for row, lesson in enumerate(lessons):
        n = len(lesson)
        ids[row, :n] = lesson.token_ids
        labels[row, :n] = np.where(lesson.agent_mask, lesson.token_ids, -100)
        attention[row, :n] = 1
    arrays = {"input_ids": ids, "labels": labels, "attention_mask": attention}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
