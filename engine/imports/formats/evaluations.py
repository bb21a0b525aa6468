"""Evaluation results and preference pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ..format import Documents, Origin
from ..mapped import Mapped, plain
from ..messages import completion, conversation
from ..rollout import Item, Message, Rollout, Score
from ..values import Document, listed, number, objects, text
from .tables import GENERIC


def _call_ids(messages: object) -> tuple[Message, ...]:
    """Read tau2 messages. The id of a tool message is the id of the call that it answers."""
    items = objects(messages)
    return conversation([{**m, "tool_call_id": m.get("id")} if m.get("role") == "tool" else m for m in items])


TAU = Mapped(
    name="tau-bench results",
    needs=("task_id", "reward", "traj"),
    keys={
        "messages": ("traj",),
        "prompt_id": ("task_id",),
        "group": ("task_id",),
        "index": ("trial",),
        "reward": ("reward",),
        "error": ("info.error",),
        "task": ("info.task",),
        "extra": ("info.reward_info.info",),
    },
    ignored=("info",),
    split="eval",
    unknown={"components": "one reward, no components", "tokens": "token ids are not written"},
)

TAU2 = Mapped(
    name="tau2-bench simulations",
    rows=("simulations",),
    needs=("task_id", "termination_reason", "messages"),
    keys={
        "id": ("id",),
        "messages": ("messages",),
        "prompt_id": ("task_id",),
        "group": ("task_id",),
        "index": ("trial",),
        "reward": ("reward_info.reward",),
        "components": ("reward_info.reward_breakdown",),
        "stop": ("termination_reason",),
        "seconds": ("duration",),
        "env": ("^.info.environment_info.domain_name",),
        "model": ("^.info.agent_info.llm",),
    },
    ignored=("reward_info", "start_time", "end_time", "timestamp"),
    read_prompt=_call_ids,
    split="eval",
    unknown={"weight": "the reward is the product of its components, which have no weights"},
)


TERMINAL_BENCH = Mapped(
    name="terminal-bench results",
    rows=("results",),
    needs=("task_id", "is_resolved", "trial_name"),
    keys={
        "id": ("trial_name",),
        "prompt": ("instruction",),
        "prompt_id": ("task_id",),
        "group": ("task_id",),
        "correct": ("is_resolved",),
        "stop": ("failure_mode",),
        "extra": ("parser_results",),
    },
    ignored=("id",),
    finish=lambda rollout, document, origin: replace(rollout, same_as_id=True),  # also in its trial's folder
    split="eval",
    unknown={"turns": "the results hold no turns: they are in the logs of the agent"},
)


def _of_harness(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    """Add the metrics of one filter. Choices scored by likelihood are not an answer of the model."""
    answers = [r for each in listed(document["resps"]) for r in (each if isinstance(each, list) else [each])]
    wrote = [r for r in answers if isinstance(r, str)]
    filter_ = text(document.get("filter")) or "none"
    names = [str(n) for n in listed(document.get("metrics"))] or [
        k for k, v in document.items() if k not in _HARNESS and number(v) is not None
    ]
    values = {n: Score(number(document.get(n))) for n in names}
    components = values if filter_ == "none" else {f"{n},{filter_}": s for n, s in values.items()}
    verdict = next((values[n].value for n in ("exact_match", "acc") if n in values), None)
    extra = {k: v for k, v in rollout.extra.items() if k not in names}
    prompt = rollout.prompt or conversation(next((a[0] for a in listed(document["arguments"]) if listed(a)), None))
    task = _TASK.sub("", origin.path.name)
    return replace(
        rollout,
        prompt_id=f"{task}:{rollout.prompt_id}",
        group=f"{task}:{rollout.prompt_id}",
        env=task,
        prompt=prompt,
        completion=tuple(m for r in wrote[:1] for m in completion(r)),
        answer=text(next((r for r in listed(document.get("filtered_resps")) if isinstance(r, str)), None)),
        components=components,
        correct=bool(verdict) if verdict in (0, 1) else None,
        extra={**extra, **({"responses": len(wrote)} if len(wrote) > 1 else {})},
        same_as_id=True,
    )


_TASK = re.compile(r"\Asamples_|_\d{4}-\d\d-\d\dT.*|\.jsonl.*")
"""The parts of a file's name besides the task, which samples do not name."""
_HARNESS = ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "doc_hash", "prompt_hash", "target_hash")
HARNESS = Mapped(
    name="lm-eval-harness samples",
    needs=("doc_id", "arguments", "resps"),
    keys={
        "id": ("doc_hash",),
        "prompt_id": ("doc_id",),
        "prompt": ("arguments.gen_args_0.arg_0",),
        "expected": ("target",),
        "task": ("doc",),
    },
    ignored=(*_HARNESS, "filter", "metrics"),
    finish=_of_harness,
    split="eval",
    unknown={"reward": "metrics are written, and no total", "error": "errors are not written"},
)


