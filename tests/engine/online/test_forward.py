"""The packed forward pass gives what the padded one gives: logits, hidden states and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_tui.engine.policy.forward import forward_agent_tokens, hidden_states, use_packed_forward

from .tiny import lora_model


def trajectories(seed: int, rows: int, shared: bool) -> tuple[Tensor, Tensor, Tensor]:
    """token_ids, attention_mask, agent_mask [B, T]: two turns a row, of random lengths."""
    random = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    prompt = torch.randint(0, 64, (9,), generator=random)
    parts: list[tuple[Tensor, Tensor]] = []
    for _ in range(rows):
        begin = prompt if shared else torch.randint(0, 64, (number(3, 12),), generator=random)
        sizes = [(number(1, 7), True), (number(1, 6), False), (number(1, 9), True), (number(0, 4), False)]
        agent = torch.cat([torch.zeros(len(begin)), *(torch.full((n,), float(mine)) for n, mine in sizes)]).bool()
        own = torch.randint(0, 64, (len(agent) - len(begin),), generator=random)
        parts.append((torch.cat([begin, own]), agent))
    ids, there, agents = (torch.zeros(rows, max(len(p[0]) for p in parts), dtype=torch.long) for _ in range(3))
    for i, (row, agent) in enumerate(parts):
        ids[i, : len(row)], there[i, : len(row)], agents[i, : len(row)] = row, 1, agent.long()
    return ids, there.bool(), agents.bool()


def gradients(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logits = forward_agent_tokens(model, *batch).logits
    torch.log_softmax(logits, -1).square().sum(-1).mean().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rows", [1, 5])
def test_packed_and_padded_agree(shared: bool, rows: int) -> None:
    batch = trajectories(3, rows, shared)
    padded, packed = lora_model(), lora_model()
    assert use_packed_forward(packed)
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
def test_hidden_states_of_the_agents_tokens_agree() -> None:
    ids, there, agent = trajectories(4, 6, shared=True)
    model = lora_model()
    padded = forward_agent_tokens(model, ids, there, agent, keep_hidden=True).hidden
    every = hidden_states(model, ids, there)
    assert use_packed_forward(model)
    packed = forward_agent_tokens(model, ids, there, agent, keep_hidden=True).hidden
    assert padded is not None and packed is not None
    torch.testing.assert_close(packed[agent], padded[agent], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(every[agent], padded[agent], atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_a_batch_in_which_no_agent_wrote_anything_has_no_logits() -> None:
    ids, there, agent = trajectories(5, 2, shared=False)
    model = lora_model()
    assert use_packed_forward(model)
    assert forward_agent_tokens(model, ids, there, torch.zeros_like(agent)).logits.shape == (0, 64)
