"""A loss of one's own: one file, its mean over the agent's tokens, its name in the configuration."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from trl.trainer.grpo_config import GRPOConfig

from grpo_tui.configs.sections.training import METHODS, OWN_LOSSES, TRL_LOSSES, TrainingConfig
from grpo_tui.engine.rollouts.advantages import advantage_method
from grpo_tui.engine.training import TrainingError
from grpo_tui.engine.training.losses import LossInputs, kl_of_tokens, own_loss, sum_over_tokens
from grpo_tui.engine.training.losses.reinforce import reinforce
from grpo_tui.engine.training.processes import check_supported

from .parts import make_trainer, playback_rows, policy

CLIPPED = """
import torch

def clipped(inputs):
    ratio = inputs.ratio
    return -torch.minimum(ratio * inputs.advantages, ratio.clamp(0.8, 1.2) * inputs.advantages)
"""


def gradients(folder: Any, **changes: Any) -> dict[str, torch.Tensor]:
    """Of the first step, taken with gradient descent at rate 1."""
    model = policy()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    changes = {"learning_rate": 1.0, "max_steps": 1, "beta": 0.2, **changes}
    make_trainer(folder, playback_rows(12, turns=2), model=model, **changes).train()
    return {n: before[n] - p.detach() for n, p in model.named_parameters()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert max(g.abs().max() for g in theirs.values()) > 1e-3
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_loss_in_a_file_of_ones_own_trains_as_trls_does(tmp_path, accumulated):
    """TRL's `dapo`, written again in four lines: the same gradients, KL penalty and accumulation included."""
    (tmp_path / "mine.py").write_text(CLIPPED)
    split = {"per_device_train_batch_size": 8 // accumulated, "gradient_accumulation_steps": accumulated}
    ours = gradients(tmp_path / "a", loss=own_loss(f"{tmp_path}/mine.py:clipped"), **split)
    assert_same(ours, gradients(tmp_path / "b", loss_type="dapo", **split))


def test_reinforce_is_the_gradient_of_an_unclipped_step_on_policy(tmp_path):
    ours = gradients(tmp_path / "a", loss=own_loss("reinforce"))
    assert_same(ours, gradients(tmp_path / "b", loss_type="dapo", epsilon=1e3))


def test_the_configuration_knows_every_name():
    assert all(callable(own_loss(name)) for name in OWN_LOSSES)
    assert all(advantage_method(name).name == name for name in METHODS)
    trls = str(GRPOConfig.__dataclass_fields__["loss_type"].metadata["help"])
    assert all(own_loss(name) is None and name in trls for name in TRL_LOSSES)
    assert TrainingConfig(loss_type="mine.py:clipped").loss_type == "mine.py:clipped"
    with pytest.raises(ValueError, match="loss_type"):
        TrainingConfig(loss_type="dappo")


@pytest.mark.parametrize(
    ("name", "message"), [("nothing", "dapo.*reinforce"), ("json.nothing", "json has no function nothing")]
)
def test_a_loss_that_is_none_is_refused_in_one_sentence(name, message):
    with pytest.raises(TrainingError, match=message):
        own_loss(name)


@pytest.mark.parametrize(
    ("kind", "mode", "version"), [("FSDP", "rft", "1"), ("FSDP", "sft", "2"), ("DEEPSPEED", "rft", "2")]
)
def test_other_divisions_of_the_weights_are_refused_with_what_would_be_right(kind: str, mode: str, version: str):
    check_supported(mode, {f"ACCELERATE_USE_{kind}": "false"})
    check_supported("rft", {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"})
    with pytest.raises(TrainingError, match=r"not supported.*MULTI_GPU.*fsdp_version 2"):
        check_supported(mode, {f"ACCELERATE_USE_{kind}": "true", "FSDP_VERSION": version})


def test_only_the_agents_tokens_count():
    """Whatever stands on the other tokens changes neither the sum nor its gradient."""
    mask = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])

    def summed(elsewhere: float) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(0)
        values = torch.rand(4, 2, 4, generator=random).where(mask > 0, torch.tensor(elsewhere))
        logprobs = (-values[0]).requires_grad_()
        inputs = LossInputs(logprobs, -values[1], values[2], torch.zeros(2, 4), mask)
        total = sum_over_tokens(reinforce, inputs, -values[3], beta=0.5)
        total.backward()
        assert logprobs.grad is not None
        return total.detach(), logprobs.grad

    (total, gradient), (same, alike) = summed(0.5), summed(3.0)
    torch.testing.assert_close(total, same)
    torch.testing.assert_close(gradient, alike)
    assert not gradient[mask == 0].any() and gradient[mask > 0].all()


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [math.log(2.0), 0.0, -math.log(2.0)]),
        ("k2", [math.log(2.0) ** 2 / 2, 0.0, math.log(2.0) ** 2 / 2]),
        ("k3", [0.5 - math.log(0.5) - 1, 0.0, 2.0 - math.log(2.0) - 1]),
    ],
)
def test_the_kl_of_a_token_is_schulmans_estimator_of_policy_and_reference(estimator, expected):
    policy_, reference = torch.log(torch.tensor([[0.5, 0.25, 0.25]])), torch.log(torch.tensor([[0.25, 0.25, 0.5]]))
    torch.testing.assert_close(kl_of_tokens(policy_, reference, estimator), torch.tensor([expected]))
    mean = policy_.double().exp() * kl_of_tokens(policy_.double(), reference.double(), estimator)
    exact = (policy_.double().exp() * (policy_ - reference)).sum()
    if estimator != "k2":  # the other two have the KL as their mean
        torch.testing.assert_close(mean.sum(), exact, atol=1e-6, rtol=0)
