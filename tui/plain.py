"""A trajectory with everything that was computed from it, as plain data and as plain text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..engine.runs.notes import Note
from ..engine.runs.types import AdvantageFormula, AdvantageTerm, Step, StepReward, TrajectoryRecord, TrajectoryRow, Use
from ..rewards.advantages.base import EPSILON
from .advantage import SAME, equation, formula_of, recomputed, recomputed_text
from .format import mark, number
from .text import literal, wrap

if TYPE_CHECKING:
    from ..engine.runs.read.reader import RunReader

WIDTH = 110
STATED = ("sum", "turns", "missing")
"""Keys of `TrajectoryRecord.unknown` whose sentence needs no introduction."""


@dataclass(frozen=True)
class Whole:
    """A trajectory with its number, the updates that used it, and the formula of its advantage (None: unknown).

    `recomputed`: the advantage that GRPO would give, if none was recorded and the rewards of the group are known.
    """

    n: int
    record: TrajectoryRecord
    uses: Sequence[Use] = ()
    formula: AdvantageFormula | None = None
    recomputed: AdvantageTerm | None = None
    note: Note | None = None


def read_whole(reader: RunReader, ref: str | int) -> Whole:
    """Read by id or number. Raises LookupError or RecordDamaged."""
    n = reader.bodies.number(ref)
    record = reader.bodies.trajectory(n)
    group: Sequence[TrajectoryRow] = ()
    if record.formula is None and (record.advantage is not None or "advantage" in record.unknown):
        group = [row for here in reader.rollouts.rows([n]) for row in reader.rollouts.group(here.group)]
    note = reader.notes.read().get(record.trajectory.id)
    uses, formula = reader.bodies.uses(n, record), formula_of(record, group)
    return Whole(n, record, uses, formula, recomputed(record, group), note)


def trajectory_data(whole: Whole) -> dict[str, Any]:
    """Return one plain dictionary (token arrays are in the record only)."""
    record = whole.record
    return {
        "n": whole.n,
        "trajectory": record.trajectory.to_json(),
        "breakdown": record.breakdown.to_json() if record.breakdown is not None else None,
        "advantage": record.advantage,
        "step_advantages": list(record.step_advantages),
        "advantage_formula": whole.formula.to_json() if whole.formula is not None else None,
        "note": whole.note.to_json() if whole.note is not None else None,
        "recomputed": _recomputed(whole.recomputed),
        "policy_version": record.policy_version,
        "split": record.split,
        "token_count": record.token_count if record.tokens is None else len(record.tokens),
        "not_recorded": dict(record.unknown),
        "uses": [use.to_json() for use in whole.uses],
        "served": record.served.to_json() if record.served is not None else None,
    }


def _recomputed(term: AdvantageTerm | None) -> dict[str, Any] | None:
    """Return the recomputed advantage of another program's rollout, marked as such."""
    if term is None:
        return None
    flat = not term.std or term.std < SAME
    advantage = 0.0 if flat else term.result(EPSILON)
    return {"advantage": advantage, "group_mean": term.mean, "group_std": term.std, "group_size": term.size}


def trajectory_text(whole: Whole) -> str:
    """Return all texts of the agent and the environment. Control characters are not made visible here."""
    return "\n".join(head + text for head, text in _blocks(whole))


def trajectory_lines(whole: Whole) -> Iterator[str]:
    """Yield all of it in literal lines of `WIDTH` cells: nothing in them is markup or a control character."""
    return _lines(_blocks(whole))


def step_lines(whole: Whole, position: int) -> Iterator[str]:
    """Yield one step of it in such lines."""
    return _lines(_step(whole, position))


def end_lines(whole: Whole) -> Iterator[str]:
    """Yield its end in such lines."""
    return _lines(_end(whole))


def _lines(blocks: Iterator[tuple[str, str]]) -> Iterator[str]:
    for head, text in blocks:
        for i, line in enumerate(wrap(text, WIDTH - len(head), limit=len(text))):
            yield (literal(head) if i == 0 else " " * len(head)) + line


def _blocks(whole: Whole) -> Iterator[tuple[str, str]]:
    """Yield the parts in order: a heading of a few characters and a text of any length."""
    record = whole.record
    t = record.trajectory
    yield "", f"{t.id}  {t.env}  group {t.group}  rollout {t.rollout}  {record.split}  {t.agent}".rstrip()
    if whole.note is not None:
        yield "note     ", whole.note.text
    yield "prompt   ", t.prompt
    for position in range(len(t.steps)):
        yield from _step(whole, position)
    yield from _end(whole)


