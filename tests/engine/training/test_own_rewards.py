"""A dataset and reward functions of the user's own through the whole of training, and beside TRL's own trainer."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForSequenceClassification
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.record.step_recorder import StepRecorder
from grpo_tui.engine.rollouts.judging import Judge, completions_of, special_texts
from grpo_tui.engine.rollouts.rollout import rollouts_of
from grpo_tui.engine.runs.write.writer import NullWriter
from grpo_tui.engine.training.pipeline import StepRequest
from grpo_tui.engine.training.rft import build_trainer
from grpo_tui.envs.user_code import find_object
from grpo_tui.rewards.functions import load_function
from tests.forked import training_process

from .parts import policy, tokenizer

FUNCTIONS = """
import os

def vowels(completions, **kwargs):
    return [(sum(x in "aeiou" for x in c[0]["content"]) / 4, "counted") for c in completions]

async def tokens(completion_ids, limit, **kwargs):
    return [len(ids) / n for ids, n in zip(completion_ids, limit)]

def even_rows_only(prompts, completions, number, **kwargs):
    return [None if n % 2 else float(len(p[-1]["content"]) + len(c)) for p, c, n in zip(prompts, completions, number)]

def digits_where_any(completions, **kwargs):
    counts = [sum(x.isdigit() for x in c[0]["content"]) for c in completions]
    return [float(n) if n else None for n in counts]

def wandering(completions, **kwargs):
    os.chdir(os.path.dirname(__file__) + "/base")
    return [0.0] * len(completions)

def broken(completions, **kwargs):
    return [1.0 / 0 for c in completions]
"""
PICKED = (1, 3, 6, 9)
ROWS = [{"prompt": [{"role": "user", "content": f"start {i}"}], "limit": 4 + i, "number": i} for i in range(12)]


def configured(folder: Path, weights: dict[str, float], **more: Any) -> RunConfig:
    base = folder / "base"
    policy(seed=1).save_pretrained(base)
    tokenizer().save_pretrained(base)
    (folder / "mine.py").write_text(FUNCTIONS)
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return RunConfig.model_validate(
        {
            "seed": 3,
            "model": {"base": str(base), "device": "cpu", "lora": {"r": 4}},
            "data": {"source": str(folder / "data.jsonl"), **more.pop("data", {})},
            "environment": {
                "reward_funcs": {f"{folder / 'mine.py'}:{name}": w for name, w in weights.items()},
                "eval_tasks": 0,
                **more.pop("environment", {}),
            },
            "training": {
                "max_steps": 2,
                "prompts_per_step": 2,
                "num_generations": 4,
                "max_turn_tokens": 6,
                "max_trajectory_tokens": 64,
                "eval_every": 0,
                "beta": 0.0,
                "replay": {"mode": "off"},
                "output_dir": str(folder / "adapters"),
            },
        }
    )


def without_reasons(function: Any) -> Any:
    @functools.wraps(function)
    def scores(*args: Any, **kwargs: Any) -> list[float]:
        return [score for score, _ in function(*args, **kwargs)]

    return scores


@pytest.mark.parametrize(
    ("scale", "advantages", "aggregation"),
    [
        ("group", "group", "sum_then_normalize"),
        ("none", "group", "sum_then_normalize"),
        ("group", "gdpo", "normalize_then_sum"),
    ],
)
def test_rewards_and_advantages_are_those_of_trl_on_the_same_completions(
    tmp_path: Path, scale: str, advantages: str, aggregation: str
):
    weights = {"vowels": 1.0, "tokens": -0.5, "even_rows_only": 0.1, "digits_where_any": 0.3}
    config = configured(tmp_path, weights)
    config.training.scale_advantages = scale  # type: ignore[assignment]
    config.training.advantages = advantages
    trainer, _ = build_trainer(config, tmp_path / "run", StepRecorder(NullWriter()))
    rows = [trainer.rows[i] for i in PICKED for _ in range(4)]
    groups, metrics = trainer.pipeline.collect(StepRequest(rows, step=0, reference=False))
    ours = rollouts_of(groups)
    said = completions_of(ours, rows, special_tokens=special_texts(tokenizer()))

    def same_completions(prompts: list[Any], _: Any) -> dict[str, Any]:
        assert prompts == list(said.prompts)
        return {
            "prompt_ids": [r.token_ids[: r.prompt_length].tolist() for r in ours],
            "completion_ids": [list(ids) for ids in said.completion_ids],
            "logprobs": [r.logprobs[r.prompt_length :].tolist() for r in ours if r.logprobs is not None],
        }

    functions = [load_function(path).call for path in config.environment.reward_funcs]
    functions[0] = without_reasons(functions[0])
    stock = GRPOTrainer(
        policy(seed=1),
        functions,  # type: ignore[arg-type]
        args=GRPOConfig(
            output_dir=str(tmp_path / "trl"),
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=4 * len(PICKED),
            num_generations=4,
            reward_weights=list(weights.values()),
            scale_rewards=scale,
            multi_objective_aggregation=aggregation,
            max_completion_length=32,
            beta=0.0,
            report_to="none",
        ),
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tokenizer(),
        rollout_func=same_completions,
    )
    inputs = [ROWS[i] for i in PICKED for _ in range(4)]
    theirs = stock._generate_and_score_completions(inputs)["advantages"]  # type: ignore[arg-type]
    found = [float(r.advantages[r.agent_mask][0]) for r in ours if r.advantages is not None]
    np.testing.assert_allclose(found, theirs.tolist(), atol=1e-5)
    assert len(set(found)) > 2
    for name in weights:
        scores = [next(s.value for s in r.trajectory.steps[-1].scores if s.name == name) for r in ours if r.trajectory]
        logged = np.array(list(stock._logs["rewards"][name]), dtype=float)
        np.testing.assert_allclose(np.array(scores, dtype=float), logged, atol=1e-6)
        assert f"rewards/raw/{name}" in metrics
    assert "rewards/raw/task" not in metrics


SPY = """
seen = {}

