"""Tiny real parts for the trainer's tests: a random model, playback environments, trainers around them."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl.trainer.grpo_config import GRPOConfig

from benchmarks.policies.tokenizer import train_tokenizer
from grpo_tui.engine.policy.versions import NO_CHECKPOINTING
from grpo_tui.engine.rollouts.advantages import advantage_method
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.pipeline import RolloutOptions
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.loading import load_env_class
from grpo_tui.envs.multi_turn import MultiTurnEnv

TEXTS = [
    '{"name": "CALCULATE", "arguments": {"operation": "add", "a": 31, "b": 40}}',
    "start 3 then add 4. ANSWER(text)",
]
PLAYBACK = "playback"


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, vocab_size=300)


def policy(seed: int = 0, lora: bool = False, layers: int = 2) -> Any:
    """A random Qwen3 in float32; with LoRA its adapters are not zero, so that every gradient is alive."""
    torch.manual_seed(seed)
    tok: Any = tokenizer()
    model: Any = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tok),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            tie_word_embeddings=True,
            eos_token_id=tok.eos_token_id,
            pad_token_id=tok.pad_token_id,
            bos_token_id=None,
            known_environments=["calculator"],  # type: ignore[call-arg] - kept by every configuration
        )
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)  # attention that is nearly uniform would hide a wrong mask
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    return model


def rollout(task: int, number: int, turns: int = 2) -> dict[str, Any]:
    """Token ids, agent mask and reward of a rollout that depends on its task and number only."""
    prompt_rng, rng = np.random.default_rng(task), np.random.default_rng([task, number, 7])
    ids, mask = [prompt_rng.integers(3, 290, 4 + task % 5)], []
    mask.append(np.zeros(len(ids[0]), bool))
    for turn in range(turns):
        said = rng.integers(3, 290, rng.integers(2, 7))
        ids.append(said)
        mask.append(np.ones(len(said), bool))
        if turn + 1 < turns:
            answer = rng.integers(3, 290, rng.integers(1, 5))
            ids.append(answer)
            mask.append(np.zeros(len(answer), bool))
    return {"ids": np.concatenate(ids), "mask": np.concatenate(mask), "reward": np.float32(rng.normal())}


class PlaybackEnv(MultiTurnEnv):
    """Gives rollouts that were fixed beforehand, whatever the agent would say. `name` only tells instances apart."""

    made: ClassVar[list[dict[str, Any]]] = []
    calls: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, tokenizer: Any = None, *, turns: int = 2, label: str = "", shift: float = 0.0) -> None:
        super().__init__(tokenizer)
        self.turns, self.label, self.shift = turns, label, shift
        type(self).made.append({"tokenizer": tokenizer, "turns": turns, "label": label, "shift": shift})

    def reset(self, task: Any) -> Any:
        return None, [{"role": "user", "content": str(task["index"])}]

    def step(self, state: Any, call: Any) -> StepResult:
        return StepResult("", done=True)

    def run_trial(self, task_data_list: Any, agent: Any, num_rollouts: int) -> dict[str, Any]:  # type: ignore[override]
        type(self).calls.append({"tasks": list(task_data_list), "agent": agent, "num_rollouts": num_rollouts})
        rows = [rollout(t["index"], r, self.turns) for t in task_data_list for r in range(num_rollouts)]
        length = max(len(r["ids"]) for r in rows)
        out = {
            "padded_token_ids": np.zeros((len(rows), length), np.int64),
            "padded_attn_mask": np.zeros((len(rows), length), np.int64),
            "padded_agent_mask": np.zeros((len(rows), length), np.int64),
            "padded_rewards": np.zeros((len(rows), length), np.float32),
        }
        for i, row in enumerate(rows):
            n = len(row["ids"])
            out["padded_token_ids"][i, :n] = row["ids"]
            out["padded_attn_mask"][i, :n] = 1
            out["padded_agent_mask"][i, :n] = row["mask"]
            out["padded_rewards"][i, np.flatnonzero(row["mask"])[-1]] = row["reward"] + self.shift
        return {**out, "final_rewards": [float(r["reward"] + self.shift) for r in rows]}


class OtherPlaybackEnv(PlaybackEnv):
    """The same under another name."""

    made: ClassVar[list[dict[str, Any]]] = []
    calls: ClassVar[list[dict[str, Any]]] = []


class StillAgent:
    """Holds the policy; playback environments never ask it to act."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def start(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("playback needs no agent")


def playback_path(name: str = "PlaybackEnv") -> str:
    return f"{__file__}:{name}"


def as_loaded(name: str = "PlaybackEnv") -> Any:
    """The class as the trainer gets it: a file's module is imported under a name of its own."""
    return load_env_class(playback_path(name))


def playback_rows(n: int, **config: Any) -> list[dict[str, Any]]:
    return [
        {"env_class_path": playback_path(), "env_config": json.dumps(config), "task_data": json.dumps({"index": i})}
        for i in range(n)
    ]


def arguments(folder: Any, **changes: Any) -> GRPOConfig:
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_generations": 4,
        "max_steps": 3,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "beta": 0.0,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "max_grad_norm": 0.0,
        **NO_CHECKPOINTING,
        "max_completion_length": 64,
    }
    return GRPOConfig(**{**values, **changes})


def make_trainer(folder: Any, rows: list[dict[str, Any]], model: Any = None, agent: Any = None, **changes: Any) -> Any:
    """A trainer around playback rows; keyword arguments go to the trainer or, if it knows them, to its arguments."""
    own = {k: changes.pop(k) for k in list(changes) if k in OWN}
    if isinstance(changes.get("advantages"), str):
        changes["advantages"] = advantage_method(changes["advantages"])
    options = RolloutOptions(**{k: changes.pop(k) for k in list(changes) if k in OPTIONS})
    model = model if model is not None else policy()
    return GRPOEnvTrainer(
        agent or StillAgent(model),
        tokenizer(),
        args=arguments(folder, **changes),
        train_dataset=Dataset.from_list(rows),
        model=model,
        options=options,
        **own,
    )


OWN = {"orchestrator", "replay", "prepare_env", "packed", "loss", "kl_estimator", "callbacks"}
OPTIONS = {field.name for field in fields(RolloutOptions)}
