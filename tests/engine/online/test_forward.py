"""The packed forward pass gives what the padded one gives: logits, hidden states and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_tui.engine.policy.padded import hidden_states
from grpo_tui.engine.policy.prepared import PreparedModel, forward_agent_tokens

from .tiny import lora_model

Rows = tuple[list[np.ndarray], list[np.ndarray]]


def trajectories(seed: int, rows: int, shared: bool) -> Rows:
    """Token ids and agent masks [T_i]: two turns a row, of random lengths."""
    random = np.random.default_rng(seed)
    prompt = random.integers(0, 64, 9)
    ids, agent = [], []
    for _ in range(rows):
        begin = prompt if shared else random.integers(0, 64, random.integers(3, 12))
        sizes = [random.integers(1, 7), random.integers(1, 6), random.integers(1, 9), random.integers(0, 4)]
        written = np.repeat([False, True, False, True, False], np.array([len(begin), *sizes]))
        ids.append(np.concatenate([begin, random.integers(0, 64, sum(sizes))]))
        agent.append(written)
    return ids, agent


def gradients(model: Any, batch: Rows) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logits = forward_agent_tokens(model, *batch).logits
    torch.log_softmax(logits, -1).square().sum(-1).mean().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rows", [1, 5])
def test_packed_and_padded_agree(shared: bool, rows: int) -> None:
    batch = trajectories(3, rows, shared)
    padded, packed = lora_model(), lora_model()
    assert PreparedModel(packed).packed
    for model in (padded, packed):
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.requires_grad or parameter.ndim == 1)  # the norms as well
    want, want_gradients = gradients(padded, batch)
    got, got_gradients = gradients(packed, batch)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert got_gradients.keys() == want_gradients.keys() and len(want_gradients) > 20
    for name, gradient in want_gradients.items():
        assert (got_gradients[name] - gradient).norm() <= 1e-5 * (1 + gradient.norm()), name


@torch.no_grad()
def test_logits_and_hidden_states_are_those_of_each_row_alone() -> None:
    ids, agent = trajectories(4, 6, shared=True)
    model = lora_model()
    padded = forward_agent_tokens(model, ids, agent, keep_hidden=True)
    every = hidden_states(model, ids)
    alone = [model(input_ids=torch.from_numpy(row)[None], output_hidden_states=True) for row in ids]
    logits = torch.cat([out.logits[0, np.flatnonzero(mask) - 1] for out, mask in zip(alone, agent, strict=True)])
    hidden = torch.cat([out.hidden_states[-1][0, mask] for out, mask in zip(alone, agent, strict=True)])
    assert PreparedModel(model).packed
    packed = forward_agent_tokens(model, ids, agent, keep_hidden=True)
    for found in (padded, packed):
        torch.testing.assert_close(found.logits, logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.hidden, hidden, atol=1e-5, rtol=1e-5)
    for row, out in zip(every, alone, strict=True):
        torch.testing.assert_close(row, out.hidden_states[-1][0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_batch_in_which_no_agent_wrote_anything_has_no_logits() -> None:
    ids, agent = trajectories(5, 2, shared=False)
    model = lora_model()
    assert PreparedModel(model).packed
    assert forward_agent_tokens(model, ids, [np.zeros_like(mask) for mask in agent]).logits.shape == (0, 64)
