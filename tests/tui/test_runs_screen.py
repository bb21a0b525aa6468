"""Keys of the list of runs."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path

import pytest

from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.health.headline import REWARD, Headline
from grpo_tui.engine.runs.types import RewardBreakdown, RunInfo, Step, Trajectory, TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.app import run_list
from grpo_tui.tui.app.destinations import Branching, Runs
from grpo_tui.tui.app.screens import runs as runs_screen

from .demo_run import EPOCH, make_run
from .drive import SIZE, make_app, running, screen_text


async def test_shows_what_each_run_is_and_how_it_ended(runs: Path) -> None:
    async with running(runs) as app:
        lines = {
            name: next(line for line in app.text.splitlines() if f" {name} " in line)
            for name in ("ab12", "cd34", "ef56")
        }
        assert "✓ finished" in lines["ab12"] and "40/40" in lines["ab12"] and "rft" in lines["ab12"]
        assert "■ stopped" in lines["cd34"] and "12/60" in lines["cd34"]
        assert "✗ crashed" in lines["ef56"], "a dead process is found by looking, whatever its file says"
        assert any(c in lines["ab12"] for c in "▁▂▃▄▅▆▇█")
        assert "90 %" in lines["ab12"]


async def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    async with running(tmp_path / "nothing") as app:
        assert "No runs yet." in app.text
        assert "grpo-tui train" in app.text


async def test_cursor_keys(runs: Path) -> None:
    async with running(runs) as app:
        assert app.screen.table.cursor == 0
        await app.press("j")
        assert app.screen.table.cursor == 1
        await app.press("down")
        assert app.screen.table.cursor == 2
        await app.press("j")
        assert app.screen.table.cursor == 2, "the end holds"
        await app.press("k", "up")
        assert app.screen.table.cursor == 0
        await app.press("G")
        assert app.screen.table.cursor == 2
        await app.press("g")
        assert app.screen.table.cursor == 0
        await app.press("end")
        assert app.screen.table.cursor == 2
        await app.press("home", "pagedown")
        assert app.screen.table.cursor == 2
        await app.press("pageup")
        assert app.screen.table.cursor == 0


async def test_enter_opens_trajectories_of_an_ended_run_and_the_dashboard_of_a_running_one(own_runs: Path) -> None:
    async with running(own_runs) as app:
        running_at = next(i for i, r in enumerate(app.screen.rows) if r.info.id == "two")
        app.screen.table.move_to(running_at)
        await app.press("enter")
        assert app.view == "live"
        await app.press("escape")
        assert app.view == "runs"
        app.screen.table.move_to(1 - running_at)
        await app.press("enter")
        assert app.view == "trajectories"


async def test_l_and_t_choose_the_view_and_it_is_remembered(runs: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    async with running(runs, memory=memory) as app:
        await app.press("l")
        assert app.view == "live"
        await app.press("escape", "t")
        assert app.view == "trajectories"
        await app.press("escape", "l", "escape")
    async with running(runs, memory=memory) as app:
        await app.press("enter")
        assert app.view == "live", "enter opens what was last looked at"


async def test_mark_and_compare(runs: Path) -> None:
    async with running(runs) as app:
        text = await app.press("c")
        assert app.view == "runs" and "Mark at least two runs" in text
        await app.press("space", "m")
        assert "● 2 marked" in app.text
        await app.press("k", "space")
        assert "● 1 marked" in app.text, "space on a marked run unmarks it"
        await app.press("g", "j", "space", "c")
        assert app.view == "compare"


async def test_filter_keeps_matching_runs(runs: Path) -> None:
    async with running(runs) as app:
        await app.press("f")
        await app.type("crash")
        text = await app.press("enter")
        assert "ef56" in text and "ab12" not in text
        await app.press("f")
        await app.press(*["backspace"] * 5)
        await app.type("zzz")
        assert "No run matches." in await app.press("enter")
        await app.press("f")
        await app.type("more")
        text = await app.press("escape")
        assert "No run matches." in text, "esc leaves the filter as it was"


async def test_sort_by_key_and_by_click(runs: Path) -> None:
    async with running(runs) as app:
        assert [r.info.id for r in app.screen.rows] == ["ef56", "cd34", "ab12"], "newest first"
        await app.press("s")
        assert app.screen.sorting == ("status", False)
        await app.press("s")
        assert app.screen.sorting == ("success", True)
        text = await app.click("run    ", 1)
        assert app.screen.sorting[0] == "id" and "run▼" in text
        await app.click("run▼", 1)
        assert [r.info.id for r in app.screen.rows] == ["ab12", "cd34", "ef56"]


async def test_rename_asks_and_renames(own_runs: Path) -> None:
    async with running(own_runs) as app:
        app.screen.table.move_to(next(i for i, r in enumerate(app.screen.rows) if r.info.id == "one"))
        await app.press("R")
        await app.type("best")
        text = await app.press("enter")
        assert "Rename one to “best”?" in text
        await app.press("n")
        assert look(own_runs / "one").name == ""
        await app.press("R")
        await app.type("best")
        await app.press("enter")
        await app.press("y")
        assert look(own_runs / "one").name == "best"
        assert "best" in await app.press("r")


async def test_delete_asks_and_never_deletes_a_running_run(own_runs: Path) -> None:
    async with running(own_runs) as app:
        app.screen.table.move_to(next(i for i, r in enumerate(app.screen.rows) if r.info.id == "two"))
        text = await app.press("D")
        assert "stop it first" in text and (own_runs / "two").exists()
        app.screen.table.move_to(next(i for i, r in enumerate(app.screen.rows) if r.info.id == "one"))
        text = await app.press("D")
        assert "Delete one with its record" in text
        await app.press("enter")
        assert (own_runs / "one").exists(), "the cursor starts on no"
        await app.press("delete", "k", "enter")
        await app.press("r")
        assert not (own_runs / "one").exists()
        assert len(app.screen.rows) == 1


async def test_after_a_deletion_the_cursor_stays_in_its_place(tmp_path: Path) -> None:
    for seed in range(4):
        make_run(tmp_path / "runs", f"r{seed}", steps=1, seed=seed)
    async with running(tmp_path / "runs") as app:
        await app.press("j", "j", "D", "y")
        assert len(app.screen.rows) == 3 and app.screen.table.cursor == 2


async def test_marked_runs_are_compared_while_the_list_is_read_again(own_runs: Path) -> None:
    async with running(own_runs) as app:
        await app.press("space", "space")
        app.screen.action_reload()
        await app.press("c")
        assert app.view == "compare" and len(app.screen.runs) == 2


async def test_stop_asks_the_run(own_runs: Path) -> None:
    async with running(own_runs) as app:
        app.screen.table.move_to(next(i for i, r in enumerate(app.screen.rows) if r.info.id == "one"))
        assert "one is finished." in await app.press("x")
        app.screen.table.move_to(next(i for i, r in enumerate(app.screen.rows) if r.info.id == "two"))
        await app.press("x")
        await app.press("y")
        assert [p for p in (own_runs / "two" / "control").glob("*.json") if '"stop"' in p.read_text()]


async def test_copy_gives_the_id(runs: Path) -> None:
    async with running(runs) as app:
        await app.press("y")
        assert app.app.clipboard == "ef56"


async def test_a_run_whose_name_is_not_text_can_be_copied_and_opened(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "plain", steps=1)
    os.rename(tmp_path / "runs" / "plain", os.fsencode(tmp_path / "runs") + b"/run\xff")
    async with running(tmp_path / "runs") as app:
        await app.press("y")
        assert app.app.clipboard == "run?"
        await app.press("enter")
        assert app.view == "trajectories"


async def test_a_new_run_appears_and_the_cursor_stays_on_its_run(own_runs: Path) -> None:
    async with running(own_runs) as app:
        here = app.screen.table.current.info.id
        make_run(own_runs, "newer", steps=1, seed=9)
        await app.press("r")
        await app.pilot.pause(0.1)
        await app.press("r")
        assert len(app.screen.rows) == 3
        assert app.screen.table.current.info.id == here


async def test_first_hint_goes_away_once_a_run_was_opened(runs: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    async with running(runs, Runs(), memory=memory) as app:
        assert "enter opens a run" in app.text
        await app.press("t")
    async with running(runs, Runs(), memory=memory) as app:
        assert "enter opens a run" not in app.text


async def test_a_branch_opens_with_the_value_of_its_step(own_runs: Path) -> None:
    branch = own_runs / "branch-one-3-1-0a1b2c3d"
    branch.mkdir()
    at = f"{{run: {own_runs / 'one'}, rollout: 3, step: 1}}"
    (branch / "config.yaml").write_text(f"mode: eval\nevaluation: {{subject: one@base, samples: 2, branch: {at}}}\n")
    (branch / "run.json").write_text(json.dumps({"id": branch.name, "mode": "eval", "created": EPOCH + 10**6}))
    writer = RunWriter(branch)
    for n, side in enumerate(("before", "before", "after", "after")):
        steps = (Step(0, "x", action="ANSWER"),)
        made = Trajectory(f"{side}-{n}", "visual", "p", side, n, "Q?", steps, correct=n > 1, extra={"branch": side})
        writer.trajectories(0, [TrajectoryRecord(made, RewardBreakdown(made.id, (), float(n > 1)), split="eval")])
    writer.status("finished", step=0)
    writer.close()
    async with running(own_runs) as app:
        assert "branch-one-3" in app.text.splitlines()[2], "the newest run is chosen"
        await app.press("enter")
        await app.until("step 1 of rollout 3", "value  ")  # the value is read by the clock
        await app.press("escape", "t")
        assert app.screen.value is not None


async def test_a_branch_whose_configuration_is_not_written_yet_waits(own_runs: Path) -> None:
    branch = own_runs / "branch-one-3-1-0a1b2c3d"
    branch.mkdir()
    (branch / "run.json").write_text(json.dumps({"id": branch.name, "mode": "eval", "created": time.time()}))
    async with running(own_runs, Branching(branch)) as app:
        await app.until("loading the model and the data…")  # read by the clock


async def test_records_that_take_longer_than_a_reload_are_read_once_and_shown(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def slowly(info: RunInfo) -> Headline:
        read.append(info.id)
        time.sleep(0.3)
        return Headline({REWARD: 0.77})

    monkeypatch.setattr(run_list.headline, "of_status", lambda info: None)
    monkeypatch.setattr(runs_screen, "looked_into", slowly)
    monkeypatch.setattr(runs_screen, "RELOAD_SECONDS", 0.05)
    app = make_app(own_runs, Runs())
    async with app.run_test(size=SIZE) as pilot:
        for _ in range(100):
            await asyncio.sleep(0.05)
            await pilot.pause()
            if screen_text(app).count("0.77") >= 2:
                break
        assert sorted(read) == ["one", "two"]


async def test_a_reload_that_began_before_a_record_was_read_keeps_what_was_read(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    loads: list[int] = []
    begun, all_read = threading.Event(), threading.Event()

    def looked(info: RunInfo) -> Headline:
        read.append(info.id)
        begun.wait(20)
        if len(read) == 2:
            all_read.set()
        return Headline({REWARD: 0.77})

    def slowly(folder: Path) -> list[tuple[RunInfo, Headline | None]]:
        loads.append(1)
        found = known_load(folder)
        if len(loads) == 2:  # while all records are read
            begun.set()
            all_read.wait(20)
            time.sleep(0.1)
        return found

    known_load = runs_screen.load
    monkeypatch.setattr(run_list.headline, "of_status", lambda info: None)
    monkeypatch.setattr(runs_screen, "looked_into", looked)
    monkeypatch.setattr(runs_screen, "load", slowly)
    monkeypatch.setattr(runs_screen, "RELOAD_SECONDS", 0.05)
    app = make_app(own_runs, Runs())
    async with app.run_test(size=SIZE) as pilot:
        while len(loads) < 4:
            await asyncio.sleep(0.05)
            await pilot.pause()
        assert sorted(read) == ["one", "two"]
