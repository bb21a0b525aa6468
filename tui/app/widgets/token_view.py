"""The tokens of a trajectory, coloured by author, by log-prob or by advantage, with a legend."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.style import Style

from ....engine.runs.read.bodies import Alphabet, texts_in_order
from ...format import fixed
from ...text import literal
from ..theme import Palette
from .pane import Line, wrapped
from .rendering import broken
from .text_layout import Flow, FlowPane, FlowPart

if TYPE_CHECKING:
    from ....engine.runs.types import TokenArrays

Scale = tuple[tuple[str, ...], tuple[float, ...]]
"""Words from good to far off, and the nats that separate them."""
_PROBABILITY = ("p ≥ 0.9", "≥ 0.5", "≥ 0.1", "< 0.1"), tuple(-math.log(p) for p in (0.9, 0.5, 0.1))
_DISTANCE = ("equal (< 0.01 nats)", "< 0.1", "< 0.5", "≥ 0.5 apart"), (0.01, 0.1, 0.5)
SCALES: Mapping[str, Scale | None] = {
    "author": None,
    "log-prob": _PROBABILITY,
    "advantage": None,
    "trainer's log-prob": _PROBABILITY,
    "mismatch": _DISTANCE,
    "entropy": (("sure (< 0.1 nats)", "< 0.7", "< 1.5", "unsure (≥ 1.5)"), (0.1, 0.7, 1.5)),
    "reference": _DISTANCE,
    "teacher": _DISTANCE,
}
"""Colourings. mismatch: log π of the trainer minus log π of the sampler, in nats. reference: that of the trainer (else
the sampler) minus that of the reference. teacher: that of the teacher minus that of the policy. Colourings without
recorded data are skipped."""
MODES = tuple(SCALES)
_MARK = Style(reverse=True)
LIMIT = 200_000
"""Maximum number of tokens shown. A longer trajectory is visibly cut."""
_TOGETHER = 300
"""Tokens of a turn that are laid out together."""
_NAMED = 9
"""Cells of the speaker's name."""


