"""The use of a rollout in serving and learning, as lines: the vote, the gate, and each update that used it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from ....engine.runs.types import Event, NeighbourVote, Served, TrajectoryRecord, Use
from ...format import MINUS, count, fixed, number, percent, version_text
from ...plain import Whole
from ...text import width as cells_of
from ...text import wrap
from ..theme import Palette
from .pane import Line, wrapped

_SHOWN = 6  # answers of a vote, and neighbours


def learning_lines(p: Palette, rollout: Whole, width: int) -> list[Line]:
    """Return lines of `width` cells, or none if nothing learns from the rollout."""
    record = rollout.record
    if record.split == "eval":
        return []
    lines = []
    if record.served is not None:
        lines += _heading(p, "the vote", width) + _vote(p, record.served, record.policy_version, width)
    lines += _heading(p, "learning", width)
    if not rollout.uses:
        return lines + wrapped(p, _nothing(record), width, p.faint)
    for use in rollout.uses:
        lines += _use(p, use, rollout.validations, width)
    return lines


def _nothing(record: TrajectoryRecord) -> str:
    served = record.served
    if record.trajectory.extra.get("by_hand"):
        return "Played by hand: not used for learning."
    if served is None:
        return "Its use in learning was not recorded."
    if served.gate != "open":
        return "Not used for learning: the gate was closed."
    return "Not part of any recorded update yet."


def _vote(p: Palette, served: Served, version: int | None, width: int) -> list[Line]:
    role = "initial trajectory" if served.initial else "further candidate"
    lines = _field(p, "request", [str(served.request), role, f"by policy {version_text(version)}"], p.text, width)
    if served.seconds is not None:
        lines += _field(p, "answered", [f"after {number(served.seconds)} s"], p.text, width)
    sent = ["✓ from this rollout"] if served.sent else []
    lines += _field(p, "sent", [_answer(served.answer), *sent], p.strong, width)
    label = "none: the others tie or have no answer" if served.pseudo_label is None else _answer(served.pseudo_label)
    agrees = [] if served.agrees is None else ["✓ agrees" if served.agrees else "✗ differs"]
    lines += _field(p, "label", [label, *agrees], p.outcome(served.agrees), width)
    votes = list(served.votes.items())
    shown = [f"{_answer(a)} {percent(share)}" for a, share in votes[:_SHOWN]] + _more(votes)
    lines += _field(p, "votes", shown or ["not recorded"], p.text if shown else p.faint, width)
    neighbours = [*map(_neighbour, served.neighbours[:_SHOWN]), *_more(served.neighbours)]
    lines += _field(p, "neighbours", neighbours or ["none"], p.text if neighbours else p.faint, width)
    parts = ["open"] if served.gate == "open" else ["closed", served.reason or served.gate.replace("_", " ")]
    if served.confidence is not None and served.gate != "low_confidence":
        parts.append(f"confidence {fixed(served.confidence)}")
    return lines + _field(p, "gate", parts, p.good if served.gate == "open" else p.warn, width)


def _use(p: Palette, use: Use, validations: Sequence[Event], width: int) -> list[Line]:
    facts = use.facts
    where = f"update {facts['update']}" if "update" in facts else f"step {use.step}"
    done = {"trained": "trained on", "filtered": "filtered out", "taken_back": "taken back"}.get(use.kind, use.kind)
    parts = [f"{done}, clipped" if use.clipped else done]
    if use.kind in _WHY:
        parts.append(_WHY[use.kind])
    if use.weight is not None:
        parts.append(f"drawn with p {number(use.weight)}" if use.kind == "replayed" else f"weight {fixed(use.weight)}")
    if use.advantage is not None:
        parts.append(f"A {fixed(use.advantage, signed=True)}")
    if facts.get("message"):
        parts.append(str(facts["message"]))
    good = use.kind in ("trained", "replayed", "applied")
    lines = _field(p, where, parts, p.text if good else p.warn, width)
    numbers = [f"{name} {_fact(facts[key])}" for key, name in _FACTS.items() if key in facts]
    if facts.get("grad_norm") is not None and facts.get("clipped_grad_norm") is not None:
        norm = f"gradient {_fact(facts['grad_norm'])}"
        numbers.append(f"{norm} cut to {_fact(facts['clipped_grad_norm'])}" if use.clipped else norm)
    lines += _field(p, "", numbers, p.muted, width) if numbers else []
    return lines + _validation(p, facts.get("update"), validations, width)


_WHY = {
    "filtered": "no signal in its group, so its advantage in the loss is 0",
    "replaced": "no signal in its group; a replayed rollout took its place",
    "unscored": "its environment failed",
}
_FACTS = {"kl": "KL", "learning_rate": "learning rate", "beta": "β", "published_version": "published version"}


def _validation(p: Palette, update: object, validations: Sequence[Event], width: int) -> list[Line]:
    if not isinstance(update, int):
        return []
    known = [e for e in validations if isinstance(e.data.get("update"), int) and "live" in e.data]
    after = next((e for e in known if e.data["update"] >= update), None)
    before = next((e for e in reversed(known) if e.data["update"] < update), None)
    if after is None:
        return _field(p, "Δ validation", ["not measured yet"], p.faint, width)
    parts = [f"{percent(after.data['live'])} after {count(after.data['update'], 'update')}"]
    if before is not None:
        change = 100 * (after.data["live"] - before.data["live"])
        several = after.data["update"] - before.data["update"]
        sign = "+" if change >= 0 else MINUS
        parts.insert(0, f"{sign}{abs(change):.0f} points")
        parts.append("by this update" if several == 1 else f"over {several} updates")
    return _field(p, "Δ validation", parts, p.text, width)


def _heading(p: Palette, text: str, width: int) -> list[Line]:
    return [Line(p).add(f"{text} ", p.title).add("─" * max(0, width - len(text) - 1), p.border)]


def _field(p: Palette, name: str, parts: Sequence[str], style: Style, width: int) -> list[Line]:
    """Return `name` next to its parts, or above them on a narrow screen. Only parts wider than a line break."""
    narrow = width < 30
    indent = 1 if narrow else max(11, len(name) + 1)
    room = max(4, width - indent)
    texts: list[str] = []
    for part in parts:
        for index, text in enumerate(wrap(part, room, 2000)):
            if texts and not index and cells_of(texts[-1]) + 3 + cells_of(text) <= room:
                texts[-1] += f" · {text}"
            else:
                texts.append(text)
    lines = [Line(p).add(name, p.faint)] if narrow and name else []
    for index, text in enumerate(texts):
        lines.append(Line(p).add(name if not narrow and not index else "", p.faint, cells=indent).add(text, style))
    return lines


def _answer(answer: str | None) -> str:
    if answer is None:
        return "no answer"
    return f"“{answer if len(answer) <= 60 else answer[:59] + '…'}”"


def _neighbour(vote: NeighbourVote) -> str:
    return f"{vote.id} {_answer(vote.answer)} × {fixed(vote.weight)}" if vote.answer else vote.id


def _more(items: Sequence[object]) -> list[str]:
    return [f"{len(items) - _SHOWN} more"] if len(items) > _SHOWN else []


def _fact(value: object) -> str:
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
