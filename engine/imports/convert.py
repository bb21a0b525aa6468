"""Convert a rollout of a dump into the rows and bodies of the record."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace

from ...envs.tools import ToolSpec, tool_of_schema
from ...envs.trajectory import Call, PromptMessage, Step, Trajectory
from ...rewards.breakdown import ComponentValue, RewardBreakdown, StepReward
from ..runs.columns import Flag, Listed
from ..runs.types import TEXT, Split, TrajectoryRecord
from .format import NOT_WRITTEN
from .messages import split
from .rollout import Message, Rollout
from .values import Document, listed, mapping, text

_JUDGE = re.compile(r"(?:\A|[\W_])(?:judge|grader|scorer|critic|reward[ _-]?model)s?[\W_]?\d*\Z", re.I)
"""Names of agents that judge rollouts. Their own rollouts do not come from the policy."""
CLOSE = 1e-4
"""Relative tolerance between a sum and the stated reward, because writers keep float32."""


def identity(rollout: Rollout, scope: str = "", fallback_id: str = "?") -> tuple[str, str]:
    """Return the prompt id and the group of a rollout.

    If the writer names none, equal prompts share an id, and the rollouts of one prompt in one step form a group. Groups
    named by a number are separate for each step and split, because writers count from 0 in each. `scope` separates the
    groups of different writers. A rollout without prompt, group and id uses `fallback_id`.
    """
    prompt_id = rollout.prompt_id
    if not prompt_id:
        digest = hashlib.blake2b(digest_size=6)
        # earlier messages of the agent belong to this rollout, not to the shared prompt
        for message in itertools.takewhile(lambda m: not m.is_agent, rollout.prompt):
            digest.update(f"{message.role}\0{message.text}\0".encode("utf-8", "surrogatepass"))
        prompt_id = digest.hexdigest() if rollout.prompt else (rollout.id or fallback_id)
    group = rollout.group
    if not group or (group.isdecimal() and rollout.step is not None):
        group = group or (f"{prompt_id}:{rollout.agent}" if rollout.agent else prompt_id)
        group = group if rollout.step is None else f"{rollout.step}:{group}"
    if rollout.split and rollout.split != "train" and (not rollout.group or rollout.group.isdecimal()):
        group = f"{rollout.split}:{group}"
    if split_of(rollout) == Split.JUDGE:
        group = f"{rollout.agent}:{group}"
    return prompt_id, f"{scope}:{group}" if scope else group


def with_turns_of_prompt(rollout: Rollout) -> Rollout:
    """Return a later step of a rollout with the earlier turns moved from its prompt into its completion."""
    prompt, completion = split((*rollout.prompt, *rollout.completion))
    return replace(rollout, prompt=prompt, completion=completion)


def is_judge(agent: str) -> bool:
    """Return whether an agent's name names a judge."""
    return bool(_JUDGE.search(agent))


def record_of(rollout: Rollout, *, fallback_id: str, index: int, unknown: Mapping[str, str]) -> TrajectoryRecord:
    """Return the record for stepper, comparison and export. `unknown`: the format's reasons for missing values."""
    prompt_id, group = identity(rollout, fallback_id=fallback_id)
    more, completion = split(rollout.completion)
    prompt = (*rollout.prompt, *more)
    steps = _turns(completion)
    breakdown, reasons = _breakdown(rollout, len(steps))
    missing = {k: v for k, v in {**NOT_WRITTEN, **unknown, **rollout.unknown}.items() if lacks(rollout, k)}
    trajectory = Trajectory(
        id=rollout.id or fallback_id,
        env=rollout.env,
        prompt_id=prompt_id,
        group=group,
        rollout=rollout.index if rollout.index is not None else index,
        prompt=prompt_text(prompt),
        steps=steps,
        task=rollout.task,
        tools=_tools(rollout),
        answer=rollout.answer,
        expected=rollout.expected,
        correct=rollout.correct,
        env_reward=rollout.reward,
        stop_reason=_stop(rollout),
        error=rollout.error,
        seconds=rollout.seconds,
        messages=tuple(PromptMessage(m.role, shown(m), m.name) for m in prompt),
        agent=rollout.agent,
        extra=rollout.extra,
        meta={"model": rollout.model} if rollout.model else {},
    )
    return TrajectoryRecord(
        trajectory=trajectory,
        breakdown=breakdown,
        advantage=rollout.advantage,
        step_advantages=_step_advantages(completion),
        policy_version=rollout.policy_version,
        split=split_of(rollout),
        token_count=rollout.token_count,
        unknown={**missing, **reasons},
    )


