"""What `grpo-tui export` writes as `jsonl`, `parquet` and `sts`, and the numbers in its `atif`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from ....configs.plain_data import from_plain
from ....envs.trajectory import Step, Trajectory
from ....rewards.breakdown import RewardBreakdown
from ..format import Documents, Origin
from ..messages import conversation, split
from ..rollout import Call, Item, Message, Rollout, Score
from ..values import Document, mapping, number, parsed, text

_IN_TABLE = ("task", "steps", "extra", "breakdown")
"""Columns of the table that hold JSON."""
_RENAMED = {"reasoningContent": "reasoning_content", "toolCalls": "tool_calls", "toolCallId": "tool_call_id"}


def numbers_of(document: Document) -> dict[str, Any]:
    """Return reward, components and the other numbers of a rollout. A component's value is normalised, if it was."""
    numbers: dict[str, Any] = {name: document.get(name) for name in ("step", "policy_version", "token_count")}
    numbers |= {name: number(document.get(name)) for name in ("reward", "advantage")}
    numbers["split"] = document.get("split") or ""
    if not (stated := _with_numbers(mapping(document.get("breakdown")))):
        return numbers
    breakdown = from_plain(RewardBreakdown, stated)
    components = [s.components for s in breakdown.steps]
    found: dict[str, Score] = {}
    for name, weight in {name: part.weight for each in components for name, part in each.items()}.items():
        parts = [each[name] for each in components if name in each]
        shares = [(p.contribution, p.raw) for p in parts]
        values = [share / weight if weight and share is not None else raw for share, raw in shares]
        known = [value for value in values if value is not None]
        found[name] = Score(sum(known) if known else None, weight)
    return {**numbers, "reward": breakdown.total, "components": found, "breakdown": breakdown}


def _with_numbers(value: Any) -> Any:
    """Return a document with numbers in place of the texts "NaN" and "Infinity"."""
    if isinstance(value, Mapping):
        return {name: _with_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_numbers(inner) for inner in value]
    return number(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _rollout(document: Document, origin: Origin) -> Iterable[Item]:
    t = from_plain(Trajectory, document["trajectory"])
    rewards = [step.get("total") for step in mapping(document["breakdown"]).get("steps") or ()]
    turns: list[Message] = []
    for step, reward, advantage in zip_longest(t.steps, rewards, document["step_advantages"]):
        turns += [] if step is None else _turn(step, number(reward), number(advantage))
    asked = tuple(Message(m.role, m.text) for m in t.messages) or (Message("user", t.prompt),)
    kept = ("id", "env", "group", "prompt_id", "agent", "answer", "expected", "correct", "error", "task", "extra")
    facts = {name: getattr(t, name) for name in (*kept, "seconds")}
    yield Rollout(asked, tuple(turns), index=t.rollout, stop=t.stop_reason, **facts, **numbers_of(document))


def _turn(step: Step, reward: float | None, advantage: float | None) -> Iterator[Message]:
    """Yield the agent's message with its calls and their results, and other answers of the environment."""
    calls, rest = step.calls, step.observation
    if not calls and step.action is not None:
        calls = (Call(step.action, step.arguments, "", rest or None, step.error, step.parse_error),)
    # in our own environments the text holds words, then the raw calls
    said = "" if calls and step.needs_call else step.text
    numbers: dict[str, Any] = {"reward": reward, "advantage": advantage, "seconds": step.seconds}
    error = None if calls else step.error
    yield Message("assistant", said, step.thought, calls, error=error, stop=step.stop_reason, **numbers)
    for call in calls:
        rest = rest.removeprefix(call.result or "").removeprefix("\n\n")
    if rest:
        yield Message("user", rest)


def _table_row(row: Document, origin: Origin) -> Iterable[Item]:
    inner = {name: parsed(str(row.get(name))) for name in _IN_TABLE}
    return _rollout({**row, "breakdown": inner["breakdown"], "trajectory": {**row, **inner}}, origin)


OWN = Documents("grpo-tui export", _rollout, keys=("trajectory", "breakdown", "not_recorded"))
OWN_TABLE = Documents("grpo-tui table", _table_row, keys=("steps", "penalties", "breakdown", "not_recorded"))


def session(entries: list[Document]) -> Rollout:
    """Read a session in the Session Trace Simple Format: a header, then messages."""
    about, said = entries[0], [mapping(e.get("message")) for e in entries if e.get("type") == "message"]
    messages = [{_RENAMED.get(key, key): value for key, value in message.items()} for message in said]
    facts = {**numbers_of(about), "env": text(about.get("environment")) or ""}
    names = {name: text(about.get(name)) or "" for name in ("id", "group")}
    return Rollout(*split(conversation(messages)), **names, **facts)
