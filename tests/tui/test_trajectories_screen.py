"""Keys of the list of trajectories, and of the groups it folds into."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.runs.read.groups import GroupList
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.read.rollouts import Rollouts
from grpo_tui.engine.runs.search import views
from grpo_tui.engine.runs.search.query import EVERYTHING, Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.tui.app.destinations import Behavior, Destination, Groups, Scatter, Trajectories
from grpo_tui.tui.app.screens import groups as groups_screen

from .demo_run import make_run
from .drive import running


async def test_shows_rows_and_how_many(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        assert "1 of 320" in app.text
        assert "SEGMENT ▸ GET ▸ AN" in app.text
        assert "What colour is the o" in app.text


async def test_a_wide_name_is_cut_by_its_cells(tmp_path: Path) -> None:
    run = make_run(tmp_path, "実験一二三四五", steps=1)
    async with running(tmp_path, Trajectories(run)) as app:
        assert "─ 実験一二三四五 · trajectories" in app.text


async def test_cursor_reaches_the_last_row_and_reads_only_pages(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        table = app.screen.table
        await app.press("j", "down")
        assert table.cursor == 2 and table.current.n == 3
        await app.press("k", "up", "up")
        assert table.cursor == 0
        await app.press("pagedown")
        assert table.cursor == table.body_height - 1
        await app.press("pageup")
        assert table.cursor == 0
        await app.press("ctrl+d", "ctrl+u", "ctrl+f", "ctrl+b")
        assert table.cursor == 0
        await app.press("G")
        assert table.current.n == 320 and "320 of 320" in app.text
        await app.press("home", "end", "g")
        assert table.current.n == 1


async def test_enter_before_the_row_is_there_opens_it_when_it_comes(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        table, asked = app.screen.table, list[int]()

        async def asks(offset: int, limit: int) -> None:
            asked.append(offset)

        rows, table._fetch = list(table._pages[0]), asks
        table.reset(320, 2)
        await app.press("enter")
        assert app.view == "trajectories" and asked == [0]
        table.deliver(0, rows)
        await app.press()
        assert app.view == "stepper" and app.screen.n == 3
    async with running(run.parent, Trajectories(run)) as app:
        table = app.screen.table
        rows, table._fetch = list(table._pages[0]), asks
        table.reset(320, 2)
        await app.press("enter", "j")
        table.deliver(0, rows)
        await app.press()
        assert app.view == "trajectories", "the cursor has moved on"


async def test_filter_expression(run: Path) -> None:
    with RunReader(run) as reader:
        expected = reader.rollouts.count(Query("penalty:missing_prerequisite and reward<0.2"))
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("f")
        await app.type("penalty:missing_prerequisite and reward<0.2")
        text = await app.press("enter")
        assert f"1 of {expected}" in text and 0 < expected < 320
        assert all(app.screen.table.row(i).penalties and app.screen.table.row(i).reward < 0.2 for i in range(expected))
        assert "1 of 320" in await app.press("c")


async def test_a_wrong_filter_is_explained_while_typing_and_not_accepted(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("f")
        text = await app.type("rewrd<0.2")
        assert "✗" in text and "reward" in text.split("rewrd<0.2", 1)[1], "the nearest right name is given"
        await app.press("enter")
        assert app.screen.query("#prompt-bar"), "the bar stays until it is right"
        assert "1 of 320" in await app.press("escape")


async def test_search_over_everything(run: Path) -> None:
    with RunReader(run) as reader:
        expected = reader.rollouts.count(Query(search="no mask 7"))
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("slash")
        await app.type("no mask 7")
        text = await app.press("enter")
        assert f"1 of {expected}" in text and "“no mask 7”" in text and 0 < expected < 320
        await app.press("slash")
        await app.press(*["backspace"] * 9)
        await app.type("zebra")
        assert "Nothing matches." in await app.press("enter")


async def test_sorting_by_key_click_and_reverse(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        table = app.screen.table

        def rewards() -> list[float]:
            return [table.row(i).reward for i in range(20)]

        text = await app.press("s")
        assert "reward▲" in text and rewards() == sorted(rewards())
        text = await app.press("r")
        assert "reward▼" in text and rewards() == sorted(rewards(), reverse=True)
        await app.click("turns  tokens", 2)
        assert app.screen.list_query.sort == "turns"
        await app.click("turns▼  tokens", 2)
        assert not app.screen.list_query.descending


async def test_histogram_hides_and_a_click_on_a_bar_filters(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        histogram = app.screen.histogram
        tallest = max(range(len(histogram.bins)), key=lambda i: histogram.bins[i][2])
        bottom = histogram.region.y + histogram.region.height - 2
        start, end, _ = next(h for h in histogram.lines[-2].hits if h[2] == ("bin", tallest))
        await app.pilot.click(offset=(histogram.region.x + start, bottom))
        text = await app.press("g")
        assert "reward>=" in text and f"of {histogram.bins[tallest][2]} " in text
        assert end > start
        await app.press("b")
        assert not histogram.shown
        await app.press("b")
        assert histogram.shown


async def test_enter_opens_the_stepper_on_the_row_and_in_the_order_of_the_list(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("s", "r", "j")
        here, following = app.screen.table.current.n, app.screen.table.row(2).n
        await app.press("enter")
        assert app.view == "stepper" and app.screen.n == here
        await app.press("L")
        assert app.screen.n == following, "next means next in the list that it was opened from"
        await app.press("escape")
        assert app.view == "trajectories" and app.screen.table.current.n == following, "the cursor follows"


@pytest.mark.parametrize("key", ["l", "right"])
async def test_other_keys_that_open(run: Path, key: str) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press(key)
        assert app.view == "stepper"


async def test_click_selects_and_second_click_opens(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        region = app.screen.table.region
        await app.pilot.click(offset=(region.x + 20, region.y + 4))
        await app.press()
        assert app.screen.table.cursor == 3
        await app.pilot.click(offset=(region.x + 20, region.y + 4))
        await app.press()
        assert app.view == "stepper" and app.screen.n == 4


async def test_wheel_scrolls(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        region = app.screen.table.region
        await app.pilot._post_mouse_events(
            [__import__("textual.events").events.MouseScrollDown], offset=(10, region.y + 5)
        )
        await app.press()
        assert app.screen.table.top == 3


async def test_folding_into_groups_and_back(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        text = await app.press("z")
        assert app.view == "groups" and "of 80" in text and "rollouts" in text
        await app.press("j", "G", "g", "pagedown", "pageup", "k", "j")
        await app.press("enter")
        assert app.view == "stepper" and app.screen.n == 5
        await app.press("escape", "z")
        assert app.view == "trajectories"


def test_groups_are_folded_exactly(run: Path) -> None:
    with RunReader(run) as reader:
        groups = reader.rollouts.groups()
        assert groups.count() == 80
        for row in groups.page(10, 5):
            members = reader.rollouts.group(row.group)
            rewards = [m.reward or 0.0 for m in members]
            mean = sum(rewards) / len(rewards)
            assert row.size == len(members) == 4
            assert row.mean == pytest.approx(mean)
            assert row.std == pytest.approx((sum((r - mean) ** 2 for r in rewards) / 3) ** 0.5, abs=1e-6)
            assert row.correct == sum(bool(m.correct) for m in members)
            assert row.first_n == min(m.n for m in members)
        wrong = reader.rollouts.groups(Query("step>=39 and not correct"))
        expected = {r.group for r in reader.rollouts.page(Query("step>=39 and not correct"), limit=100)}
        assert {g.group for g in wrong.page(0, 100)} == expected and wrong.count() == len(expected)


async def test_follow_stays_at_the_newest(tmp_path: Path) -> None:
    from grpo_tui.engine.runs.write.writer import RunWriter

    run = make_run(tmp_path / "runs", "growing", steps=2)
    with RunReader(run) as reader:
        record = reader.bodies.trajectory(1)
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("F")
        assert "following" in app.text and app.screen.table.current.n == 16
        writer = RunWriter(run)
        writer.trajectories(3, [record] * 5)
        writer.close()
        await app.screen._poll()
        await app.press()
        assert app.screen.table.current.n == 21


async def test_groups_grow_with_the_run_and_the_cursor_stays_on_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, "growing", steps=2)
    with RunReader(run) as reader:
        record = reader.bodies.trajectory(1)
    other = replace(record, trajectory=replace(record.trajectory, group="new", id="new-0"))
    async with running(tmp_path, Groups(run)) as app:
        await app.press("j")
        before, chosen = app.screen.total, app.screen.table.current.group
        await app.screen._grow()
        writer = RunWriter(run)
        writer.trajectories(3, [other] * 5)
        writer.close()
        await app.screen._grow()
        await app.press()
        assert app.screen.total == before + 1 and app.screen.table.current.group == chosen
        await app.press("G")
        assert app.screen.table.current.group == "new" and app.screen.table.current.size == 5


@pytest.mark.parametrize("place", [Scatter, Behavior])
async def test_a_scatter_plot_and_a_table_of_behaviour_grow_with_the_run(
    place: type[Scatter | Behavior], tmp_path: Path
) -> None:
    run = make_run(tmp_path, "growing", steps=2)
    with RunReader(run) as reader:
        record = reader.bodies.trajectory(1)

    def shown(screen: Any) -> int:
        return screen.plot.cloud.rollouts if place is Scatter else sum(b.rollouts for b in screen.found)

    async with running(tmp_path, place(run)) as app:
        await app.screen._grow()
        assert shown(app.screen) == 16
        writer = RunWriter(run)
        writer.trajectories(3, [record] * 5)
        writer.close()
        app.screen.x = "turns"  # the new ones have no tokens
        await app.screen._grow()
        await app.press()
        assert shown(app.screen) == 21


async def test_the_histogram_grows_with_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "growing", steps=2)
    with RunReader(run) as reader:
        record = reader.bodies.trajectory(1)
    async with running(tmp_path, Trajectories(run)) as app:
        assert sum(n for _, _, n in app.screen.histogram.bins) == 16
        writer = RunWriter(run)
        writer.trajectories(3, [record] * 5)
        writer.close()
        await app.screen._poll()
        assert sum(n for _, _, n in app.screen.histogram.bins) == 21


async def test_export_copy_and_going_to_the_dashboard(run: Path, tmp_path: Path) -> None:
    own = make_run(tmp_path / "runs", "own", steps=2)
    async with running(own.parent, Trajectories(own)) as app:
        await app.press("e")
        file = next((own / "exports").iterdir())
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert rows[0]["n"] == 1 and len(rows) == 16
        await app.press("y")
        assert app.app.clipboard == rows[0]["id"]
        await app.press("v")
        assert app.view == "live"


async def test_an_empty_run_says_what_will_come(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "fresh"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"id": "fresh"}')
    async with running(run.parent, Trajectories(run)) as app:
        assert "No trajectory was recorded yet." in app.text
        await app.press("j", "k", "G", "g", "enter", "y", "e", "s", "r", "z")
        assert "No group to show." in app.text


async def test_the_histogram_says_that_it_is_read_and_when_there_is_nothing(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        assert "█" in app.text and "reading…" not in app.text
        app.screen.histogram.put([])
        assert "no rewards to show" in await app.press()
        app.screen.histogram._read = False  # as before the first answer
        app.screen.histogram.changed()
        text = await app.press()
        assert "reading…" in text and "no rewards to show" not in text


async def test_opens_where_training_begins(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "evaluated"
    writer = RunWriter(folder)
    for step, split, many in ((0, "eval", 200), (1, "train", 40)):
        steps = (Step(0, "It is red.", action="ANSWER"),)
        made = [
            Trajectory(f"{split}{i}", "visual", "p", f"{split}.{i // 4}", i % 4, "Which colour?", steps, answer="red")
            for i in range(many)
        ]
        writer.trajectories(step, [TrajectoryRecord(t, split=split) for t in made])
    assert writer.flush(20)
    writer.close()
    async with running(folder.parent, Trajectories(folder)) as app:
        assert app.screen.table.current.n == 201 and app.screen.table.current.split == "train"
        assert "201 of 240" in app.text
        assert app.screen.table.top == 200, "the rows before it are above"
        assert "1 of 240" in await app.press("g")
        await app.press("f")
        await app.type("step<2")
        assert "1 of 240" in await app.press("enter"), "what was asked for begins with its first row"


async def test_rows_are_shown_before_they_are_counted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, may_count = threading.Event(), threading.Event()
    count = Rollouts.count

    def slow(self: Rollouts, query: Query = EVERYTHING) -> Any:
        if query.filter:  # not of all, which is looked at every second
            counting.set()
            assert may_count.wait(20)
        return count(self, query)

    monkeypatch.setattr(views, "SMALL", 20)
    async with running(run.parent, Trajectories(run)) as app:
        monkeypatch.setattr(Rollouts, "count", slow)
        await app.press("f")
        await app.pilot.press(*"step", "greater_than_sign", "3", "enter")
        while not counting.is_set():
            await app.pilot.pause()
        assert "1 of ≥ 21" in app.text and app.screen.table.current.step == 4
        may_count.set()
        assert "1 of 296" in await app.press("j", "k")


def test_the_first_groups_are_found_without_listing_all(run: Path) -> None:
    for filter_, search in (
        ("", ""),
        ("reward<0.5", ""),
        ("", "circle"),
        ("step>=39 and not correct", ""),
        ("n<0", ""),
    ):
        with RunReader(run) as reader:
            first = reader.rollouts.groups(Query(filter_, search)).first(7)
            every = reader.rollouts.groups(Query(filter_, search))
            assert first == every.page(0, 7) == every.first(7)


async def test_groups_are_shown_before_they_are_counted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, may_count = threading.Event(), threading.Event()
    count = GroupList.count

    def slow(self: GroupList) -> int:
        counting.set()
        assert may_count.wait(20)
        return count(self)

    monkeypatch.setattr(groups_screen, "PAGE", 16)
    monkeypatch.setattr(GroupList, "count", slow)
    async with running(run.parent, Trajectories(run)) as app:
        await app.pilot.press("z")
        while not counting.is_set():
            await app.pilot.pause()
        assert "1 of ≥ 16" in app.text
        await app.pilot.press("j", "j")
        may_count.set()
        for _ in range(200):
            if "of 80" in await app.press():
                break
        assert "3 of 80" in app.text


async def test_answers_in_words_stand_where_routes_would(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "words"
    writer = RunWriter(run)
    texts = ["The capital is Paris.", "It is Rome, cut off in the mid"]
    records = [
        TrajectoryRecord(
            Trajectory(
                id=f"t{i}", env="dataset", prompt_id="p", group="g", rollout=i, prompt="Capital of France?",
                steps=(Step(0, text, action="ANSWER", arguments={"text": text}),), stop_reason="answer",
                answer=text if i == 0 else None, judged_by="rw", env_reward=0.0,
            )
        )
        for i, text in enumerate(texts)
    ]  # fmt: skip
    writer.trajectories(1, records)
    writer.close()
    async with running(run.parent, Trajectories(run), size=(120, 30)) as app:
        head = next(line for line in app.text.splitlines() if "reward" in line and "prompt" in line)
        assert "answer" in head and "route" not in head and "turns" not in head
        assert "The capital is Paris." in app.text and "It is Rome, cut off" in app.text
        assert "ANSWER" not in app.text and "✗" not in app.text


@pytest.mark.parametrize("place", [Trajectories, Groups])
async def test_coming_back_to_a_search_that_finds_no_words_crashes_nothing(
    run: Path, place: Callable[[Path], Destination]
) -> None:
    async with running(run.parent, place(run)) as app:
        await app.press("slash", "asterisk", "enter")
        assert "give at least one word" in app.text
        await app.press("colon", "5", "enter")
        assert app.view == "stepper"
        assert "give at least one word" in await app.press("escape")
