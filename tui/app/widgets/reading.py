"""The texts of a rollout, one step or all of them. Long texts fold, and texts are laid out when they come into view."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.segment import Segment

from ....engine.runs.types import Step, TrajectoryRecord
from ...format import duration
from ...text import literal
from ..rollout_cursor import Match
from ..rollout_fields import END, PROMPT, Key, RolloutTexts
from ..text_search import spans
from .pane import Line, wrapped
from .rendering import Renderer
from .text_layout import MATCH, Flow, FlowPane, TextLayout

_CONVERSATION = {
    "prompt": 6,
    "thought": 3,
    "argument": 8,
    "result": 6,
    "call": 4,
    "words": 40,
    "text": 12,
    "display": 30,
}
"""Lines to which texts fold in the conversation, by role."""
_STEP = 14
"""Approximate number of lines of a step there."""


class ReadingPanel(FlowPane):
    """Texts below each other. Long ones fold, and `enter` opens the chosen one. `whole`: all steps in one scroll."""

    def __init__(self, name: str, whole: bool, heading: str = "conversation") -> None:
        super().__init__(name)
        self.title = name
        self.heading = heading
        self.whole = self.long = whole
        self.record: TrajectoryRecord | None = None
        self.step = 0
        self.find: Sequence[str] = ()
        self.match: Match | None = None
        self.raw = False
        self.whole_prompt = False
        self.note = self.problem = ""
        """The user's note, and the reason why nothing can be read."""
        self.running = False
        """Whether the rollout has not ended yet."""
        self.on_step: Callable[[int], None] = lambda step: None
        """Called when scrolling leads to another step."""
        self._open: dict[Key, bool] = {}
        self._all = False
        self._chosen: Key | None = None
        self.texts: RolloutTexts | None = None
        self._text_layout: TextLayout | None = None

    def put(self, record: TrajectoryRecord | None, step: int, problem: str = "", match: Match | None = None) -> None:
        """Show a rollout at a step and match; `problem` explains why there is none. The conversation is laid out once
        per rollout."""
        known = record is not None and record is self.record
        same = known and self.whole and (match, problem) == (self.match, self.problem) and self._built is not None
        self.record, self.step, self.problem, self.match = record, step, problem, match
        if not known:
            self._open, self._all = {}, False
            self._take_texts()
        self.title = self._heading()
        if not same:
            self._chosen = None
            if match is not None:
                self._open[match.key] = True
            self.changed(keep_scroll=False)
        self.on_placed()

    def _take_texts(self) -> None:
        record = self.record
        self.texts = RolloutTexts(record.trajectory, self.raw, self.whole_prompt) if record is not None else None

    def _heading(self) -> str:
        if self.texts is None:
            return "cannot be read" if self.problem else "reading…"
        steps = self.texts.trajectory.steps
        if not steps:
            return self.heading if self.running else "no steps"
        raw = "raw · " if self.raw else ""
        if self.whole:
            return f"{raw}{self.heading} · step {self.step + 1} of {len(steps)}"
        position = min(self.step, len(steps) - 1)
        return f"{raw}step {position + 1}/{len(steps)}  {self.texts.summary(position)}"

    # -- folding ------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> Key | None:
        """Return the text for `enter`: the chosen one, else the first folded one on screen."""
        if not self.shown or not self.lines or self._text_layout is None:
            return None
        seen = [key for _, key in self._notes_between(self.top, self.top + self.size.height)]
        if self._chosen not in seen:
            self._choose(next(iter(seen), None))
        return self._chosen

    def _choose(self, key: Key | None) -> None:
        before, self._chosen = self._chosen, key
        if before != key:  # their notes changed
            self.lay_out_again(*(part for part in self.flow.parts if part.fold and part.fold in (before, key)))

    def choose(self, by: int) -> None:
        """Choose the next or previous text that folds."""
        now, notes = self.chosen, self._notes_between(0, len(self.flow))
        keys = [key for _, key in notes]
        index = keys.index(now) + by if now in keys else 0 if by > 0 else len(keys) - 1
        if 0 <= index < len(keys):
            self._choose(keys[index])
            if not self.top <= notes[index][0] < self.top + self.size.height:
                self.scroll_line_to(notes[index][0] - self.size.height // 2)

    def _notes_between(self, top: int, bottom: int) -> list[tuple[int, Key]]:
        flow, found = self.flow, []
        for part, end in zip(flow.parts, flow.starts[1:], strict=True):
            if part.fold is not None and top < end <= bottom:
                found.append((end - 1, part.fold))
        return found

    def toggle(self, key: Key | None = None) -> bool:
        """Open or fold a text, by default the chosen one. Returns whether there is one."""
        key = key or self.chosen
        if key is None:
            return False
        self._open[key] = not self._is_open(key)
        self._again(key)
        return True

    def open_all(self, opened: bool) -> None:
        self._open, self._all = {}, opened
        self._again(self._chosen)

    def toggle_raw(self) -> None:
        self.raw, self._open, self.match = not self.raw, {}, None
        self._take_texts()
        self.title = self._heading()
        self._again(None)

    def toggle_prompt(self) -> None:
        self.whole_prompt = not self.whole_prompt
        self._take_texts()
        self.changed(keep_scroll=False)

    def _again(self, key: Key | None) -> None:
        """Lay out again, and keep the topmost part on screen in place."""
        if not self.shown:
            self._built = None
            return
        flow, place, offset = self.flow, (), 0
        if flow.parts:
            index = min(flow.part_at(self.top), len(flow.parts) - 1)
            place, offset = flow.parts[index].key, self.top - flow.starts[index]
        self._built = None
        flow = self.flow
        if place:
            self._expand(place[0])
            index = next((i for i, part in enumerate(flow.parts) if part.key[:2] == place[:2]), None)
            if index is not None:
                self.begin_at(flow.starts[index] + (offset if flow.parts[index].key == place else 0))
        self._chosen = key
        self.repaint()

    def _is_open(self, key: Key) -> bool:
        return self._open.get(key, self._all or (key[0] == PROMPT and self.whole_prompt))

    def line_at(self, y: int) -> list[Segment]:
        if y == 0 and y not in self._strips and self.lines:
            self.flow.settled(self.top, self.top, self.size.height)
            self.chosen  # noqa: B018  marks it
        return super().line_at(y)

    # -- moving -------------------------------------------------------------------------------------------------

    def on_placed(self) -> None:
        """Show the match, or the open step of the conversation."""
        if not self.shown or not self.lines:
            return
        if self.match is not None:
            self.begin_at(self._line_of(self.match) - self.size.height // 3)
        elif self.whole:
            flow = self.flow
            head = next((index for index, part in enumerate(flow.parts) if part.key[0] == self.step), 0)
            self.begin_at(flow.starts[head] if self.step else 0)

    def _expand(self, step: int) -> None:
        flow = self.flow
        index = next((i for i, part in enumerate(flow.parts) if part.key == (step, -2)), None)
        if index is not None:
            flow.laid_out(index)

    def scroll_line_to(self, top: int) -> None:
        """Scroll to line `top`. In the conversation the step at the top becomes the open one."""
        if not self.shown:
            return
        flow, before = self.flow, self.top
        super().scroll_line_to(top)
        if self.top != before and self.whole and self.record is not None:
            last, part = len(self.record.trajectory.steps) - 1, flow.part_at(self.top + self.size.height // 4)
            position = max(0, min(flow.parts[min(part, len(flow.parts) - 1)].key[0], last))
            if position != self.step:
                self.step = position
                self.title = self._heading()
                self.on_step(position)

    def _line_of(self, match: Match) -> int:
        """Return the line of a match, found by counting the matches before it in its part, and before that in the whole
        text if its layout has other characters (indented JSON)."""
        if self.texts is None or self._text_layout is None:
            return 0
        key, flow = match.key, self.flow
        self._expand(key[0])
        if key not in self._text_layout.places:
            return 0
        parts, begins, shown = self._text_layout.places[key]
        text = self.texts.of(key[0])[key[1]].text
        start = len(text[: match.start].replace("\r\n", "\n").lstrip("\n"))
        if not shown.startswith(text[match.start : match.end], start):
            found = [begin for begin, _ in spans(shown, self.find)]
            start = found[min(len(spans(text[: match.start], self.find)), len(found) - 1)] if found else 0
        index = max(0, bisect_right(begins, start) - 1)
        part = parts[index]
        flow.laid_out(flow.parts.index(part))
        before = len(spans(shown[begins[index] : start], self.find))
        holding = [i for i, line in enumerate(part.lines or ()) for hit in line.hits if hit[2] is MATCH]
        return flow.start(part) + (holding[min(before, len(holding) - 1)] if holding else 0)

    # -- laying out ---------------------------------------------------------------------------------------------

    @property
    def copied(self) -> Sequence[str]:
        """Return the texts themselves in literal form, since a copy may be pasted into a terminal."""
        if self.texts is None:
            return [self.problem]
        steps = range(len(self.texts.trajectory.steps)) if self.whole else (self.step,)
        fields = [field for position in (PROMPT, *steps, END) for field in self.texts.of(position)]
        texts = ("\n".join(text for text in (field.name, field.text) if text) for field in fields)
        return [literal(line.expandtabs(4)) for text in texts for line in text.split("\n")]

    def build(self, width: int, height: int) -> Flow:
        p = self.palette
        renderer = (
            self._text_layout.renderer
            if self._text_layout is not None and self._text_layout.renderer.palette is p
            else Renderer(p)
        )
        folds = _CONVERSATION if self.whole else _folds(height)
        lay = self._text_layout = TextLayout(
            renderer, width, folds, self.find, self._is_open, lambda key: key == self._chosen, spaced=not self.whole
        )
        lay.line(*wrapped(p, self.problem, width, p.muted if self.running else p.bad))
        lay.line(*(wrapped(p, f"✎ {self.note}", width, p.accent) if self.note else []))
        if self.texts is not None:
            self._lay(lay, self.texts)
        return Flow(lay.parts)

    def _lay(self, lay: TextLayout, texts: RolloutTexts) -> None:
        p, prompt, steps = self.palette, texts.of(PROMPT), texts.trajectory.steps
        if self.whole or self.whole_prompt or self.step == 0 or not steps:
            lay.put(PROMPT, prompt)
        elif prompt:
            question = next((f for f in reversed(prompt) if f.name in ("user", "prompt")), prompt[-1])
            line = Line(p).add("prompt ", p.faint)
            line.add(" ".join(question.text[:400].split()), p.muted, cells=max(1, lay.width - 12)).add(" · P", p.faint)
            lay.line(line)
        if not steps and not self.running:
            lay.line(Line(p).add("The agent took no step.", p.warn))
        shown = range(len(steps)) if self.whole else [min(self.step, len(steps) - 1)] if steps else []
        for position in shown:
            if self.whole:
                lay.later(position, _STEP, partial(self._lay_step, lay, position, texts))
            else:
                self._lay_step(lay, position, texts)
        if not self.running and (not shown or shown[-1] == len(steps) - 1):
            lay.put(END, texts.of(END))

    def _lay_step(self, lay: TextLayout, position: int, texts: RolloutTexts) -> None:
        if self.whole:
            head = Line(self.palette).add(f"─ {position + 1} ", self.palette.title)
            lay.line(head.add("─" * max(0, lay.width - head.width), self.palette.border), at=position)
        lay.put(position, texts.of(position))
        if notes := _notes(texts.trajectory.steps[position]):
            lay.line(Line(self.palette).add(" · ".join(notes), self.palette.faint, cells=lay.width), at=position)


def _notes(step: Step) -> list[str]:
    notes = [f"took {duration(step.seconds)}"] if step.seconds >= 1 else []
    notes += [f"took {step.seconds * 1000:.0f} ms"] if 0.05 <= step.seconds < 1 else []
    return notes + ([f"ended by {step.stop_reason}"] if step.stop_reason not in ("stop", "") else [])


def _folds(height: int) -> Mapping[str, int]:
    half, quarter = max(6, height // 2), max(3, height // 4)
    return {"prompt": quarter, "thought": quarter, "argument": half, "result": half, "call": quarter,
            "words": 4 * max(10, height), "text": half, "display": height}  # fmt: skip