class TokenView(FlowPane):
    """The model's literal text, in one colouring at a time."""

    name = title = "tokens"
    mode = 0
    step = 0
    problem = ""
    raw = False
    """Whether tokens are shown as the tokenizer writes them."""
    _symbols: Sequence[str] = ()
    _texts: Sequence[str] = ()
    _mask: Sequence[bool | int] = ()
    _turns: Sequence[int] = ()
    _values: Mapping[str, Sequence[float]] = {}
    """The value of each token, by the name of its colouring."""
    _total = 0
    _begins: Sequence[int] = ()
    """The first token of each part after the legend."""
    _worst: Sequence[int] = ()
    """The agent's tokens by mismatch, largest first."""
    _place = -1
    """The index in `_worst` of the marked token, or -1."""

    def put(
        self,
        tokens: TokenArrays | None,
        symbols: Sequence[str],
        alphabet: Alphabet,
        step: int,
        problem: str = "",
    ) -> None:
        """Set arrays of length T, the symbols of the first `LIMIT` tokens, and the step. `problem` explains why there
        are none."""
        self.problem, self._place = problem, -1
        if tokens is None:
            self._texts, self._total, self._values = (), 0, {}
        else:
            self._total = len(tokens)
            self._symbols = symbols[:LIMIT]
            self._texts = texts_in_order(self._symbols, alphabet)
            self._mask = tokens.agent_mask[:LIMIT].tolist()
            self._turns = tokens.turn[:LIMIT].tolist()
            self._values = _compared(tokens)
            if not self._has(self.mode):
                self.mode = 0
        mismatches = self._values.get("mismatch", ())
        known = (i for i, value in enumerate(mismatches) if self._mask[i] and math.isfinite(value))
        self._worst = sorted(known, key=lambda i: -abs(mismatches[i]))
        self.step = step
        self.title = self._heading()
        self._built, self.top = None, 0
        if self.shown:
            part_number = next((i for i, part in enumerate(self.flow.parts) if part.key == (step, 1)), 0)
            self.begin_at(self.flow.starts[part_number] - 2)

    def show_raw(self, raw: bool) -> None:
        self.raw, self.title = raw, self._heading()
        self.changed()

    def next_mode(self) -> bool:
        """Switch to the next colouring. Returns False after the last."""
        self.mode = next((m for m in range(self.mode + 1, len(MODES)) if self._has(m)), len(MODES))
        more = self.mode < len(MODES)
        if not more:
            self.mode = 0
        self.title = self._heading()
        self.changed()
        return more

    def next_worst(self) -> bool:
        """Mark and show the token of the largest mismatch, then of the next largest. False: none was recorded."""
        if not self._worst:
            return False
        self._place = (self._place + 1) % len(self._worst)
        self.mode = MODES.index("mismatch")
        self.title = self._heading()
        self.changed()
        flow, token = self.flow, self._worst[self._place]
        part_number, height = bisect_right(self._begins, token), self.size.height
        flow.laid_out(part_number)
        for direction in (-1, 1):  # lay out a screen around the token now, so that it does not move later
            i, room = part_number + direction, height
            while room > 0 and 0 <= i < len(flow.parts):
                flow.laid_out(i)
                room, i = room - flow.parts[i].rows, i + direction
        lines = flow.parts[part_number].lines or ()
        inside = next((i for i, line in enumerate(lines) if any(s.style and s.style.reverse for s in line.segments)), 0)
        self.scroll_line_to(flow.starts[part_number] + inside - height // 2)
        return True

    @property
    def marked(self) -> str:
        if self._place < 0 or MODES[self.mode] != "mismatch":
            return ""
        nats = self._values["mismatch"][self._worst[self._place]]
        return f"mismatch {self._place + 1} of {len(self._worst):,}: {fixed(nats, 3, signed=True)} nats"

    def _has(self, mode: int) -> bool:
        return mode == 0 or MODES[mode] in self._values

    def _heading(self) -> str:
        return f"tokens by {MODES[self.mode]}{' · raw' if self.raw else ''}"

    def build(self, width: int, height: int) -> Flow:
        p = self.palette
        if not self._texts:
            message = self.problem or "No tokens were recorded for this trajectory."
            return Flow([FlowPart(wrapped(p, message, width, p.bad if self.problem else p.faint))])
        parts = [FlowPart(self._legend(width))]
        self._begins = begins = list[int]()
        size, room = len(self._texts), max(1, width - _NAMED)
        start = begin = 0
        for i in range(1, size + 1):
            other = i == size or self._turns[i] != self._turns[start] or self._mask[i] != self._mask[start]
            ends_line = self._texts[i - 1].endswith("\n")
            if other or (i - begin >= _TOGETHER and ends_line) or i - begin >= 4 * _TOGETHER:
                texts = self._texts[begin:i]
                rows = sum(map(len, texts)) // room + sum("\n" in text for text in texts) + 1
                key = (self._turns[start], int(bool(self._mask[start])), *([begin] if begin > start else []))
                parts.append(FlowPart(partial(self._lines, begin, i, begin == start, width), rows, key))
                begins.append(begin)
                begin = i
            if other:
                start = i
        if self._total > size:
            parts.append(FlowPart([Line(p).add(f"✂ {self._total - size:,} more tokens", p.warn)]))
        return Flow(parts)

    def _lines(self, start: int, end: int, named: bool, width: int) -> list[Line]:
        p, shown = self.palette, self._symbols if self.raw else self._texts
        turn, agent = self._turns[start], self._mask[start]
        writer = "prompt" if turn < 0 else f"{turn + 1} agent" if agent else f"{turn + 1} env"
        room = max(1, width - _NAMED)
        lines: list[Line] = []
        pieces: list[tuple[str, Style]] = []

        def put() -> None:
            plain = "".join(text for text, _ in pieces)
            for part, begin in broken(plain, room):
                line = Line(p)
                if named and not lines:
                    line.add(writer, p.key if turn == self.step else p.faint, cells=_NAMED)
                    line.hits = [(0, _NAMED, ("step", turn))] if agent else []
                lines.append(_styled(line.to(_NAMED), pieces, begin, begin + len(part)))
            pieces.clear()

        marked = self._worst[self._place] if self.marked else -1
        for i in range(start, end):
            style = self._style(i) + _MARK if i == marked else self._style(i)
            breaks = self._texts[i].count("\n") if self.raw else 0
            first, *more = [shown[i]] if self.raw else shown[i].split("\n")
            if i == marked and not shown[i].strip():
                first = "·"  # a blank at the end of a line is not drawn
            pieces.append((literal(first), style))
            for text in more:
                pieces.append(("↵", p.faint))
                put()
                pieces.append((literal(text), style))
            if breaks:
                put()
        if any(text for text, _ in pieces):
            put()
        return lines

    def _style(self, i: int) -> Style:
        p = self.palette
        if not self._mask[i]:
            return p.faint
        if self.mode == 0:
            return p.accent + Style(bold=True)
        value, scale = self._values[MODES[self.mode]][i], SCALES[MODES[self.mode]]
        if scale is None:
            strong = Style(bold=True) if abs(value) >= 1 else Style()
            return p.muted if abs(value) < 1e-6 else (p.good if value > 0 else p.bad + Style(underline=True)) + strong
        return p.faint if math.isnan(value) else _styles(p)[sum(abs(value) >= limit for limit in scale[1])]

    def _sums(self, width: int) -> Line:
        p, name = self.palette, MODES[self.mode]
        known = [v for v, m in zip(self._values[name], self._mask, strict=False) if m and math.isfinite(v)]
        line = Line(p)
        if known:
            line.offer(Line(p).add(f"mean {fixed(sum(known) / len(known), 3)} nats", p.muted), width)
            if SCALES[name] is _DISTANCE:
                ratio = sum(math.exp(min(v, 50.0)) for v in known) / len(known)
                line.offer(Line(p).add(f", largest {fixed(max(known, key=abs), 3, signed=True)}", p.muted), width)
                line.offer(Line(p).add(f", mean ratio {fixed(ratio, 3)}", p.muted), width)
        return line

    def _legend(self, width: int) -> list[Line]:
        p = self.palette
        line = Line(p)
        if self.mode == 0:
            share = sum(self._mask) / len(self._mask)
            line.add("agent", p.accent + Style(bold=True)).add(
                f" {sum(self._mask)} tokens ({100 * share:.0f} %), trained on   ", p.muted
            )
            line.add("prompt and environment", p.faint).add(", masked", p.muted)
        elif (scale := SCALES[MODES[self.mode]]) is not None:
            for text, style in zip(scale[0], _styles(p), strict=True):
                line.offer(Line(p).add(text, style).gap(2), width)
            return [line, self._sums(width), Line(p)]
        else:
            line.add("> 0: reinforced", p.good).gap(2).add("< 0: discouraged", p.bad + Style(underline=True)).gap(2)
            line.add("bold: |A| ≥ 1", p.muted + Style(bold=True))
            values = [v for v, m in zip(self._values["advantage"], self._mask, strict=True) if m]
            if values:
                line.gap(2).add(f"{fixed(min(values), signed=True)} … {fixed(max(values), signed=True)}", p.muted)
        return [line, Line(p)]


def _styled(line: Line, pieces: Sequence[tuple[str, Style]], start: int, end: int) -> Line:
    offset = 0
    for text, style in pieces:
        if offset < end and offset + len(text) > start:
            line.add(text[max(0, start - offset) : end - offset], style)
        offset += len(text)
    return line


def _compared(tokens: TokenArrays) -> dict[str, Sequence[float]]:
    """Return the values of the first `LIMIT` tokens by colouring."""
    logprobs = tokens.logprobs[:LIMIT].tolist()
    overlays = {name: values[:LIMIT].tolist() for name, values in tokens.overlays.items()}
    found: dict[str, Sequence[float]] = {"log-prob": logprobs}
    if tokens.advantages is not None:
        found["advantage"] = tokens.advantages[:LIMIT].tolist()
    trainer, reference = overlays.get("trainer"), overlays.get("reference")
    if trainer is not None:
        found["trainer's log-prob"] = trainer
        if any(logprobs):  # all 0 if the sampler's were not recorded
            found["mismatch"] = [t - s for t, s in zip(trainer, logprobs, strict=False)]
    if "entropy" in overlays:
        found["entropy"] = overlays["entropy"]
    if reference is not None and (trainer is not None or any(logprobs)):
        found["reference"] = [p - r for p, r in zip(trainer or logprobs, reference, strict=False)]
    if "teacher" in overlays:
        found["teacher"] = [t - p for t, p in zip(overlays["teacher"], trainer or logprobs, strict=False)]
    return found


def _styles(p: Palette) -> list[Style]:
    return [p.text, p.accent, p.warn + Style(bold=True), p.bad + Style(bold=True, underline=True)]
