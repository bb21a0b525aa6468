"""The `environment_factory` that stock TRL is measured with: methods as tools around the same environments.

TRL renders the methods' signatures and docstrings as JSON schemas into every prompt, reads calls with the tokenizer's
response template, calls the methods, and generates again until a message calls nothing. The tiny policy's tokenizer has
no template for tools, so it is given one here (Qwen3's form, in the tiny policy's own tokens).

What TRL's loop does not know is handled in its favour. A call that ends the task: `ANSWER` stands among the schemas,
but is read as a closing message, or else each rollout would write one more turn. A text environment: whatever the
policy writes is read as a call of `reply`. A turn that cannot be read ends the rollout, which is TRL's way; in the
other variants the environment answers it.

The tiny policy has never read a schema: with a thousand tokens of them before the question it writes nothing readable.
So while it generates, the schemas are computed as any token but masked out of its attention (`overlook`): it then acts
as in the other variants, at the cost that TRL's prompts have.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_tui.engine.rollouts.runner import Row
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.loading import make_env

from .stock_rollout import carry_out

CHAT_TEMPLATE = """\
{%- if tools -%}
{{ '<|system|># Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' }}
{%- for tool in tools -%}{{ '\n' + tool | tojson }}{%- endfor -%}
{{ '\n</tools><|end|>' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|' + ('user' if message['role'] == 'tool' else message['role']) + '|>' + message['content'] }}
{%- for call in message['tool_calls'] or [] -%}
{{ '{"name": "' + call['function']['name'] + '", "arguments": ' + call['function']['arguments'] | tojson + '}' }}
{%- endfor -%}
{{ '<|end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"""
"""Schemas as Qwen3's template shows them; answers of tools stand where the tiny policy knows observations."""

_CONTENT = {"close": "<|end|>", "content": "text"}
_READ_CALLS = {
    "start_anchor": "<|assistant|>",
    "defaults": {"role": "assistant"},
    "fields": {
        "tool_calls": {
            "open_pattern": r'\{"name": "(?P<name>(?!ANSWER")[^"]*)", "arguments": ',
            "close_pattern": r"\}\s*<\|end\|>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": _CONTENT,
    },
}
_READ_REPLIES = {
    "start_anchor": "<|assistant|>",
    "defaults": {"role": "assistant"},
    "fields": {
        "tool_calls": {
            **_CONTENT,
            "repeats": True,
            "transform": {"type": "function", "function": {"name": "reply", "arguments": {"text": "{content}"}}},
        },
    },
}


@dataclass
class Shared:
    """What all rollouts have in common: the environment, its tasks, and the seconds spent in it."""

    env: Any
    rows: Sequence[Row]
    seconds: float = 0.0


class Rollout:
    """One rollout as TRL sees it: `reset`, and public methods as tools."""

    response_template: dict[str, Any]

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def reset(self, task: int, **_: Any) -> str:
        """Begin a task; the text is put after the prompt's."""
        began = time.perf_counter()
        self._state, messages = self._shared.env.reset(self._shared.rows[task].task_data)
        self._resources: dict[str, tuple[str, ...]] = {}
        self._turns, self._earned = 0, 0.0
        self._shared.seconds += time.perf_counter() - began
        return messages[-1]["content"]

    def _take(self, call: ToolCall) -> str:
        """Carry out a call."""
        began = time.perf_counter()
        result = carry_out(self._shared.env, self._state, self._resources, call)
        self._turns += 1
        self._earned += result.reward + float(bool(result.correct))
        self._shared.seconds += time.perf_counter() - began
        return result.observation

    def _finish(self, messages: list[dict[str, Any]]) -> float:
        """The reward, once the turn that TRL left without an answer is carried out: the last one."""
        if self._turns < sum(m["role"] == "assistant" for m in messages):
            self._take(self._shared.env.parse(self._text(messages[-1])))
        return self._earned

    def _text(self, message: dict[str, Any]) -> str:
        return message["content"]


class VisualRollout(Rollout):
    """The tools of `VisualEnv`, described in its words."""

    response_template = _READ_CALLS

    def SEGMENT_OBJECT_AT(self, x: int, y: int) -> str:
        """Finds the object at a pixel (of the first frame) and makes a mask of it; says the mask's id.

        Args:
            x: pixels from the left
            y: pixels from the top
        """
        return self._take(ToolCall("SEGMENT_OBJECT_AT", {"x": x, "y": y}))

    def GET_PROPERTIES(self, mask: int) -> str:
        """Says a mask's colour, shape, size (diameter of a disc of its area, in pixels) and centre.

        Args:
            mask: id of a mask that SEGMENT_OBJECT_AT made
        """
        return self._take(ToolCall("GET_PROPERTIES", {"mask": mask}))

    def READ_TEXT(self, box: list[int]) -> str:
        """Reads the text in a box.

        Args:
            box: [x0, y0, x1, y1] in pixels
        """
        return self._take(ToolCall("READ_TEXT", {"box": box}))

    def TRACK_OBJECT(self, mask: int) -> str:
        """Follows a masked object through a video; says which way it moves, and where it was.

        Args:
            mask: id of a mask that SEGMENT_OBJECT_AT made
        """
        return self._take(ToolCall("TRACK_OBJECT", {"mask": mask}))

    def ZOOM_IN(self, box: list[int]) -> str:
        """Enlarges a box; says by how much, and at which pixels of the whole picture objects lie in it.

        Args:
            box: [x0, y0, x1, y1] in pixels
        """
        return self._take(ToolCall("ZOOM_IN", {"box": box}))

    def ANSWER(self, text: str) -> str:
        """Ends the task with the answer.

        Args:
            text: the answer
        """
        return self._take(ToolCall("ANSWER", {"text": text}))


class LongRollout(Rollout):
    """The one tool that a text environment can have: saying something."""

    response_template = _READ_REPLIES

    def reply(self, text: str) -> str:
        """Says something and returns the answer to it.

        Args:
            text: what is said
        """
        return self._take(self._shared.env.parse(text))

    def _text(self, message: dict[str, Any]) -> str:
        calls = message.get("tool_calls")
        return calls[0]["function"]["arguments"]["text"] if calls else message["content"]


ROLLOUTS: dict[str, type[Rollout]] = {"default": VisualRollout, "long": LongRollout}


def reward(completions: list[list[dict[str, Any]]], environments: list[Rollout], **_: Any) -> list[float | None]:
    """TRL's contract for reward functions: one number a rollout."""
    return [e._finish(messages) for e, messages in zip(environments, completions, strict=True)]


@dataclass
class Measured:
    """What is counted of each step."""

    steps: list[dict[str, float]] = field(default_factory=list)

    def counts(self) -> dict[str, Any]:
        """Tokens and phases of a step, medians after warming up."""
        medians = {n: median(row[n] for row in self.steps[2:]) for n in self.steps[0]}
        return {"phases": {n: medians.pop(n) for n in ("generate", "environment")}, **medians}


class CountingTrainer(GRPOTrainer):
    """TRL's trainer, with a count of each step's tokens and calls and the time that they took."""

    shared: Shared
    measured: Measured

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.shared.seconds = 0.0
        return super()._generate_and_score_completions(inputs)

    def _generate(self, prompts: list[Any]) -> Any:
        in_resets, began = self.shared.seconds, time.perf_counter()
        out: Any = super()._generate(prompts)
        whole, inside = time.perf_counter() - began, self.shared.seconds - in_resets
        prompt_ids, completion_ids, tool_mask, completions = out[:4]
        in_prompts = sum(map(len, prompt_ids))
        self.measured.steps.append(
            {
                "generate": whole - inside,
                "environment": self.shared.seconds,
                "tokens": in_prompts + sum(map(len, completion_ids)),
                "agent_tokens": sum(map(sum, tool_mask)),
                "prompt_tokens": in_prompts / len(prompts),
                "tool_calls": sum(m["role"] == "tool" for c in completions for m in c) / len(prompts),
            }
        )
        return out


def overlook(model: Any, length: int) -> None:
    """Mask the first `length` tokens of each left-padded row out of attention, whenever `model` generates."""
    generate = model.generate

    def overlooking(*, attention_mask: torch.Tensor, **given: Any) -> Any:
        return generate(attention_mask=attention_mask * (attention_mask.cumsum(1) > length), **given)

    model.generate = overlooking


def build(task: str, model: Any, tokenizer: Any, rows: Sequence[Row], args: Any, config: Any) -> Any:
    """The trainer with an `environment_factory` for `task`, and what it counts.

    A turn's budget is that of the other variants. TRL's budget of a completion covers all turns; the prompt with its
    schemas comes on top.
    """
    from datasets import Dataset

    made = ROLLOUTS[task]
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = made.response_template
    args.generation_kwargs = {"max_new_tokens": config.training.max_turn_tokens}
    args.max_tool_calling_iterations = config.environment.config["max_turns"] - 1  # the first turn is not counted
    shared = Shared(make_env(rows[0].env_class_path, rows[0].env_config, tokenizer), rows)
    CountingTrainer.shared, CountingTrainer.measured = shared, Measured()
    prompt = [{"role": "user", "content": ""}]
    without = len(tokenizer.apply_chat_template(prompt, return_dict=False))
    trainer = CountingTrainer(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt, "task": i} for i in range(len(rows))]),
        processing_class=tokenizer,
        environment_factory=lambda: made(shared),
    )
    tools = trainer._env_tools[None]
    overlook(model, len(tokenizer.apply_chat_template(prompt, tools=tools, return_dict=False)) - without)
    return trainer, CountingTrainer.measured.counts