def _step(whole: Whole, position: int) -> Iterator[tuple[str, str]]:
    """Yield a step: its call, result, reward and advantage."""
    record = whole.record
    step = record.trajectory.steps[position]
    rewards = {s.step: s for s in record.breakdown.steps} if record.breakdown is not None else {}
    call = f"{step.action}({json.dumps(dict(step.arguments), ensure_ascii=False, default=str)})"
    yield "", ""
    yield "", f"step {step.index}"
    if step.thought and step.thought not in step.text:
        yield "  thought", step.thought
    yield "  wrote  ", step.text
    if step.calls:
        yield from _calls(step)
    elif not step.is_text and (step.action or step.needs_call or step.parse_error):
        yield "  call   ", call if step.action else f"none: {step.parse_error or 'no call was found'}"
    if step.error:
        yield "  error  ", step.error
    if step.observation and not any(c.result for c in step.calls):
        yield "  saw    ", step.observation
    if step.index in rewards:
        yield from _reward(rewards[step.index])
        yield from ((f"  {score.name}: ", score.why) for score in step.scores if score.why)
    else:  # scores of a held-out rollout became no reward
        yield from ((f"  {score.name} {number(score.value)} ", score.why) for score in step.scores)
    if position < len(record.step_advantages):
        advantage = record.step_advantages[position]
        *terms, said = equation(whole.formula, position, advantage)
        yield "  advantage ", f"{number(advantage, signed=True)} {' '.join(terms or [said])}"


def _end(whole: Whole) -> Iterator[tuple[str, str]]:
    """Yield the answer, the reward, the advantage and their use in learning."""
    record = whole.record
    t = record.trajectory
    yield "", ""
    expected = f", expected {t.expected}" if t.expected is not None else ""
    ended = f"; ended by {t.stop_reason}" if t.stop_reason else ""
    yield "", f"{mark(t.correct)} answer {t.answer}{expected}{ended}"
    if record.breakdown is not None or record.unknown:
        total = record.breakdown.total if record.breakdown is not None else None
        advantage = f", advantage {number(record.advantage, signed=True)}" if record.advantage is not None else ""
        yield "", f"reward {number(total)}{advantage}"
        if record.advantage is not None and whole.formula is not None:
            yield "  ", equation(whole.formula, 0, None)[-1]
    if whole.recomputed is not None:
        yield "advantage ", recomputed_text(whole.recomputed)
    for what, why in record.unknown.items():
        yield f"{what}: ", why if what in STATED else f"not recorded: {why}"
    yield from _learning(whole)


def _calls(step: Step) -> Iterator[tuple[str, str]]:
    """Yield each call of a turn with its own result."""
    for call in step.calls:
        arguments = call.arguments if call.problem else json.dumps(call.arguments, ensure_ascii=False, default=str)
        yield "  call   ", f"{call.name}({arguments})" + (f"  [{call.problem}]" if call.problem else "")
        if call.result is not None:
            yield "  saw    ", call.result


def _reward(reward: StepReward) -> Iterator[tuple[str, str]]:
    for name, value in reward.components.items():
        sums = f"raw {number(value.raw):>7}  normalised {number(value.normalized):>7}  × {number(value.weight):>5}"
        yield "", f"  {name:<11} {sums}  = {number(value.contribution):>7}"
    yield "", f"  {'step reward':<11} {number(reward.total):>46}"
    for penalty in reward.penalties:
        saw = ", ".join(f"{k}={v}" for k, v in penalty.saw.items())
        yield "  ✗ ", f"{penalty.rule} {number(penalty.amount)}: {penalty.why}"
        yield "    saw ", f"{saw}; limit: {penalty.limit}" if penalty.limit else saw
        yield "    right: ", penalty.right


def _learning(whole: Whole) -> Iterator[tuple[str, str]]:
    served = whole.record.served
    if served is not None:
        agrees = {True: "agrees", False: "differs", None: "has no label"}[served.agrees]
        yield "", f"request {served.request}: answered {served.answer}, label {served.pseudo_label}, this one {agrees}"
        sure = f", confidence {number(served.confidence)}" if served.confidence is not None else ""
        yield "", f"gate {served.gate}{f' ({served.reason})' if served.reason else ''}{sure}"
    for use in whole.uses:
        weight = f", weight {number(use.weight)}" if use.weight is not None else ""
        used = f", advantage {number(use.advantage, signed=True)}" if use.advantage is not None else ""
        clipped = ", clipped" if use.clipped else ""
        facts = "".join(f", {k} {number(v) if isinstance(v, float) else v}" for k, v in use.facts.items())
        yield "", f"step {use.step}: {use.kind.replace('_', ' ')}{clipped}{weight}{used}{facts}"