def everything(**kwargs):
    seen.update(kwargs)
    kwargs["log_extra"]("first", [c[0]["content"][:1] for c in kwargs["completions"]])
    kwargs["log_metric"]("mean_length", sum(map(len, kwargs["completion_ids"])) / len(kwargs["completion_ids"]))
    kwargs["log_metric"]("mean_length", 0.0)
    return [float(kwargs["trainer_state"].max_steps)] * len(kwargs["prompts"])
"""


def test_functions_and_models_are_called_as_trl_calls_them(tmp_path: Path):
    """The same completions through TRL's own caller: names and values of all arguments, scores, logs."""
    torch.manual_seed(0)
    classifier = Qwen3ForSequenceClassification(Qwen3Config(**{**policy(seed=1).config.to_dict(), "num_labels": 1}))
    classifier.save_pretrained(tmp_path / "clf")
    tokenizer().save_pretrained(tmp_path / "clf")
    (tmp_path / "spy.py").write_text(SPY)
    config = configured(
        tmp_path, {}, environment={"reward_funcs": [f"{tmp_path}/spy.py:everything", f"{tmp_path}/clf"]}
    )
    trainer, _ = build_trainer(config, tmp_path / "run", StepRecorder(NullWriter()))
    trainer.state.max_steps = 2
    rows = [trainer.rows[i] for i in PICKED for _ in range(4)]
    ours = rollouts_of(trainer.pipeline.collect(StepRequest(rows, step=0, reference=False))[0])
    said = completions_of(ours, rows, special_tokens=special_texts(tokenizer()))
    spy = find_object(f"{tmp_path}/spy.py:seen")[1]
    assert isinstance(spy, dict)
    given = dict(spy)
    stock = GRPOTrainer(
        policy(seed=1),
        [load_function(f"{tmp_path}/spy.py:everything").call, str(tmp_path / "clf")],  # type: ignore[arg-type]
        args=GRPOConfig(output_dir=str(tmp_path / "trl"), use_cpu=True, bf16=False, report_to="none", max_steps=2),
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tokenizer(),
    )
    stock.state.max_steps = 2
    inputs = [ROWS[i] for i in PICKED for _ in range(4)]
    theirs = stock._calculate_rewards(inputs, list(said.prompts), list(said.completions), list(said.completion_ids))
    assert set(spy) <= set(given), "each argument of TRL's is there"
    for name in set(spy) - {"log_extra", "log_metric", "trainer_state"}:
        assert given[name] == spy[name], name
    assert type(given["trainer_state"]) is type(spy["trainer_state"])
    assert given["trainer_state"].global_step == spy["trainer_state"].global_step == 0
    scores = [[s.value for s in r.trajectory.steps[-1].scores] for r in ours if r.trajectory]
    np.testing.assert_allclose(np.array(scores, dtype=float), theirs.numpy(), rtol=1e-4, atol=1e-5)
    assert len({round(float(x), 4) for x in theirs[:, 1]}) > 1
    assert [r.trajectory.extra["first"] for r in ours if r.trajectory] == list(stock._pending_extra_logs["first"])
    judge = trainer.runner.judge
    assert isinstance(judge, Judge)
    logged = stock._pending_metrics["mean_length"]
    assert judge.take_metrics() == {"trl/mean_length": pytest.approx(sum(logged) / len(logged))}


def test_a_function_that_raises_ends_the_run_with_one_sentence_or_goes_on_without(tmp_path: Path):
    config = configured(tmp_path, {"vowels": 1.0, "broken": 1.0, "wandering": 1.0})
    config.training.output_dir = "adapters"
    for errors, code in (("stop", 1), ("skip", 0)):
        run = tmp_path / errors
        run.mkdir()
        config.environment.reward_errors = errors  # type: ignore[assignment]
        (run / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        process = training_process(run, log=run / "log.txt", cwd=tmp_path)
        assert process.wait(240) == code, (run / "log.txt").read_text()[-2000:]
        log = (run / "log.txt").read_text()
        assert "reward function broken" in log and "ZeroDivisionError: float division by zero for row" in log
    assert (tmp_path / "adapters-skip" / "adapter_config.json").is_file()  # although a function changed the folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"prompt_template": "{number} " * 40},
            "the prompt has [0-9]+ tokens, but a prompt with its answer may have at most 64",
        ),
        ({"prompt": "number"}, "number must be text or a list of messages"),
    ],
)
def test_what_the_data_lacks_is_said_before_the_first_step(tmp_path: Path, change: dict[str, Any], said: str):
    config = configured(tmp_path, {"vowels": 1.0}, data=change)
    with pytest.raises(ValueError, match=said):
        build_trainer(config, tmp_path / "run", StepRecorder(NullWriter()))


def test_rows_with_long_prompts_are_left_out_when_asked(tmp_path: Path):
    rows = [{"question": "short"}, {"question": "long " * 100}, {"question": "brief"}]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    data = {"source": str(tmp_path / "long.jsonl"), "long_prompts": "drop"}
    config = configured(tmp_path, {"vowels": 1.0}, data=data)
    trainer, _ = build_trainer(config, tmp_path / "run", StepRecorder(NullWriter()))
    assert len(trainer.rows) == 2
