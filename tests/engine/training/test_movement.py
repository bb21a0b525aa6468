"""How far weights moved, against the learning rate: the guard against updates that are lost."""

from __future__ import annotations

import pytest
import torch

from grpo_tui.configs.sections.rewards import DiagnosisConfig
from grpo_tui.engine.training.callbacks.recording import Movement

LIMIT = DiagnosisConfig().movement
RATE, UPDATES = 1e-5, 5


def moved(dtype: torch.dtype, *, optimised: bool = True, gradient: float = 1.0) -> float | None:
    """Train a layer with weights of about 0.02 on random targets."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64)
    torch.nn.init.normal_(layer.weight, std=0.02)
    layer.to(dtype)
    other = torch.nn.Linear(1, 1)
    optimiser = torch.optim.AdamW((layer if optimised else other).parameters(), lr=RATE, weight_decay=0.0)
    movement = Movement(layer)
    found = None
    for _ in range(UPDATES):
        optimiser.zero_grad()
        loss = layer(torch.randn(32, 64).to(dtype)).float().square().mean()
        loss.backward()
        optimiser.step()
        found = movement.measure(RATE, gradient)
    return found


def test_weights_in_float32_move_with_the_learning_rate():
    assert LIMIT * 4 < (moved(torch.float32) or 0) <= 1.0


def test_updates_that_bfloat16_rounds_away_are_seen():
    assert (moved(torch.bfloat16) or 0) < LIMIT


def test_weights_that_the_optimiser_does_not_have_do_not_move():
    assert moved(torch.float32, optimised=False) == 0.0


@pytest.mark.parametrize("gradient", [0.0, float("nan")])
def test_updates_without_a_gradient_do_not_count(gradient: float):
    assert moved(torch.float32, gradient=gradient) is None