def _of_promptfoo(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    """Keep the error only if the call failed, because promptfoo also writes reasons of failed assertions there."""
    failed = document.get("failureReason") != 1 and rollout.error
    seconds = number(document.get("latencyMs"))
    extra = rollout.extra if failed or not rollout.error else {**rollout.extra, "reason": rollout.error[:400]}
    return replace(rollout, error=failed or None, seconds=(seconds or 0.0) / 1000, extra=extra)


PROMPTFOO = Mapped(
    name="promptfoo results",
    rows=("results.results", "results"),
    needs=("promptIdx", "testIdx", "success"),
    keys={
        "id": ("id",),
        "prompt": ("prompt.raw",),
        "completion": ("response.output",),
        "reward": ("score",),
        "components": ("namedScores",),
        "correct": ("success",),
        "error": ("error", "response.error"),
        "model": ("provider.id",),
        "group": ("testIdx",),
        "prompt_id": ("testIdx",),
        "index": ("promptIdx",),
        "stop": ("response.finishReason",),
        "token_count": ("response.tokenUsage.total",),
        "extra": ("vars", "metadata"),
    },
    ignored=("testCase", "gradingResult", "promptId", "tokenUsage", "latencyMs", "failureReason", "evalId"),
    finish=_of_promptfoo,
    split="eval",
)


_SIDES = ("chosen", "rejected")
_OF_OPENAI = {"preferred_output": "chosen", "non_preferred_output": "rejected"}
_SCORE = re.compile("score|reward|rating")
_HH = re.compile(r"\n\n(Human|Assistant):")


def _pair(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield the chosen and then the rejected answer as the rollouts of one group."""
    document = {_OF_OPENAI.get(key, key): value for key, value in document.items()}
    sides = {k: v for k, v in document.items() if any(side in k for side in _SIDES)}
    base = GENERIC.rollout({**{k: v for k, v in document.items() if k not in sides}, "completion": ""}, origin)
    dialogues = [_dialogue(document[side]) for side in _SIDES]
    shared = len(base.prompt) if all(t[: len(base.prompt)] == base.prompt for t in dialogues) else 0
    if not base.prompt:  # both answers repeat the prompt
        pairs = enumerate(zip(*(t[:-1] for t in dialogues), strict=False))
        shared = next((i for i, (one, other) in pairs if one != other), min(len(t) - 1 for t in dialogues))
    prompt = base.prompt or dialogues[0][:shared]
    for index, (side, dialogue) in enumerate(zip(_SIDES, dialogues, strict=True)):
        own = {k: v for k, v in sides.items() if side in k and k != side}
        value = next((n for k, v in own.items() if _SCORE.search(k) and (n := number(v)) is not None), None)
        yield replace(
            base,
            prompt=prompt,
            completion=dialogue[shared:],
            index=index,
            reward=value,
            model=next((text(v) or "" for k, v in own.items() if "model" in k), base.model),
            extra={**base.extra, **plain(own), "pair": side},
        )


def _dialogue(value: object) -> tuple[Message, ...]:
    """Read an answer or a conversation that ends with it, possibly as text with `Human:` and `Assistant:`."""
    if not isinstance(value, str) or not _HH.match(value):
        return completion(value)
    _, *parts = _HH.split(value)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return tuple(Message("user" if speaker == "Human" else "assistant", words.strip()) for speaker, words in pairs)


PAIRS = Documents(
    "preference pairs",
    _pair,
    when=lambda document, _: any(
        all(document.get(side) is not None for side in sides) for sides in (_SIDES, _OF_OPENAI)
    ),
    unknown={
        "reward": "pairs mark the better answer; most contain no reward",
        "group": "each pair is shown as a group",
    },
)
