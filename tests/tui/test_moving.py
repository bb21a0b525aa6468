"""Moving about: back to where one was, straight to a place, and what is typed on the way."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.runs.read.bodies import Bodies
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.filters import completions
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.tui.app.data import Reads
from grpo_tui.tui.app.destinations import Destination, Groups, Live, Runs, Stepper, Trajectories
from grpo_tui.tui.app.rollout_columns import route, shared_beginning, telling
from grpo_tui.tui.app.screens import runs as runs_screen
from grpo_tui.tui.app.screens.base import PagedScreen
from grpo_tui.tui.app.screens.dialogs import ConfirmDialog

from .demo_run import make_run
from .drive import make_app, running, settle


async def test_the_dashboard_and_back_leave_filter_order_and_row(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("f")
        await app.type("reward<0.5")
        await app.press("enter", "s", "j", "j")
        before = (app.screen.list_query, app.screen.table.cursor, app.screen.table.current.n)
        await app.press("v")
        assert app.view == "live"
        await app.press("enter")
        assert app.view == "trajectories" and len(app.app.screen_stack) == 1, "no second list over the first"
        assert (app.screen.list_query, app.screen.table.cursor, app.screen.table.current.n) == before
        await app.press("v", "escape")
        assert (app.screen.list_query, app.screen.table.cursor, app.screen.table.current.n) == before


async def test_a_filter_keeps_the_cursor_on_its_row(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("pagedown")
        n, step = app.screen.table.current.n, app.screen.table.current.step
        await app.press("f")
        await app.type(f"step={step}")
        await app.press("enter")
        assert app.screen.table.current.n == n and app.screen.total < 320
        await app.press("c")
        assert app.screen.table.current.n == n and app.screen.total == 320


async def test_a_name_that_the_run_does_not_hold_is_told_with_the_nearest(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("f")
        await app.type("action:TRAK")
        text = await app.press("enter")
        assert "Nothing matches." in text and "this run has no action 'TRAK'; it has " in text


@pytest.mark.parametrize(
    ("typed", "n", "step"), [("12", 12, 0), ("12/2", 12, 1), ("12/99", 12, None), (" 012 / 1", 12, 0)]
)
async def test_a_number_leads_to_its_trajectory_and_step(run: Path, typed: str, n: int, step: int | None) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("colon")
        await app.type(typed.replace("/", "/"))
        await app.press("enter")
        last = len(app.screen.reads.now.bodies.trajectory(n).trajectory.steps) - 1
        assert (app.view, app.screen.n, app.screen.step) == ("stepper", n, last if step is None else step)
        await app.press("escape")
        assert app.screen.table.current.n == n


async def test_ids_steps_and_screens_are_places_too(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        id_ = app.screen.reads.now.rollouts.rows([5])[0].id
        await app.press("colon")
        await app.type(id_)
        await app.press("enter")
        assert (app.view, app.screen.n) == ("stepper", 5)
        await app.press("colon")
        await app.type("step 7")
        await app.press("enter")
        assert app.view == "trajectories" and app.screen.table.current.step == 7
        await app.press("colon")
        await app.type("live")
        await app.press("enter")
        assert app.view == "live"
        await app.press("colon")
        await app.type("99999")
        text = await app.press("enter")
        assert app.view == "live" and "it has numbers 1 to 320" in text


async def test_a_run_has_one_dashboard(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        for path in ((), ("enter",), ("enter", "enter", "g")):
            await app.press(*path, "colon")
            await app.type("live")
            text = await app.press("enter")
            assert app.view == "live" and "ab12 · rft" in text and len(app.app.screen_stack) == 1


async def test_groups_and_rollouts_have_orders_of_their_own(run: Path) -> None:
    async with running(run.parent, Trajectories(run, Query(sort="advantage"))) as app:
        await app.press("colon", *"groups", "enter")
        assert app.view == "groups" and "of 80" in app.text
        await app.press("s", "s")
        assert app.screen.list_query.sort == "size"
        await app.press("colon", *"205", "enter")
        assert app.view == "stepper" and "206 of 320" in await app.press("L")


async def test_enter_twice_in_the_palette_runs_one_command(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("ctrl+p")
        await app.type("help")
        await app.pilot.pause(0.5)
        await app.pilot.press("enter", "enter", "enter")
        await settle(app.pilot)
        assert app.view == "help"
        await app.press("escape")
        assert app.view == "trajectories"


async def test_groups_begin_at_the_cursor_s_group_and_have_an_order_and_a_filter(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("G")
        group = app.screen.table.current.group
        await app.press("z")
        assert app.view == "groups" and app.screen.table.current.group == group
        everything = int(app.screen.total)
        await app.press("s")
        assert app.screen.list_query.sort == "step"
        while app.screen.list_query.sort != "reward":
            await app.press("s")
        means = [app.screen.table.row(i).mean for i in range(app.screen.table.body_height)]
        assert means == sorted(means, reverse=True)
        await app.press("r")
        assert app.screen.table.row(0).mean == min(r.mean for r in app.screen.table.near())
        await app.press("f")
        await app.type("step<5")
        await app.press("enter")
        assert 0 < app.screen.total < everything


@pytest.mark.parametrize("view", ["runs", "live", "trajectories", "groups", "stepper"])
@pytest.mark.parametrize("width", [80, 100])
async def test_help_back_and_quit_are_told_at_every_width(run: Path, view: str, width: int) -> None:
    starts: dict[str, Destination] = {"runs": Runs(), "live": Live(run), "stepper": Stepper(run, 3)}
    async with running(run.parent, starts.get(view, Trajectories(run)), size=(width, 24)) as app:
        if view == "groups":
            await app.press("z")
        hints = app.text.splitlines()[-1]
        assert " help" in hints and "q quit" in hints and ("esc back" in hints or view == "runs"), hints


async def test_help_shows_all_of_its_sections_on_a_small_screen(run: Path) -> None:
    async with running(run.parent, Trajectories(run), size=(80, 24)) as app:
        seen = [await app.press("question_mark")]
        assert "more lines" in seen[0]
        for _ in range(12):
            seen.append(await app.press("pagedown"))
        shown = "\n".join(seen)
        for part in ("Filters", "parentheses, or, not", "Signs", "o opens all of it"):
            assert part in shown, part
        assert "more lines" not in seen[-1]


async def test_a_dialog_follows_a_resize(run: Path) -> None:
    async with running(run.parent, Trajectories(run), size=(120, 40)) as app:
        app.app.push_screen(ConfirmDialog("Delete everything that was recorded? This cannot be undone.", "Yes"))
        await settle(app.pilot)
        for width, height in ((30, 8), (200, 60), (20, 6)):
            await app.pilot.resize_terminal(width, height)
            await settle(app.pilot)
            region = app.screen.frame.region
            assert region.width <= width and region.height <= height
            assert abs(region.x * 2 + region.width - width) <= 1, "in the middle"


async def test_messages_are_few_and_go_with_their_screen(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        for i in range(7):
            app.screen.say(f"message {i}")
            await app.press()
            assert sum(f"message {j}" in app.text for j in range(7)) <= 2
        assert "message 6" in app.text
        assert "message" not in await app.press("enter")
        await app.press("escape")
        app.screen.say("one more")
        await app.press()
        assert "one more" in app.text
        assert "one more" not in await app.press("f"), "nothing lies over what is typed"


def test_a_filter_is_completed_from_what_the_run_holds() -> None:
    held = {"action": ["TRACK_OBJECT", "GET_PROPERTIES", "BACK TRACK"], "penalty": ["out_of_bounds"]}

    def names(kind: str) -> list[str]:
        return held.get(kind, [])

    assert completions("reward<0.2 and action:tr", names) == ["reward<0.2 and action:TRACK_OBJECT"]
    assert completions("action:back", names) == ['action:"BACK TRACK"']
    assert completions("not pen", names) == ["not penalty:", "not penalised", "not penalties"]
    assert completions("penalty:bounds", names) == ["penalty:out_of_bounds"]
    assert completions("reward<0.", names) == [] == completions("", names)


async def test_tab_completes_and_up_brings_back_what_was_typed(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("f")
        await app.type("action:answ")
        await app.press("tab", "enter")
        assert app.screen.list_query == Query("action:ANSWER")
        await app.press("c", "f", "up", "enter")
        assert app.screen.list_query == Query("action:ANSWER")


def test_routes_count_runs_and_prompts_begin_where_they_differ() -> None:
    assert route(["SEGMENT_OBJECT_AT", "GET_PROPERTIES", "GET_PROPERTIES", "GET_PROPERTIES", "ANSWER"]) == (
        "SEGMENT ▸ GET ×3 ▸ ANSWER"
    )
    prompts = ["You look at an image. Which is red?", "You look at an image. How many?", ""]
    shared = shared_beginning(prompts)
    assert [telling(p, shared) for p in prompts] == ["…Which is red?", "…How many?", ""]
    assert shared_beginning(["What is 2 + 2?", "What is 3 + 3?"]) == 0, "a few shared letters are worth no mark"
    assert shared_beginning(prompts[:1] * 5) == 0, "equal prompts are shown from their beginning"


async def test_a_search_opens_the_rollout_at_the_first_step_that_holds_it(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        reader = app.screen.reads.now
        row = reader.rollouts.page(Query(search='"no mask 7"'), limit=1)[0]
        steps = reader.bodies.trajectory(row.n).trajectory.steps
        wanted = next(i for i, s in enumerate(steps) if "no mask 7" in (s.text + s.observation).casefold())
        await app.press("slash")
        await app.type('"no mask 7"')
        await app.press("enter", "g", "enter")
        assert (app.screen.n, app.screen.step, app.screen.find) == (row.n, wanted, ("no mask 7",))


def places(reader: RunReader, query: Query, text: str) -> list[tuple[int, int]]:
    """(rollout, step) of every match in a list, in order."""
    found = []
    for row in reader.rollouts.page(query, limit=1000):
        steps = reader.bodies.trajectory(row.n).trajectory.steps
        for i, step in enumerate(steps):
            error = step.error if step.error and step.error not in step.observation else ""
            shown = [step.thought, step.observation, error, f"{step.action}({step.arguments})"]
            found += [(row.n, i)] * sum(part.casefold().count(text) for part in shown)
    return found


async def test_n_goes_from_match_to_match_over_the_rollouts_of_the_list_and_back(run: Path) -> None:
    query = Query(filter="step<4", search='"no mask 7"')
    async with running(run.parent, Trajectories(run, query)) as app:
        wanted = places(app.screen.reads.now, query, "no mask 7")
        assert len(wanted) > 6 and len({n for n, _ in wanted}) > 2
        await app.press("g", "enter")
        seen = []
        while len(seen) < len(wanted):
            seen.append((app.screen.n, app.screen.step))
            await app.press("n")
        assert seen == wanted
        assert "No match after this one" in app.text and (app.screen.n, app.screen.step) == wanted[-1]
        for place in reversed(wanted[:-1]):
            await app.press("N")
            assert (app.screen.n, app.screen.step) == place
        await app.press("escape")
        assert app.screen.table.current.n == wanted[0][0]


async def test_what_is_found_in_the_stepper_is_found_further_on_too(run: Path) -> None:
    async with running(run.parent, Stepper(run, 1)) as app:
        wanted = places(app.screen.reads.now, Query(), "there is no mask")
        await app.press("slash")
        await app.type("there is no mask")
        await app.press("enter")
        for place in wanted[:9]:
            assert (app.screen.n, app.screen.step) == place
            await app.press("n")


LONG = "".join(f"line {i} of many words that fill the page\n" for i in range(4000))


@pytest.fixture
def long_run(tmp_path: Path) -> Path:
    """A rollout whose observation is far longer than what is laid out, with a needle late in it and one at its end."""
    folder = make_run(tmp_path, "long", steps=1)
    observation = f"{LONG}here is NEEDLE1\n{LONG}and the needle2 {'x' * 300} needle3"
    steps = (
        Step(0, "…", "think", "READ", {"page": 1}, observation=observation),
        Step(1, "…", "", "ANSWER", {"text": "needle"}),
    )
    trajectory = Trajectory("long", "visual", "p", "g", 0, "Find it.", steps, answer="needle", stop_reason="answer")
    writer = RunWriter(folder)
    writer.trajectories(2, [TrajectoryRecord(trajectory, None, None)])
    writer.close()
    return folder


@pytest.mark.parametrize("body", ["step", "conversation"])
@pytest.mark.parametrize("size", [(150, 45), (60, 20)], ids=str)
async def test_the_text_of_a_match_is_on_screen_however_far_in(
    long_run: Path, size: tuple[int, int], body: str
) -> None:
    async with running(long_run.parent, Trajectories(long_run), size=size) as app:
        await app.press("slash")
        await app.type("needle")
        await app.press("enter", "enter")
        if body == "conversation":
            await app.press("c")
        assert "here is NEEDLE1" in app.text and "characters before" not in app.text
        assert "and the needle2" in await app.press("n")
        assert "needle3" in await app.press("n")
        text = await app.press("n")
        assert app.screen.step == 1 and "ANSWER(text='needle')" in text
        await app.press("N", "N")
        assert "and the needle2" in app.text


async def test_the_next_rollout_of_a_list_is_read_ahead(run: Path) -> None:
    async with running(run.parent, Stepper(run, 5, Query(sort="reward"))) as app:
        for key in "LLHL":
            before = app.screen.n
            row = app.screen.reads.now.rollouts.seek(before, 1, Query(sort="reward"))
            assert key == "H" or app.screen.cursor.kept.get(row.n) is not None
            await app.press(key)
            assert key == "H" or app.screen.n == row.n


async def test_keys_pressed_while_a_rollout_is_read_are_not_lost(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, go_on = Bodies.trajectory, threading.Event()

    def slowly(self: Bodies, id_or_n: str | int) -> TrajectoryRecord:
        go_on.wait(30)
        return read(self, id_or_n)

    monkeypatch.setattr(Bodies, "trajectory", slowly)
    go_on.set()
    async with running(run.parent, Stepper(run, 5)) as app:
        go_on.clear()
        await app.pilot.press("L", "L", "L")
        await app.pilot.pause(0.3)
        assert "reading…" in app.text and "ab12 · 8 of 320" in app.text
        go_on.set()
        await settle(app.pilot)
        assert app.screen.n == 8


@pytest.mark.parametrize(
    ("start", "key", "view"),
    [
        (Runs, "enter", "trajectories"),
        (Runs, "l", "live"),
        (Trajectories, "enter", "stepper"),
        (Groups, "enter", "stepper"),
    ],
)
async def test_a_key_pressed_before_a_list_is_read_acts_once_it_is_there(
    run: Path, monkeypatch: pytest.MonkeyPatch, start: Any, key: str, view: str
) -> None:
    go_on, load, later = threading.Event(), runs_screen.load, Reads.later

    def slowly(*arguments: Any) -> Any:
        go_on.wait(30)
        return load(*arguments)

    async def slow(self: Reads, read: Callable[[RunReader], Any]) -> Any:
        await asyncio.to_thread(go_on.wait, 30)
        return await later(self, read)

    monkeypatch.setattr(runs_screen, "load", slowly)
    monkeypatch.setattr(Reads, "later", slow)
    app = make_app(run.parent, start() if start is Runs else start(run))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press(key)
        go_on.set()
        await settle(pilot)
        assert getattr(app.screen, "view", "") == view


async def test_one_of_a_thing_is_not_plural(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    step = Step(0, "It is 4.", needs_call=False)
    writer.trajectories(1, [TrajectoryRecord(Trajectory("first", "env", "p", "g", 0, "2 + 2?", (step,)))])
    writer.close()
    async with running(tmp_path, Trajectories(tmp_path / "run")) as app:
        views = set()
        for keys in (
            (),
            ("z",),
            ("a",),
            ("escape", "x"),
            ("escape", "escape", "v"),
            ("i",),
            ("escape", "B"),
            ("enter", "enter"),
        ):
            text = await app.press(*keys)
            views.add(app.view)
            assert not (found := re.findall(r"(?<![\d,.])1 [a-z]{3,}s\b", text)), (keys, found)
        assert views == {"trajectories", "groups", "side by side", "scatter", "live", "timeline", "behavior", "stepper"}


async def test_a_timer_that_is_delivered_late_hides_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[Callable[[], object]] = []
    set_timer = PagedScreen.set_timer

    def kept(self: PagedScreen, delay: float, callback: Any = None, **other: Any) -> Any:
        timers.append(callback)
        return set_timer(self, delay, callback, **other)

    monkeypatch.setattr(PagedScreen, "set_timer", kept)
    async with running(run.parent, Stepper(run, 5)) as app:
        for shown in ("step 1/", "step differs"):
            assert timers and shown in app.text
            for late in timers:
                late()
            await app.pilot.pause()
            assert shown in app.text and "reading…" not in app.text
            timers.clear()
            await app.press("d")
