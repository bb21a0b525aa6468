"""The rollouts that a run is writing now: how many, how fast, and the newest text of some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....engine.runs.control.live import BatchState, LiveState, LiveText, Purpose, ServerState
from ....engine.runs.types import Progress
from ...format import count, mark, number, progress
from ...progress_text import PHASES, current_batches, phase_left, rollouts_line
from ...text import wrap
from ..live_data import Reading
from .live_panels import LivePanel
from .pane import Line

_TEXTS = 3
"""Long texts that are shown together. If texts are short, more fit."""
_LEAST_LINES = 3
"""Minimum number of lines for a text below another one, including its heading."""


class WritingPanel(LivePanel):
    """Texts that the run's process is writing (`engine.runs.control.live`). Texts in progress come first until the user
    steps to one. With `whole`, only that one is shown, with its prompt."""

    name = "writing"
    title = "Writing"

    chosen: tuple[float, int] | None = None
    """The batch (by start time) and the row that the user stepped to."""
    whole = False
    _servers_before: tuple[float, Mapping[str, int]] = (0.0, {})
    _rates: Mapping[str, float] = {}

    def put(self, reading: Reading) -> None:
        live = reading.live
        if live is not None and live.servers:
            self._measure(live)
        self.reading = reading
        if self.chosen is not None and self.chosen not in [(b.began, t.row) for b, t in self._all()]:
            self.chosen = None
        self.title = "Writing" if any(not b.ended for b in current_batches(live)) else "Written"
        super().put(reading)

    def step(self, by: int) -> None:
        keys = [(b.began, t.row) for b, t in self._all()]
        if not keys:
            return
        if self.chosen in keys:
            index = (keys.index(self.chosen) + by) % len(keys)
        else:
            batch, text = self._shown(1)[0]
            index = keys.index((batch.began, text.row))
        self.chosen = keys[index]
        self.changed(keep_scroll=False)

    def scroll_lines(self, by: int) -> None:
        if self.whole and self.overflow:
            super().scroll_lines(by)
        else:
            self.step(by)

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        servers = self.reading.live.servers if self.reading.live is not None else ()
        server_lines = [self._server(server, width) for server in servers]
        lines = [*self._phases(width), *self._counts(width), *server_lines][: max(1, height - 2)]
        room = height - len(lines)
        if not self._all():
            texts = "the model is loading; texts" if self.reading.info.status == "starting" else "texts"
            return lines or [Line(p).add(f"{texts} appear here during generation", p.faint, cells=width)]
        if self.whole:
            batch, text = self._shown(1)[0]
            return [*lines, *self._heading(batch, text, width), *self._body(text, width, None)]
        most = max(_LEAST_LINES, room // _TEXTS)
        for place, (batch, text) in enumerate(self._shown(room // 2 + 1)):
            if place and room < _LEAST_LINES:
                break
            head = self._heading(batch, text, width)
            block = [*head, *self._body(text, width, min(most, room) - len(head))]
            lines += block
            room -= len(block)
        return lines

    def _all(self) -> list[tuple[BatchState, LiveText]]:
        return [(batch, text) for batch in current_batches(self.reading.live) for text in batch.texts]

    def _shown(self, most: int) -> Sequence[tuple[BatchState, LiveText]]:
        """Return the texts from the chosen one on, else those in progress, then the others."""
        every = self._all()
        index = next((i for i, (b, t) in enumerate(every) if (b.began, t.row) == self.chosen), None)
        if index is not None:
            return (every[index:] + every[:index])[:most]
        going = [pair for pair in every if not pair[1].finished and pair[1].tokens]
        rest = [pair for pair in every if pair not in going]
        return (going + rest)[:most]

    # -- counts, phases, servers ---------------------------------------------------------------------------------------

    def _counts(self, width: int) -> list[Line]:
        p, batches = self.palette, current_batches(self.reading.live)
        if not batches:
            return []
        left = ""
        if self.reading.info.progress is not None and not all(b.ended for b in batches):
            left = phase_left(self.reading.info.progress, self.reading.live, self.app.clock())
        line = Line(p)
        for index, text in enumerate(rollouts_line(batches, left)):
            piece = Line(p).add(" · " if index else "", p.faint).add(text, p.text if index else p.strong)
            if not line.offer(piece, width):
                break
        return [line]

    def _phases(self, width: int) -> list[Line]:
        p = self.palette
        now = self.reading.info.progress if self.reading.info.status == "running" else None
        purpose = next((b.purpose for b in current_batches(self.reading.live)[-1:]), Purpose())
        line = Line(p).add(purpose.name or (f"step {count(purpose.step)}" if purpose.step else ""), p.strong)
        if now is not None and now.phase in PHASES:
            current = PHASES.index(now.phase)
            for index, name in enumerate(PHASES):
                if index == current:
                    piece = self._present(
                        now, max(8, width - line.width - sum(len(n) + 4 for n in PHASES[current + 1 :]))
                    )
                else:
                    piece = Line(p).add("✓ " if index < current else "· ", p.good if index < current else p.faint)
                    piece.add(name, p.muted if index < current else p.faint)
                if not line.offer(Line(p).gap(2 * bool(line.width)).extend(piece), width) and index == current:
                    line = piece
        elif now is not None and now.phase not in ("", "evaluation"):
            line.offer(Line(p).gap(2 * bool(line.width)).extend(self._present(now, width)), width)
        return [line] if line.width else []

    def _present(self, now: Progress, width: int) -> Line:
        p = self.palette
        line = Line(p).add("▶ ", p.accent).add(now.phase, p.strong)
        if now.total > 1 and now.phase != "rollouts":
            line.offer(Line(p).add(f" {count(now.done)}/{count(now.total)}", p.text), width)
            line.offer(Line(p).gap().add(progress(now.done / now.total, 8), p.accent), width)
        left = phase_left(now, self.reading.live, self.app.clock())
        if left and now.phase != "rollouts":
            line.offer(Line(p).add(f" {left}", p.muted), width)
        return line

    def _measure(self, live: LiveState) -> None:
        before, tokens = self._servers_before
        if live.time - before < 1.0:
            return
        if before:
            self._rates = {s.url: (s.tokens - tokens.get(s.url, 0)) / (live.time - before) for s in live.servers}
        self._servers_before = (live.time, {s.url: s.tokens for s in live.servers})

    def _server(self, server: ServerState, width: int) -> Line:
        p = self.palette
        line = Line(p).add("⚠ " if server.why_out else "● ", p.warn if server.why_out else p.good)
        line.add(server.url, p.text, most=max(1, width - 2))
        facts = [f"{server.in_flight} in flight", count(server.turns, "turn"), count(server.tokens, "token")]
        if (rate := self._rates.get(server.url)) is not None:
            facts.insert(1, f"{number(rate)} tok/s")
        if server.mismatch is not None and server.behind is not None:
            facts[-2:-2] = [f"mismatch {number(server.mismatch)}", f"{number(server.behind)} steps behind"]
        for fact in [f"out: {server.why_out}"] if server.why_out else facts:
            line.offer(Line(p).add("  ", p.faint).add(fact, p.muted), width)
        return line

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _heading(self, batch: BatchState, text: LiveText, width: int) -> list[Line]:
        p = self.palette
        selected = (batch.began, text.row) == self.chosen
        line = Line(p).add("▸ " if selected else "  ", p.accent)
        line.add(f"{text.row + 1}", p.strong).add(f"/{batch.rollouts}", p.muted)
        end = Line(p)
        if text.turn > 1:
            end.add(f"turn {text.turn} · ", p.muted)
        end.add(count(text.tokens, "token"), p.muted)
        if text.reward is not None:
            end.add(f"  {mark(text.correct)} " if text.correct is not None else "  ", p.outcome(text.correct))
            end.add("reward ", p.muted).add(number(float(text.reward)), p.strong)
        elif text.finished:
            end.add("  ended", p.muted)
        prompt = width - line.width - end.width - 4
        if prompt >= 8 and not self.whole:
            line.gap(2).add(" ".join(text.prompt.split()), p.muted, cells=prompt)
        line.right(end, width)
        return [line]

    def _body(self, text: LiveText, width: int, most: int | None) -> list[Line]:
        p, inside = self.palette, max(8, width - 2)
        body = ("…" if text.cut else "") + text.text + ("" if text.finished else "▌")
        lines = [Line(p).gap(2).add(part, p.text) for part in wrap(body, inside, 8000)]
        if most is not None:
            if 0 < most < len(lines):  # its newest lines
                lines = lines[-most:]
                lines[0] = Line(p).add("… ", p.faint).add(lines[0].plain[2:], p.text)
            return lines[:most]
        prompt = [Line(p).gap(2).add(part, p.muted) for part in wrap(text.prompt, inside, 8000)]
        return [*prompt, Line(p), *lines]