def listed_of(rollout: Rollout, ids: tuple[str, str], *, fallback_id: str, index: int) -> Listed:
    """Return the row of a rollout: the same values as `record_of` at a third of the cost. `ids`: its `identity`."""
    more, completion = split(rollout.completion)
    turns = [message for message in completion if message.is_agent]
    flags = 0
    if rollout.error or any(m.error for m in completion) or any(call.error for m in turns for call in m.calls):
        flags |= Flag.ERROR
    if any(m.calls and m.calls[0].problem is not None for m in turns):
        flags |= Flag.UNPARSED
    numbers = (rollout.reward, rollout.advantage, *_step_advantages(completion))
    if not all(value is None or math.isfinite(value) for value in numbers):
        flags |= Flag.NAN
    answer = rollout.answer
    if answer is None:
        flags |= Flag.UNANSWERED
        answer = shown(turns[-1]) if turns and not any(m.calls for m in turns) else None
    return Listed(
        id=rollout.id or fallback_id,
        group=ids[1],
        prompt_id=ids[0],
        head=prompt_text((*rollout.prompt, *more)),
        values={
            "step": rollout.step,
            "reward": rollout.reward,
            "correct": rollout.correct,
            "advantage": rollout.advantage,
            "turns": len(turns),
            "tokens": rollout.token_count,
            "flags": int(flags),
            "env": rollout.env,
            "split": split_of(rollout),
            "stop": _stop(rollout),
            "rollout": rollout.index if rollout.index is not None else index,
            "version": rollout.policy_version,
        },
        labels=[label for m in turns for label in ([call.name for call in m.calls] or [TEXT])],
        answer=answer,
        rules=[p.rule for p in rollout.breakdown.penalties] if rollout.breakdown is not None else (),
        tools=_tools(rollout),
        extra=columns(rollout),
    )


def _step_advantages(completion: Sequence[Message]) -> tuple[float, ...]:
    advantages = [m.advantage for m in completion if m.is_agent]
    return () if None in advantages else tuple(a for a in advantages if a is not None)


def prompt_text(prompt: Sequence[Message]) -> str:
    """Return the messages of a prompt as one text."""
    return "\n\n".join([shown(m) if m.role == "user" else f"[{m.role}] {shown(m)}" for m in prompt])


def shown(message: Message) -> str:
    """Return the text of a message, or its calls in one line each."""
    return message.text or "\n".join(map(call_text, message.calls))


def columns(rollout: Rollout) -> dict[str, object]:
    """Return the writer's columns, and the components as `component.<name>`."""
    return {
        **rollout.extra,
        **({"agent": rollout.agent} if rollout.agent else {}),
        **{f"component.{name}": score.value for name, score in rollout.components.items()},
    }


def lacks(rollout: Rollout, what: str) -> bool:
    """Return whether a rollout lacks a value. Names that are not values of a rollout (`steps`, `turns`) count too."""
    if what == "weight":
        return bool(rollout.components) and all(s.weight is None for s in rollout.components.values())
    value = getattr(rollout, what, None)
    return value is None or (isinstance(value, Sized) and not value)


def _stop(rollout: Rollout) -> str:
    return rollout.stop or ("error" if rollout.error else "")


def split_of(rollout: Rollout) -> str:
    """Return the split of a rollout, `train` if its writer names none."""
    return Split.JUDGE if is_judge(rollout.agent) else rollout.split or Split.TRAIN


_declared: tuple[tuple[Document, ...], tuple[ToolSpec, ...]] = (), ()
"""The tools of the last rollout, which the next one mostly shares."""


def _tools(rollout: Rollout) -> tuple[ToolSpec, ...]:
    global _declared
    known = _declared  # another thread may replace it
    if rollout.tools != known[0]:
        _declared = known = rollout.tools, tuple(_tool(mapping(t.get("function")) or t) for t in rollout.tools)
    return known[1]


def _tool(declared: Document) -> ToolSpec:
    schema = next((s for key in ("parameters", "input_schema") if (s := mapping(declared.get(key)))), {})
    arguments = {**schema, "required": listed(schema.get("required"))}
    found = tool_of_schema(str(declared.get("name") or "?"), None, arguments)
    return replace(found, description=text(declared.get("description")) or "")


