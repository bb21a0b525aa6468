"""Adapters that multiply once give what adapters that multiply twice give, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_tui.engine.policy.merged import merged_weights
from grpo_tui.engine.policy.versions import enable_checkpointing

from .parts import policy

IDS = torch.arange(3, 63).view(4, 15)


def outputs(model) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    logits = model(input_ids=IDS).logits
    logits.square().mean().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_values_and_gradients_are_the_same(checkpointing):
    model = policy(lora=True)
    expected, wanted = outputs(model)
    if checkpointing:
        enable_checkpointing(model.get_base_model(), {"use_reentrant": False})
        model.enable_input_require_grads()
        model.train()
    with merged_weights(model, gradient=True) as layers:
        assert layers == 14
        logits, gradients = outputs(model)
    assert (logits - expected).abs().max() < 1e-5
    assert gradients.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert (gradients[name] - gradient).abs().max() <= 1e-6 * max(1.0, gradient.abs().max()), name


def test_without_gradient_the_sums_are_made_once_and_the_weights_stay_what_they_are():
    model = policy(lora=True)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
        with merged_weights(model) as layers:
            assert layers == 14
            assert (model(input_ids=IDS).logits - expected).abs().max() < 1e-5
        assert torch.equal(model(input_ids=IDS).logits, expected)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_switched_off_adapters_stay_switched_off():
    model = policy(lora=True)
    with torch.no_grad(), model.disable_adapter():
        expected = model(input_ids=IDS).logits
        with merged_weights(model):
            assert torch.equal(model(input_ids=IDS).logits, expected)


@pytest.mark.parametrize("config", [{"use_dora": True}, {"lora_dropout": 0.1}, {"lora_bias": True}])
def test_other_kinds_of_adapters_are_left_alone(config):
    model = get_peft_model(policy(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", **config))
    with merged_weights(model) as layers:
        assert layers == 0


def test_half_precision_is_left_alone():
    model = policy(lora=True).to(torch.bfloat16)
    with merged_weights(model) as layers:
        assert layers == 0
