"""The screen of `grpo-tui play`: hostile texts stay literal, random keys do no harm, and turns reach the process."""

from __future__ import annotations

import asyncio
import queue
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual import events

from grpo_tui.engine.launch.play import Continuation, Event, Refusal, Situation
from grpo_tui.envs.tools import Argument, ToolSpec
from grpo_tui.tui.app.bindings import TABLE
from grpo_tui.tui.app.destinations import Playing

from .drive import running, settle
from .test_hostile import NASTY, SPOKEN, check, nasty_record
from .test_random_keys import LEAVES, SIZES

TOOLS = (
    ToolSpec("LOOK", "Looks.", (Argument("x", "integer"), Argument("y", "integer", required=False))),
    ToolSpec(SPOKEN, SPOKEN, (Argument(SPOKEN, "string", SPOKEN, choices=(SPOKEN,)),)),
)


class Process:
    """Answers each command at once, as the process that plays does in its own time."""

    def __init__(self) -> None:
        record = nasty_record()
        self.whole = Situation(record, TOOLS, 0, 3, True)
        self.fresh = Situation(replace(record, trajectory=replace(record.trajectory, steps=())), TOOLS, 0, 3, False)
        self.now = replace(self.whole, over=False)
        self.sent: list[dict[str, Any]] = []
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._events.put(self.fresh)

    def events(self) -> Iterator[Event]:
        while (event := self._events.get()) is not None:
            yield event

    def send(self, **command: Any) -> None:
        self.sent.append(command)
        answers: dict[str, Event | None] = {
            "model": Continuation(self.whole.record, NASTY, 0, True),
            "turn": self.now,
            "leave": None,
        }
        self._events.put(answers.get(next(iter(command)), self.fresh))
        if command.get("turn") == "end":
            self._events.put(self.whole)
            self._events.put(Refusal(NASTY))


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 36), (150, 45)])
async def test_a_rollout_is_played_and_shown_literally(runs: Path, size: tuple[int, int]) -> None:
    process = Process()
    async with running(runs, Playing(runs / "ab12", process), size=size) as app:  # type: ignore[arg-type]
        assert "1 LOOK" in app.text or size[0] < 100
        seen = app.text
        for keys in (("1",), ("escape",), ("enter", *"LOOK(x=1)", "enter"), ("ctrl+r",), ("tab",), ("tab",), ("tab",)):
            seen += await app.press(*keys)
            check(app.text)
            assert all(cell_len(line) == size[0] for line in app.text.splitlines())
        assert "LOOK(x=)" in seen, "the call that the number begins"
        assert "[/red] [bold]x[/bold]" in seen
        assert process.sent[:2] == [{"turn": "LOOK(x=1)"}, {"model": True}]
        check(await app.press("enter", *"end", "enter"))
        check(await app.press("n"))
        assert process.sent[-1] == {"next": True}


async def test_keys_typed_ahead_of_a_turn_reach_it(runs: Path) -> None:
    process = Process()
    async with running(runs, Playing(runs / "ab12", process)) as app:  # type: ignore[arg-type]
        await settle(app.pilot)
        for key in ("1", "5", "enter"):  # as from a terminal, without a pause
            app.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await asyncio.sleep(0.1)
        await settle(app.pilot)
        assert process.sent == [{"turn": "LOOK(x=)5"}]


async def test_random_keys_do_no_harm(runs: Path) -> None:
    keys = sorted({key for row in TABLE for key in row.keys.split(",")} - LEAVES)
    for seed, size in enumerate(SIZES):
        rng = random.Random(seed)
        async with running(runs, Playing(runs / "ab12", Process()), size=size) as app:  # type: ignore[arg-type]
            for _ in range(60):
                await app.burst(*rng.choices(keys, k=3))
                assert app.app._exception is None and not app.app.failure
            await settle(app.pilot)
            check(app.text)
