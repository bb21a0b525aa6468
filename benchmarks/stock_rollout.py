"""The `rollout_func`s for measuring stock TRL: the same environment, with one `generate` per turn.

`StockRollout` follows TRL's documentation. `TunedRollout` uses the key-value cache and merged adapters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from trl.models.utils import unwrap_model_for_generation

from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.rollouts.runner import Row
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.checks import find_problem
from grpo_tui.envs.live_rollout import LiveRollout
from grpo_tui.envs.loading import make_env


class StockRollout:
    """Runs all live rollouts together, turn by turn: left-pad the conversations so far, generate, let the environment
    answer, append. This follows TRL's documentation for multi-turn rollouts, but with all rollouts in one batch (its
    examples process them one by one, which is slower)."""

    def __init__(self, rows: Sequence[Row], model: Any, tokenizer: Any, config: Any) -> None:
        self.rows = rows
        self.tokenizer = tokenizer
        self.training = config.training
        self.merges = config.model.sft_adapters is None or config.model.weights == "float32"
        self.max_turns = config.environment.config["max_turns"]
        self.env: Any = make_env(rows[0].env_class_path, rows[0].env_config, tokenizer)
        self.env._adapt_to(TransformersAgent(model, tokenizer))  # the policy gets the same prompts as in our trainer
        self.chat = ChatBridge(tokenizer)
        self.measured: list[dict[str, float]] = []

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Return TRL's fields: prompt_ids, completion_ids, logprobs, env_mask, and inputs of the reward function."""
        seconds = {"generate": 0.0, "environment": 0.0}
        began = time.perf_counter()
        tasks = [self.rows[int(p)].task_data for p in prompts]
        self.env.prefetch(tasks)
        states, conversations = [], []
        for task in tasks:
            state, messages, _, _ = self.env._reset(LiveRollout(task))
            states.append(state)
            conversations.append(list(self.chat.prompt(messages, self.env._offered)))
        starts = [len(c) for c in conversations]
        masks: list[list[int]] = [[] for _ in prompts]
        resources: list[dict[str, tuple[str, ...]]] = [{} for _ in prompts]
        earned = [0.0] * len(prompts)
        live = list(range(len(prompts)))
        seconds["environment"] += time.perf_counter() - began
        self.begin(trainer)
        for _ in range(self.max_turns):
            if not live:
                break
            began = time.perf_counter()
            written = self.turn(trainer, live, conversations)
            seconds["generate"] += time.perf_counter() - began
            began = time.perf_counter()
            going_on = []
            for i, ids in zip(live, written, strict=True):
                conversations[i] += ids
                masks[i] += [1] * len(ids)
                call = self.env._read(self.chat.decode(ids))
                result = carry_out(self.env, states[i], resources[i], call)
                earned[i] += result.reward + float(bool(result.correct))
                if result.done:
                    continue
                answer = list(self.chat.bridge(ids[-1] if ids else self.tokenizer.eos_token_id, result.observation))
                if len(conversations[i]) + len(answer) >= self.training.max_trajectory_tokens:
                    continue
                conversations[i] += answer
                masks[i] += [0] * len(answer)
                going_on.append(i)
            live = going_on
            seconds["environment"] += time.perf_counter() - began
        self.end(trainer)
        self.measured.append(
            {
                **seconds,
                "tokens": sum(map(len, conversations)),
                "agent": sum(map(sum, masks)),
                "prompt": sum(starts) / len(starts),
            }
        )
        return {
            "prompt_ids": [c[:n] for c, n in zip(conversations, starts, strict=True)],
            "completion_ids": [c[n:] for c, n in zip(conversations, starts, strict=True)],
            "logprobs": None,
            "env_mask": masks,
            "earned": earned,
        }

    def counts(self) -> dict[str, Any]:
        """Return tokens and phases of a step, medians after warm-up."""
        last = self.measured[2:]
        return {
            "phases": {n: median(row[n] for row in last) for n in ("generate", "environment")},
            "tokens": median(row["tokens"] for row in last),
            "agent_tokens": median(row["agent"] for row in last),
            "prompt_tokens": median(row["prompt"] for row in last),
        }

    def begin(self, trainer: Any) -> None:
        """Prepare for the first turn of a batch."""

    def end(self, trainer: Any) -> None:
        """Clean up after the last turn of a batch."""

    def turn(self, trainer: Any, live: list[int], every: list[list[int]]) -> list[list[int]]:
        """Generate the next turn of the rows `live`. every: the conversations of all rows."""
        conversations = [every[i] for i in live]
        pad = self.tokenizer.pad_token_id
        width = max(map(len, conversations))
        device = trainer.accelerator.device
        ids = torch.tensor([[pad] * (width - len(c)) + c for c in conversations], device=device)
        attention = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in conversations], device=device)
        room = min(self.training.max_turn_tokens, self.training.max_trajectory_tokens - min(map(len, conversations)))
        with (
            unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model,
            torch.no_grad(),
        ):
            model.eval()
            out = model.generate(
                input_ids=ids,
                attention_mask=attention,
                generation_config=trainer.generation_config,
                max_new_tokens=max(room, 1),
                disable_compile=True,
            )
            model.train()
        return written_until_end(out[:, width:].tolist(), trainer)