def _turns(messages: Sequence[Message]) -> tuple[Step, ...]:
    """Return one step per message of the policy, with the answers that follow it."""
    starts = [i for i, m in enumerate(messages) if m.is_agent]
    ends = [*starts[1:], len(messages)] if starts else []
    return tuple(
        _step(index, messages[start], messages[start + 1 : end])
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


def _step(index: int, turn: Message, answers: Sequence[Message]) -> Step:
    calls, others = _answered(turn.calls, answers)
    first = calls[0] if calls else None
    problem = first.problem if first is not None else None
    errors = [e for e in (turn.error, *(c.error for c in calls), *(a.error for a in others)) if e]
    observation = [c.result for c in calls if c.result is not None] + [shown(a) for a in others]
    return Step(
        index=index,
        text=shown(turn),
        thought=turn.thought,
        action=first.name if first is not None else None,
        arguments=first.arguments if first is not None and isinstance(first.arguments, Mapping) else {},
        parse_error=problem,
        observation="\n\n".join(observation),
        reward=turn.reward,
        error="; ".join(errors) or None,
        stop_reason=turn.stop,
        seconds=turn.seconds,
        calls=calls,
        needs_call=False,
        display=tuple(view for message in (turn, *answers) for view in message.display),
    )


def _answered(calls: Sequence[Call], answers: Sequence[Message]) -> tuple[tuple[Call, ...], list[Message]]:
    """Match results to calls by id, else in order. Return the calls, and the messages that match no call."""
    open_calls = list(calls)
    others: list[Message] = []
    for answer in answers:
        index = None
        if answer.role == "tool" or answer.call_id:
            by_id = [i for i, c in enumerate(open_calls) if answer.call_id and c.id == answer.call_id]
            free = [i for i, c in enumerate(open_calls) if c.result is None and not (c.id and answer.call_id)]
            index = next(iter(by_id or free), None)
        if index is None:
            others.append(answer)
            continue
        call = open_calls[index]
        joined = answer.text if call.result is None else f"{call.result}\n{answer.text}"
        open_calls[index] = replace(call, result=joined, error=answer.error or call.error)
    return tuple(open_calls), others


def call_text(call: Call) -> str:
    """Format a call as the one line that a turn without text shows."""
    arguments = call.arguments if call.problem else text(call.arguments) if call.arguments is not None else ""
    return f"{call.name}({arguments})"


def _breakdown(rollout: Rollout, turns: int) -> tuple[RewardBreakdown | None, dict[str, str]]:
    """Return the reward breakdown if it is known, and sentences about missing parts and wrong sums.

    Components belong to the whole rollout and appear at its last turn.
    """
    if rollout.breakdown is not None:
        return rollout.breakdown, {}
    by_turn = [m.reward for m in rollout.completion if m.is_agent]
    known_turns = any(r is not None for r in by_turn)
    if rollout.reward is None and not rollout.components and not known_turns:
        return None, {}
    values: dict[str, ComponentValue] = {}
    for name, score in rollout.components.items():
        contribution = None if score.value is None or score.weight is None else score.value * score.weight
        values[name] = ComponentValue(score.value, score.value, score.weight, contribution)
    reasons = _checked(rollout.reward, values)
    last = max(0, turns - 1)
    if known_turns:
        steps = tuple(StepReward(i, values if i == last else {}, (), r) for i, r in enumerate(by_turn))
        known = [r for r in by_turn if r is not None]
        if rollout.reward is not None and len(known) == len(by_turn) and not _same(sum(known), rollout.reward):
            reasons["turns"] = (
                f"the rewards of the turns add up to {sum(known):.6g}, but the stated reward is {rollout.reward:.6g}"
            )
    else:
        steps = (StepReward(last, values, (), rollout.reward),)
    return RewardBreakdown(rollout.id, steps, rollout.reward), reasons


def _checked(reward: float | None, values: Mapping[str, ComponentValue]) -> dict[str, str]:
    known = [v.contribution for v in values.values() if v.contribution is not None]
    reasons = {}
    if missing := [name for name, v in values.items() if v.raw is None]:
        reasons["missing"] = f"not recorded for this rollout: {', '.join(missing)}"
    if reward is None or not known:
        return reasons
    if len(known) < len(values):
        reasons["sum"] = f"the known components × weights give {sum(known):.6g} of the stated reward {reward:.6g}"
    elif not _same(sum(known), reward):
        reasons["sum"] = f"components × weights give {sum(known):.6g}, but the stated reward is {reward:.6g}"
    return reasons


def _same(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE)
