"""Formats that differ only in their key names, defined as tables."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ..convert import with_turns_of_prompt
from ..format import Origin
from ..mapped import WORDS, Mapped, at
from ..messages import conversation, error_text
from ..rollout import Message, Rollout
from ..templates import stripped_completion, stripped_prompt
from ..tokens import tokens_of_calls
from ..values import Document, listed, objects

_VERL_UID = re.compile(r"(.+)_(\d+)_(\d+)")
"""The group's uid, the rollout and the turn, as verl's v1 trainer writes them. Older trainers write the group's uid."""


def _whole_conversation(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    """Merge the rows of a verl agent loop into one rollout. Each row holds the conversation so far."""
    found = _VERL_UID.fullmatch(rollout.group)
    if found is None:
        return rollout
    group, index, turn = found.groups()
    rollout = with_turns_of_prompt(rollout) if int(turn) else rollout
    id_ = rollout.id or f"{document.get('step')}:{rollout.split}:{group}_{index}"
    return replace(rollout, group=group, index=int(index), id=id_, grows=True)


VERL = Mapped(
    finish=_whole_conversation,
    name="verl rollouts",
    needs=("input", "output", "score"),
    keys={
        "prompt": ("input",),
        "completion": ("output",),
        "reward": ("score", "reward"),
        "expected": ("gts",),
        "step": ("step",),
        "group": ("uid",),
        "id": ("request_id",),
        "correct": ("acc",),
        "answer": ("pred",),
        "advantage": ("advantage", "advantages"),
    },
    numbers="component",
    read_prompt=lambda value: stripped_prompt(value) if isinstance(value, str) else conversation(value),
    read_completion=lambda value: stripped_completion(value) if isinstance(value, str) else conversation(value),
    unknown={
        "weight": "weights are not written, and the extras of a reward may not be parts of the score",
        "tokens": "token ids are not written, only text",
        "error": "errors are not written",
    },
)

SKYRL = Mapped(
    name="SkyRL evaluation",
    needs=("input_prompt", "output_response", "score"),
    keys={
        "prompt": ("input_prompt",),
        "completion": ("output_response",),
        "reward": ("score",),
        "stop": ("stop_reason",),
        "env": ("data_source", "env_class"),
        "expected": ("env_extras.reward_spec.ground_truth", "env_extras.reward_model.ground_truth"),
        "extra": ("env_extras.extra_info",),
        "task": ("env_extras",),
    },
    by_token=True,
    unknown={"components": "one score, no components", "tokens": "token ids are not written, only text"},
)

AREAL = Mapped(
    name="AReaL rollouts",
    needs=("task_id", "completion", "seqlen", "head_version"),
    keys={
        "prompt": ("prompt",),
        "completion": ("completion",),
        "reward": ("reward",),
        "group": ("task_id",),
        "index": ("sample_idx",),
        "policy_version": ("tail_version",),
        "token_count": ("seqlen",),
        "extra": (),
    },
    ignored=("task_id",),
    unknown={
        "components": "one reward, no components",
        "step": "the writer names a version of the policy, and no step",
        "split": "prompt and completion are cut at `prompt_len` tokens, which is wrong if observations are masked",
    },
)

AGENTLIGHTNING = Mapped(
    name="agentlightning trajectories",
    needs=("rollout_id", "reward", "prompt", "response"),
    keys={"id": ("rollout_id",), "prompt": ("prompt",), "completion": ("response",), "reward": ("reward",)},
    unknown={
        "turns": "only the last turn is written: earlier ones are part of the prompt",
        "components": "one reward, no components",
    },
)


def _failed_tools(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    """Add tool errors, which OpenEnv lists in the order of the results."""
    trace = objects(document.get("tool_trace"))
    errors = [error_text(at(t, "result.error")) for t in trace]
    if len(errors) != sum(m.role == "tool" for m in rollout.completion):
        return rollout
    remaining = iter(errors)
    messages = (replace(m, error=next(remaining) or m.error) if m.role == "tool" else m for m in rollout.completion)
    return replace(rollout, completion=tuple(messages))


OPENENV = Mapped(
    name="OpenEnv episodes",
    needs=("episode_id", "messages"),
    keys={
        "id": ("episode_id",),
        "messages": ("messages",),
        "reward": ("reward",),
        "components": ("verify_metrics",),
        "stop": ("metrics.terminal_reason",),
        "expected": ("task.answer",),
        "prompt_id": ("task.id", "task_id"),
        "error": ("error", "metrics.error"),
        "step": ("extra.step", "metrics.step"),
        "group": ("extra.group", "extra.group_id"),
        "extra": ("extra",),
        "task": ("task",),
        "env": ("env",),
    },
    ignored=("tool_trace", "artifacts", "done"),
    finish=_failed_tools,
)


_SYSTEM = ("system", "system_prompt", "instructions", "systemInstruction", "system_instruction")
_KEYS: dict[str, tuple[str, ...]] = {
    "id": ("id", "rollout_id", "trajectory_id", "sample_id", "request_id", "key", "recordId"),
    "group": ("group", "group_id", "group_uid", "group_index", "uid", "prompt_group", "metadata.group"),
    "prompt_id": ("prompt_id", "example_id", "task_id", "problem_id", "metadata.task"),
    "index": ("rollout", "rollout_index", "sample_idx", "sample_index", "completion_index"),
    "step": ("step", "global_step", "training_step", "iteration", "metadata.step", "info.step"),
    "prompt": (
        "prompt", "input", "question", "query", "instruction", "problem", "prompt_text", "user_input", "request",
        "inputs", "modelInput", "sample.input", "model_response.input", "doc.query",
    ),
    "completion": (
        "completion", "response", "output", "generation", "completion_text", "generated_text", "result.message",
        "actual_output", "modelOutput", "outputs", "sample.output", "model_response.text", "model_response",
        "model_output", "llm_response",
    ),
    "system": (
        *_SYSTEM, *(f"{request}.{key}" for request in ("request", "modelInput", "inputs") for key in _SYSTEM),
    ),
    "messages": ("messages", "conversations", "conversation", "messages_and_choices", "trajectory", "chat", "contents"),
    "reward": ("reward", "score", "rewards", "total_reward", "return"),
    "advantage": ("advantage", "advantages"),
    "expected": (
        "answer", "ground_truth", "gts", "target", "solution", "label", "reference", "expected", "expected_output",
        "reference_answer", "reference_outputs", "gold", "gold_answer",
    ),
    "answer": ("pred", "prediction", "extracted", "extracted_answer", "model_answer", "pred_answer"),
    "correct": ("correct", "is_correct", "acc", "success", "passed"),
    "error": ("error", "exception", "error_message", "error_str", "result.error"),
    "stop": (
        "stop_reason", "finish_reason", "stop_condition", "termination_reason", "incomplete_details.reason",
        "result.message.stop_reason", "stop",
    ),
    "env": ("env", "environment", "env_id", "data_source", "dataset", "source", "doc.task_name"),
    "agent": ("agent", "agent_name"),
    "model": ("model", "model_name", "response.body.model", "result.message.model", "generator"),
    "split": ("split",),
    "policy_version": ("policy_version", "weight_version", "version"),
    "token_count": (
        "num_tokens", "n_tokens", "token_count", "total_tokens", "usage.total_tokens", "response.usage.total_tokens",
        "response.usageMetadata.totalTokenCount",
    ),
    "tools": ("tools", "tool_defs", "request.tools", "model_parameters.tools"),
    "components": (
        "components", "reward_components", "rewards_dict", "scores", "reward_breakdown", "metrics_data", "results",
    ),
    "extra": ("metadata", "info", "extra", "extra_info", "metrics", "doc"),
}  # fmt: skip
_CUT = (True, "true", "True")
ROLES = (*_KEYS, "seconds", "task")
"""Roles that the command line can map to keys (`--map reward=score`)."""


PROMPT_IDS = ("prompt_ids", "prompt_token_ids", "input_ids", "prompt")
COMPLETION_IDS = (
    "completion_ids", "completion_token_ids", "completion_id", "response_ids", "response_token_ids", "output_ids",
    "output_token_ids", "completion", "response", "output",
)  # fmt: skip
_LOGPROBS = ("logprobs", "completion_logprobs", "response_logprobs", "old_per_token_logps", "logps")


def token_ids(document: Document) -> list[list[Any]]:
    """Return the token ids of prompt and completion, and the log-probs; empty lists for those that are missing."""
    kinds = ((PROMPT_IDS, int), (COMPLETION_IDS, int), (_LOGPROBS, int | float))
    lists = (([v for k in names if isinstance(v := document.get(k), list) and v], kind) for names, kind in kinds)
    return [next((v for v in found if isinstance(v[0], kind)), []) for found, kind in lists]


def _with_ids(rollout: Rollout, document: Document) -> Rollout:
    """Add token ids. Without texts, show each token by its id, as in a record without a vocabulary."""
    read, wrote, logprobs = token_ids(document)
    if not (read and wrote):
        return rollout
    if _has_only_ids(document):
        asked, said = ("".join(f"<{i}>" for i in ids) for ids in (read, wrote))
        rollout = replace(rollout, prompt=(Message("user", asked),), completion=(Message("assistant", said),))
    return replace(
        rollout,
        tokens=tokens_of_calls([(read, wrote, logprobs)]),
        token_count=rollout.token_count or len(read) + len(wrote),
        extra={k: v for k, v in rollout.extra.items() if k not in (*PROMPT_IDS, *COMPLETION_IDS, *_LOGPROBS)},
    )


def _finished(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    """Add token ids, the mark of a cut text, the instruction and earlier turns before an input (Alpaca), and a verdict
    as `label` (KTO)."""
    rollout = _with_ids(rollout, document)
    label = str(document.get("label", document.get("kto_tag")))
    judged = rollout.components or (rollout.reward, rollout.correct, rollout.answer) != (None, None, None)
    if label.lower() in WORDS and not judged and any(m.text for m in rollout.completion):
        expected = None if rollout.expected == label else rollout.expected
        rollout = replace(rollout, correct=WORDS[label.lower()], expected=expected)
    if document.get("truncated") in _CUT or document.get("is_truncated") in _CUT:
        rollout = replace(rollout, stop=rollout.stop or "truncated")
    rule, input_ = document.get("instruction"), document.get("input")
    *before, last = rollout.prompt or (None,)
    if not (isinstance(rule, str) and isinstance(input_, str) and rule and last == Message("user", input_)):
        return rollout
    pairs = [pair for pair in listed(document.get("history")) if isinstance(pair, list) and len(pair) == 2]
    turns = [
        Message(role, str(words)) for pair in pairs for role, words in zip(("user", "assistant"), pair, strict=True)
    ]
    asked = Message("user", f"{rule}\n\n{input_}" if input_ else rule)
    extra = {k: v for k, v in rollout.extra.items() if k != "instruction"}
    return replace(rollout, prompt=(*before, *turns, asked), extra=extra)


GENERIC = Mapped(
    finish=_finished,
    name="rollouts in JSON",
    keys=_KEYS,
    prefixes=("reward_", "reward/", "rewards/", "reward.", "component."),
    ignored=("parallel_tool_calls", "type"),
    unknown={
        "reward": "no reward was found in it (--map reward=KEY names one)",
        "advantage": "no advantage was found in it (--map advantage=KEY names one)",
        "step": "no training step was found in it (--map step=KEY names one)",
    },
)


def _has_only_ids(document: Document) -> bool:
    read, wrote, _ = token_ids(document)
    said = GENERIC.first(document, "completion")
    return bool(read and wrote) and said in (None, wrote) and GENERIC.first(document, "messages") is None


TOKEN_IDS = replace(
    GENERIC,
    name="token ids",
    when=_has_only_ids,
    unknown={**GENERIC.unknown, "text": "only token ids are written: write the decoded prompt and completion, too"},
)
"""Rollouts without texts."""