class TunedRollout(StockRollout):
    """A `StockRollout` that merges adapters into the weights while generating and keeps the key-value cache across
    turns. Ended rows leave the cache.

    It does not merge SFT adapters into half-precision weights, because rounding loses most of their effect and the
    policy fails tasks that it solved."""

    def begin(self, trainer: Any) -> None:
        """Merge the adapters and clear the last batch."""
        self.model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        if self.merges:
            self.model.merge_adapter()
        self.model.eval()
        self.cache: Any = None
        self.rows_in_cache: list[int] = []

    def end(self, trainer: Any) -> None:
        """Unmerge the adapters, which train apart from the weights."""
        self.cache = None
        if self.merges:
            self.model.unmerge_adapter()
        self.model.train()

    def turn(self, trainer: Any, live: list[int], every: list[list[int]]) -> list[list[int]]:
        """Process only the tokens since the last turn. Rows that were shorter have holes in the mask."""
        device, pad = trainer.accelerator.device, self.tokenizer.pad_token_id
        if self.cache is None:
            new = [every[i] for i in live]
        else:
            kept = torch.tensor([self.rows_in_cache.index(i) for i in live], device=device)
            self.cache.batch_select_indices(kept)
            self.ids, self.mask = self.ids[kept], self.mask[kept]
            new = [every[i][known:] for i, known in zip(live, self.mask.sum(1).tolist(), strict=True)]
        width = max(map(len, new))
        ids = torch.tensor([[pad] * (width - len(n)) + n for n in new], device=device)
        mask = torch.tensor([[0] * (width - len(n)) + [1] * len(n) for n in new], device=device)
        if self.cache is not None:
            ids, mask = torch.cat([self.ids, ids], dim=1), torch.cat([self.mask, mask], dim=1)
        room = min(
            self.training.max_turn_tokens, self.training.max_trajectory_tokens - min(len(every[i]) for i in live)
        )
        with torch.no_grad():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=self.cache,
                generation_config=trainer.generation_config,
                max_new_tokens=max(room, 1),
                return_dict_in_generate=True,
                disable_compile=True,
            )
        written = written_until_end(out.sequences[:, ids.shape[1] :].tolist(), trainer)
        length = out.sequences.shape[1] - ids.shape[1]
        written_mask = [[1] * len(w) + [0] * (length - len(w)) for w in written]
        self.ids, self.cache, self.rows_in_cache = out.sequences, out.past_key_values, list(live)
        self.mask = torch.cat([mask, torch.tensor(written_mask, device=device)], dim=1)
        return written


def written_until_end(rows: list[list[int]], trainer: Any) -> list[list[int]]:
    """Cut each row after its first end token."""
    stop = set(trainer.eos_token_ids)
    return [row[: next((i + 1 for i, token in enumerate(row) if token in stop), len(row))] for row in rows]


def carry_out(env: Any, state: Any, resources: dict[str, tuple[str, ...]], call: ToolCall) -> StepResult:
    """Execute a call with the same checks as in a batched trial. Updates `resources`."""
    context = env.context(state)
    merged = {k: (*context.resources.get(k, ()), *v) for k, v in resources.items()}
    context = replace(context, resources={**context.resources, **merged})
    problem = find_problem(call, env.tools, context) if env.tools else call.error
    if problem is not None:
        return StepResult(f"error: {problem}", error=problem)
    result = env.step(state, call)
    for kind, ids in result.produced.items():
        resources[kind] = (*resources.get(kind, ()), *map(str, ids))
    return result
