"""One trajectory as text: what was done, the reward's arithmetic, and each penalty explained."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ...engine.runs.types import Step, StepReward, TrajectoryRecord
from ..format import mark, number
from ..text import wrap

WIDTH = 110


def trajectory_lines(record: TrajectoryRecord) -> Iterator[str]:
    """The lines; nothing in them is markup or a control character."""
    t = record.trajectory
    yield from _block("", f"{t.id}  {t.env}  group {t.group}  rollout {t.rollout}  {record.split}")
    yield from _block("prompt   ", t.prompt)
    rewards = {s.step: s for s in record.breakdown.steps} if record.breakdown is not None else {}
    for position, step in enumerate(t.steps):
        call = f"{step.action}({json.dumps(dict(step.arguments), ensure_ascii=False, default=str)})"
        yield ""
        yield f"step {step.index}"
        yield from _block("  wrote  ", step.text)
        if step.calls:
            yield from _calls(step)
        elif step.action or step.needs_call or step.parse_error:
            yield from _block("  call   ", call if step.action else f"none: {step.parse_error or 'no call was found'}")
        if step.error:
            yield from _block("  error  ", step.error)
        if step.observation and not any(c.result for c in step.calls):
            yield from _block("  saw    ", step.observation)
        if step.index in rewards:
            yield from _reward(rewards[step.index])
        if position < len(record.step_advantages):
            yield f"  advantage {number(record.step_advantages[position], signed=True)}"
    yield ""
    expected = f", expected {t.expected}" if t.expected is not None else ""
    yield from _block("", f"{mark(t.correct)} answer {t.answer}{expected}; ended by {t.stop_reason}")
    if record.breakdown is not None or record.unknown:
        total = record.breakdown.total if record.breakdown is not None else None
        advantage = f", advantage {number(record.advantage, signed=True)}" if record.advantage is not None else ""
        yield f"reward {number(total)}{advantage}"
    for what, why in record.unknown.items():
        yield from _block(f"{what}: ", why if what in ("sum", "turns", "missing") else f"not recorded: {why}")


def _calls(step: Step) -> Iterator[str]:
    """Each call of a turn with its own result."""
    for call in step.calls:
        arguments = call.arguments if call.problem else json.dumps(call.arguments, ensure_ascii=False, default=str)
        yield from _block("  call   ", f"{call.name}({arguments})" + (f"  [{call.problem}]" if call.problem else ""))
        if call.result is not None:
            yield from _block("  saw    ", call.result)


def _reward(reward: StepReward) -> Iterator[str]:
    for name, value in reward.components.items():
        sums = f"raw {number(value.raw):>7}  normalised {number(value.normalized):>7}  × {number(value.weight):>5}"
        yield f"  {name:<11} {sums}  = {number(value.contribution):>7}"
    yield f"  {'step reward':<11} {number(reward.total):>46}"
    for penalty in reward.penalties:
        saw = ", ".join(f"{k}={v}" for k, v in penalty.saw.items())
        yield from _block("  ✗ ", f"{penalty.rule} {number(penalty.amount)}: {penalty.why}")
        yield from _block("    saw ", f"{saw}; limit: {penalty.limit}" if penalty.limit else saw)
        yield from _block("    right: ", penalty.right)


def _block(head: str, text: str) -> Iterator[str]:
    """`text` wrapped and literal, its first line after `head`, the others below it."""
    for i, line in enumerate(wrap(text, WIDTH - len(head))):
        yield (head if i == 0 else " " * len(head)) + line
