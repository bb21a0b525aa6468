"""Models of many architectures learn from what they did; those that cannot are stopped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.policy.attention_layout import Layout
from grpo_tui.engine.policy.packed import PackedForward
from grpo_tui.engine.policy.versions import OLD_CHECKPOINTING
from grpo_tui.engine.runs.write.writer import NullWriter
from grpo_tui.engine.training import TrainingError
from grpo_tui.engine.training.rft import run_rft

from ..agents.models import WITH_WINDOWS, model_of_type, tokenizer

SETTINGS = (
    *("model.device=cpu", "environment.class_path=grpo_tui.envs.CalculatorEnv", "environment.eval_tasks=0"),
    *("environment.config={operations: 1, max_turns: 2, prompt_style: terse}", "model.sft_adapters=null"),
    *("training.max_steps=1", "training.prompts_per_step=2", "training.num_generations=2", "training.replay.mode=off"),
    *("training.max_turn_tokens=6", "training.eval_every=0", "training.save_every=0"),
)


class Metrics(NullWriter):
    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        self.found.update(values)


@pytest.mark.parametrize("experts", [2, 0], ids=["experts", "dense"])
def test_a_family_that_may_have_experts_trains_with_and_without(tmp_path: Path, experts: int):
    chosen = min(experts, 1)
    model = model_of_type("granitemoehybrid", num_local_experts=experts, num_experts_per_tok=chosen)
    assert model.config.router_aux_loss_coef > 0 and not hasattr(model.config, "num_experts")
    assert math.isfinite(trained(tmp_path, model)[metric.LOSS])


@pytest.mark.skipif(OLD_CHECKPOINTING, reason="Doge of transformers 5.16 differs token by token, and is refused")
def test_a_family_with_settings_of_experts_that_it_lacks_trains(tmp_path: Path):
    model = model_of_type("doge")
    assert model.config.num_experts and not model.config.is_moe
    assert math.isfinite(trained(tmp_path, model)[metric.LOSS])


@pytest.mark.skipif(OLD_CHECKPOINTING, reason="its config in transformers 5.16 demands a token for the beginning")
def test_a_layer_between_body_and_vocabulary_is_part_of_the_loss(tmp_path: Path):
    found = trained(tmp_path, model_of_type("modernbert-decoder"))
    assert 0 <= found[metric.KL_UNCHANGED] < 1e-10


def test_a_prompt_that_the_policy_would_never_write_has_no_part_in_the_gradient(tmp_path: Path):
    """At this temperature its log-probs are below -88 nats, so π_ref / π of them is infinite in float32."""
    found = trained(tmp_path, model_of_type("gemma2"), "training.temperature=0.02")
    assert math.isfinite(found[metric.GRAD_NORM])


def trained(folder: Path, model: Any, *settings: str) -> dict[str, Any]:
    """The metrics of one step of training this model."""
    base = folder / "base"
    model.save_pretrained(base)
    tokenizer().save_pretrained(base)
    log = Metrics()
    paths = [f"model.base={base}", f"training.output_dir={folder / 'adapters'}"]
    assert run_rft(load_config(None, [*SETTINGS, *paths, *settings]), folder, log)
    return log.found


WITHOUT = ("qwen3", "qwen3_moe", "qwen3_next", "lfm2", "qwen3_5_text", "llama", "smollm3")
OF_PARTS_OF_OTHERS = {"qwen3_5_text", "llama", "smollm3", "gemma2", "olmo3", "phi3"}
"""Families whose kinds of layers another one has, too."""


def families(kinds: Iterable[str]) -> list[Any]:
    """Cases of a test; families without a kind of layer of their own are in the long form alone."""
    return [pytest.param(k, marks=[pytest.mark.stress] * (k in OF_PARTS_OF_OTHERS)) for k in kinds]


@pytest.mark.parametrize("kind", families(WITHOUT))
def test_the_defaults_that_follow_from_a_model_train_it(tmp_path: Path, kind: str):
    """Longer than the chunks of linear attention (64 tokens); KL of the unchanged policy in nats per token."""
    found = trained(tmp_path, model_of_type(kind), "training.max_turn_tokens=64")
    assert found[metric.LEARNING_RATE] == 1e-3
    assert found[metric.TRL("completions/max_length")] > 100
    assert 0 <= found[metric.KL_UNCHANGED] < 1e-5
    assert math.isfinite(found[metric.LOSS])


@pytest.mark.parametrize("kind", families(sorted(WITH_WINDOWS)))
def test_the_loss_is_about_the_policy_that_acted_beyond_every_window(tmp_path: Path, kind: str):
    found = trained(tmp_path, model_of_type(kind), "training.max_turn_tokens=40")
    assert found[metric.TRL("completions/max_length")] > 3 * 16
    assert 0 <= found[metric.KL_UNCHANGED] < 1e-10
    assert found[metric.TRL("completions/clipped_ratio")] > 0


def test_a_loss_about_another_policy_than_the_one_that_acted_ends_the_run(tmp_path: Path, monkeypatch):
    """The packed pass forgets its windows, which the comparison at the start cannot see here."""
    monkeypatch.setattr(Layout, "within", lambda self, window: self)
    monkeypatch.setattr(PackedForward, "agrees", lambda self: True)
    with pytest.raises(
        TrainingError,
        match=r"before the first update their KL is 0.* nats per token, and at most 0.001 is",
    ):
        trained(tmp_path, model_of_type("mistral"), "training.max_turn_tokens=40")


@pytest.mark.parametrize("kind", ["qwen3", "opt"])
def test_dropout_in_training_is_no_other_policy(tmp_path: Path, kind: str):
    found = trained(tmp_path, model_of_type(kind, dropout=0.5, attention_dropout=0.5 * (kind == "qwen3")))
    assert metric.KL_UNCHANGED not in found
