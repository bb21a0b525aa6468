"""A real policy of a few thousand parameters, an environment that needs no skill, and tasks made of random tokens."""

from __future__ import annotations

import functools
import io
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.policies.tokenizer import train_tokenizer
from grpo_tui.configs.schema import RunConfig
from grpo_tui.configs.sections.online import OnlineConfig
from grpo_tui.engine.online.store.update_task import Experience, OriginalLogits, UpdateTask
from grpo_tui.engine.policy.prepared import forward_agent_tokens
from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.multi_turn import MultiTurnEnv
from grpo_tui.envs.trajectory import TokenArrays
from tests.repeated import files_of, folder_of

WORDS = ["what is it? red", "it is blue", "green and so on", "0 1 2 3 4 5 6 7 8 9"]


class ParityEnv(MultiTurnEnv):
    """One turn; the answer is how many letters were written, modulo 3: any policy disagrees with itself."""

    name = "parity"

    def reset(self, task: Mapping[str, Any]) -> tuple[Any, list[Message]]:
        if "question" not in task:
            raise ValueError("task_data needs a question")
        return task, [{"role": "user", "content": str(task["question"])}]

    def step(self, state: Any, call: Any) -> StepResult:
        answer = str(len(call.text) % 3)
        return StepResult("", done=True, answer=answer, correct=answer == str(state.get("answer", "0")))

    def make_tasks(self, split: Any, n: int, seed: int) -> list[dict[str, Any]]:
        return [{"question": f"{split} {seed} {i}", "answer": str(i % 3)} for i in range(n)]


class LoudEnv(ParityEnv):
    """Uses the process's standard streams as its own, by a program and by itself."""

    def reset(self, task: Mapping[str, Any]) -> tuple[Any, list[Message]]:
        subprocess.run("cat; echo loud", shell=True)
        print("loud", flush=True)
        sys.stdout = io.StringIO()
        return super().reset(task)


def tokenizer() -> Any:
    return train_tokenizer(WORDS, vocab_size=300, numbers=12)


def base_model(vocabulary: int, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.5,
    )
    return Qwen3ForCausalLM(config).eval()


def lora_model(vocabulary: int = 64, seed: int = 0) -> Any:
    return pickle.loads(_lora_model(vocabulary, seed))  # in a quarter of the time that `deepcopy` takes


@functools.cache
def _lora_model(vocabulary: int, seed: int) -> bytes:
    torch.manual_seed(seed)
    model = get_peft_model(base_model(vocabulary, seed), LoraConfig(r=4, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # as adapters that were trained: not the zero map
            torch.nn.init.normal_(parameter, std=0.05)
    return pickle.dumps(model.eval())


def saved_policy(folder: Path) -> tuple[str, str]:
    """Base model, tokenizer and adapters in folders, for processes that load them by path."""
    folder_of(_saved_policy(), folder)
    return str(folder / "base"), str(folder / "adapters")


@functools.cache
def _saved_policy() -> dict[str, bytes]:
    def save(folder: Path) -> None:
        words = tokenizer()
        model = base_model(len(words))
        model.save_pretrained(folder / "base")
        words.save_pretrained(folder / "base")
        torch.manual_seed(1)
        adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
        adapted.save_pretrained(str(folder / "adapters"))

    return files_of(save)


def run_config(folder: Path, **online: Any) -> RunConfig:
    base, adapters = saved_policy(folder)
    settings = {
        "samples": 4,
        "max_turn_tokens": 6,
        "max_trajectory_tokens": 64,
        "poll_interval_s": 0.02,
        "min_confidence": 0.3,
        "worker_nice": 0,  # a test waits for the worker while other tests run
        "validation": {"enabled": False},
        **online,
    }
    return RunConfig.model_validate(
        {
            "mode": "online",
            "model": {"base": base, "sft_adapters": adapters, "device": "cpu"},
            "environment": {"class_path": f"{__file__}:ParityEnv", "train_tasks": 64, "eval_tasks": 8},
            "online": settings,
        }
    )


def logits_of(model: Any, experience: Experience) -> torch.Tensor:
    """The logits [A, V] of `model` at the agent tokens of an experience."""
    rows = experience.rows
    with torch.no_grad():
        return forward_agent_tokens(model, [r.token_ids for r in rows], [r.agent_mask for r in rows]).logits.float()


def logprobs_of(model: Any, experience: Experience) -> torch.Tensor:
    """The log-probs [A] of `model` of the agent tokens of an experience."""
    chosen = experience.at_agent_tokens("token_ids").long()[:, None]
    return logits_of(model, experience).log_softmax(-1).gather(-1, chosen)[:, 0]


def make_task(
    model: Any,
    identifier: str = "request-1",
    *,
    seed: int = 0,
    rows: int = 2,
    length: int = 10,
    cuts: Sequence[int] = (),
    learning_rate: float = 1e-3,
    rewards: torch.Tensor | None = None,
    top_k: int | None = None,
    version: int = 0,
    **changes: Any,
) -> UpdateTask:
    """A task whose original logits and log-probs are really those of `model`; the agent wrote all but 3 tokens.

    cuts[i]: the number of tokens that row i is shorter than `length`.
    """
    generator = torch.Generator().manual_seed(seed)
    vocabulary = model.get_base_model().config.vocab_size
    token_ids = torch.randint(0, vocabulary, (rows, length), generator=generator)
    agent = torch.ones(rows, length, dtype=torch.bool)
    agent[:, :3] = False
    turns = torch.where(agent, 0, -1).to(torch.int16)
    turns[:, length // 2 + 2 :] = 1
    ends = [length - cut for cut in cuts] if cuts else [length] * rows
    written = [mask[:end].numpy() for mask, end in zip(agent, ends, strict=True)]
    ids = [row[:end].numpy().astype(np.int32) for row, end in zip(token_ids, ends, strict=True)]
    with torch.no_grad():
        logits = forward_agent_tokens(model, ids, written).logits.float()
    targets = torch.from_numpy(np.concatenate([r[m] for r, m in zip(ids, written, strict=True)])).long()
    chosen = torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]
    parts = chosen.split([int(mask.sum()) for mask in written])
    logprobs = [np.zeros(end, np.float32) for end in ends]
    for row, mask, part in zip(logprobs, written, parts, strict=True):
        row[mask] = part.numpy()
    arrays = zip(
        ids, written, logprobs, (turn[:end].numpy() for turn, end in zip(turns, ends, strict=True)), strict=True
    )
    if rewards is None:
        rewards = torch.randn(rows, 2, 2, generator=generator)
    values: dict[str, Any] = {
        "experience": Experience(
            identifier,
            tuple(TokenArrays(*row) for row in arrays),
            tuple(f"t{i}" for i in range(rows)),
            tuple("ab"[i % 2] for i in range(rows)),
            ("a",) * rows,
        ),
        "reward_tensor": rewards,
        "components": ("task", "penalty"),
        "learning_rate": learning_rate,
        "learning_rate_kind": "lr_adaptive",
        "original_logits": OriginalLogits.of(logits, top_k),
        "policy_version": version,
        "request": int(identifier.rpartition("-")[2]),
    }
    return UpdateTask(**{**values, **changes})


def online_config(**changes: Any) -> OnlineConfig:
    return OnlineConfig.model_validate({"poll_interval_s": 0.02, "validation": {"enabled": False}, **changes})
