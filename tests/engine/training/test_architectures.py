"""Models whose configuration says less than TRL's trainer reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.runs.null_writer import NullWriter
from grpo_tui.engine.training.rft import run_rft

from ..agents.models import model_of_type, tokenizer

SETTINGS = (
    *("model.device=cpu", "environment.class_path=grpo_tui.envs.CalculatorEnv", "environment.eval_tasks=0"),
    *("environment.config={operations: 1}", "training.max_steps=1", "training.prompts_per_step=2"),
    *("training.num_generations=2", "training.max_turn_tokens=6", "training.eval_every=0", "training.save_every=0"),
    *("model.sft_adapters=null", "training.replay.mode=off"),
)


class Metrics(NullWriter):
    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        self.found.update(values)


@pytest.mark.parametrize("experts", [2, 0], ids=["experts", "dense"])
def test_a_family_that_may_have_experts_trains_with_and_without(tmp_path: Path, experts: int):
    base = tmp_path / "base"
    chosen = min(experts, 1)
    model = model_of_type("granitemoehybrid", num_local_experts=experts, num_experts_per_tok=chosen)
    assert model.config.router_aux_loss_coef > 0 and not hasattr(model.config, "num_experts")
    model.save_pretrained(base)
    tokenizer().save_pretrained(base)
    log = Metrics()
    config = load_config(None, [*SETTINGS, f"model.base={base}", f"training.output_dir={tmp_path / 'adapters'}"])
    assert run_rft(config, tmp_path, log)
    assert math.isfinite(log.found[metric.LOSS])
