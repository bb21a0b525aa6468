"""Bodies of megabytes: no more of them is written out than is shown, and no key waits for them to be read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.runs.read.bodies import Bodies
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import Step
from grpo_tui.tui.app.calls import brief, summary
from grpo_tui.tui.app.comparison import RolloutComparison, align
from grpo_tui.tui.app.destinations import Stepper
from grpo_tui.tui.app.rollout_fields import step_fields
from grpo_tui.tui.app.screens.diff import DiffPane
from grpo_tui.tui.app.text_search import span_before
from grpo_tui.tui.app.widgets.text_layout import Flow

from .drive import running


class Endless(list[Any]):
    """A list of which nobody reaches the end."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield {"a": 1, "b": ["x"]}


def test_of_an_argument_no_more_is_written_than_is_shown() -> None:
    step = Step(0, "", action="RUN", arguments={"items": Endless(), "seed": 3})
    assert summary(step) == "RUN(items=[{'a': 1, 'b': ['x']}, …, seed=3)"
    large = Step(0, "", action="RUN", arguments={"items": Endless(), "code": "x" * 5_000_000})
    assert summary(large) == "RUN" and sum(len(f.text) for f in step_fields(large)) < 5_030_000
    many = Step(0, "", action="RUN", arguments={f"argument{i}": i for i in range(100_000)})
    assert len(summary(many)) < 500 and summary(many).endswith("…)")


def test_a_value_is_written_as_python_does() -> None:
    assert brief({"a": [1, 2.5, None, True], "b": {"c": "d'e"}}) == """{'a': [1, 2.5, None, True], 'b': {'c': "d'e"}}"""
    nested: Any = []
    for _ in range(5_000):
        nested = [nested]
    assert "…" in brief(nested)


def test_large_calls_are_aligned_without_writing_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "action_key", property(lambda step: pytest.fail("written out")))
    large = {"code": "x" * 1_000_000, "items": list(range(10_000))}
    steps = [Step(i, "", action="RUN", arguments={**large, "i": i}) for i in range(20)]
    assert align(steps, steps[5:]) == [
        *((i, None) for i in range(5)),
        *((i + 5, i) for i in range(15)),
    ]


def test_the_last_match_of_a_large_text_is_found_from_its_end() -> None:
    text = "word " * 200_000 + "straß" + "e"
    assert span_before(text, ["strasse"], len(text)) == (1_000_000, 1_000_006)
    assert span_before(text, ["word"], 12) == (5, 9)
    assert span_before("xx" + "é" * 200_000, ["xx"], 200_002) == (0, 2)


async def test_a_key_is_answered_while_the_diff_reads(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, read = threading.Event(), Bodies.trajectory

    def slow(self: Bodies, ref: str | int) -> Any:
        assert threading.current_thread() is not threading.main_thread(), "read on the thread of the screen"
        go_on.wait(20)
        return read(self, ref)

    async with running(run.parent, Stepper(run, 3)) as app:
        monkeypatch.setattr(Bodies, "trajectory", slow)
        try:
            await app.pilot.press("d")
            while app.view != "diff" or "reading…" not in app.text:
                await app.pilot.pause(0.02)
            await app.pilot.press("l", "j", "right_square_bracket", "question_mark")
            assert app.view == "help"
            await app.pilot.press("escape")
            assert app.view == "diff"
        finally:
            go_on.set()
        assert "steps differ" in await app.press("j")


async def test_the_diff_lays_out_no_more_than_it_shows(run: Path) -> None:
    with RunReader(run) as reader:
        record = reader.bodies.trajectory(1)
    steps = tuple(
        Step(i, "", thought="a b " * 20_000, action="RUN", arguments={"i": i}, observation="c d " * 20_000)
        for i in range(200)
    )
    other = tuple(replace(step, thought=step.thought.replace("b", "e")) for step in steps)
    sides = [replace(record, trajectory=replace(record.trajectory, steps=s)) for s in (steps, other)]
    async with running(run.parent, Stepper(run, 1)) as app:
        await app.press("d")
        pane: DiffPane = app.screen.body
        pane.put(RolloutComparison.of(sides[0], sides[1], (1, 2)))
        await app.press()
        assert "200 steps differ" in await app.press("l")
        flow = pane.lines
        assert isinstance(flow, Flow) and sum(len(part.lines or ()) for part in flow.parts) < 2_000
        assert any("✂ 74,000 more characters" in line.plain for part in flow.parts for line in part.lines or ())
        assert pane.at == 1 and flow[flow.start(pane._heads[1])].plain.startswith("▸")
        assert flow[flow.start(pane._heads[0])].plain.startswith(" ")
