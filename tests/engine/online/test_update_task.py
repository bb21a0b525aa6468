"""Update tasks: to bytes and back without loss, and what is wrong with one is said before it is used."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.engine.online.store.update_task import ROW_FIELDS, OriginalLogits, TaskError, UpdateTask

from .tiny import lora_model, make_task

MODEL = lora_model()


def flat(task: UpdateTask) -> dict[str, Any]:
    return {
        **{k: v for k, v in vars(task).items() if k not in ("experience", "original_logits")},
        **{f"experience.{k}": v for k, v in vars(task.experience).items() if k != "rows"},
        **{f"{i}.{name}": getattr(row, name) for i, row in enumerate(task.experience.rows) for name in ROW_FIELDS},
        "kind": task.original_logits.kind,
        **{f"logits.{i}": part for i, part in enumerate(task.original_logits.parts)},
    }


@given(st.integers(0, 100), st.integers(1, 4), st.integers(6, 12), st.one_of(st.none(), st.integers(1, 70)))
def test_to_bytes_and_back(seed: int, rows: int, length: int, top_k: int | None) -> None:
    cuts = [i % 3 for i in range(rows)]
    task = make_task(MODEL, seed=seed, rows=rows, length=length, cuts=cuts, top_k=top_k, facts={"why": "ü"})
    again = flat(UpdateTask.from_bytes(task.to_bytes()))
    for key, value in flat(task).items():
        if isinstance(value, (torch.Tensor, np.ndarray)):
            assert again[key].dtype == value.dtype and np.array_equal(again[key], value), key
        else:
            assert again[key] == value, key
    UpdateTask.from_bytes(task.to_bytes()).check(max_learning_rate=1.0, vocabulary=64)


class Bomb:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\0" * 100, pickle.dumps(Bomb()), b"\xff" * 8 + b"{}", torch.randn(3).numpy().tobytes()]
)
def test_other_bytes_are_no_task(data: bytes) -> None:
    with pytest.raises(TaskError, match="not an update task"):
        UpdateTask.from_bytes(data)


def test_a_task_that_is_cut_short() -> None:
    data = make_task(MODEL).to_bytes()
    for cut in (10, 200, len(data) - 1):
        with pytest.raises(TaskError, match="not an update task"):
            UpdateTask.from_bytes(data[:cut])


NAN = math.nan


def with_logits(task: UpdateTask, change: Callable[[torch.Tensor], torch.Tensor]) -> UpdateTask:
    return replace(task, original_logits=OriginalLogits(tuple(map(change, task.original_logits.parts))))


def with_rows(task: UpdateTask, name: str, change: Callable[[np.ndarray], np.ndarray]) -> UpdateTask:
    rows = tuple(replace(row, **{name: change(getattr(row, name))}) for row in task.experience.rows)
    return replace(task, experience=replace(task.experience, rows=rows))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda t: replace(t, reward_tensor=t.reward_tensor * NAN), "reward tensor contains NaN"),
        (lambda t: replace(t, reward_tensor=t.reward_tensor[:1]), "reward tensor has shape"),
        (lambda t: replace(t, components=("task",)), "2 components"),
        (lambda t: replace(t, learning_rate=NAN), "learning rate nan"),
        (lambda t: replace(t, learning_rate=0.0), "learning rate 0.0 is not in"),
        (lambda t: replace(t, learning_rate=1.1), r"not in \(0, 1.0\]"),
        (lambda t: with_logits(t, lambda logits: logits * NAN), "logits contain NaN"),
        (lambda t: with_logits(t, lambda logits: logits[1:]), "original logits for"),
        (lambda t: with_logits(t, lambda logits: logits[:, 1:]), "over 63 tokens"),
        (lambda t: with_rows(t, "logprobs", lambda row: row * np.float32(NAN)), "log-probs contain NaN"),
        (lambda t: with_rows(t, "token_ids", lambda row: row + 60), "outside the vocabulary of 64"),
        (lambda t: with_rows(t, "agent_mask", np.zeros_like), "no token that the agent wrote"),
        (lambda t: with_rows(t, "agent_mask", np.ones_like), "first token"),
        (lambda t: with_rows(t, "turn", lambda row: row + 5), "turns do not fit"),
    ],
)
def test_what_would_do_harm_is_refused(spoil: Any, reason: str) -> None:
    task = make_task(MODEL)
    task.check(max_learning_rate=1.0, vocabulary=64)
    with pytest.raises(TaskError, match=reason):
        spoil(task).check(max_learning_rate=1.0, vocabulary=64)
    with pytest.raises(TaskError, match=reason):
        UpdateTask.from_bytes(spoil(task).to_bytes()).check(max_learning_rate=1.0, vocabulary=64)


def test_arrays_of_a_row_that_differ_in_length_are_refused() -> None:
    short = with_rows(make_task(MODEL), "logprobs", lambda row: row[1:])
    with pytest.raises(TaskError, match="logprobs has length 9"):
        short.check(max_learning_rate=1.0)
    with pytest.raises(TaskError, match="not an update task"):
        UpdateTask.from_bytes(short.to_bytes())
