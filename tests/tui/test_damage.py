"""Runs that were killed, damaged or half deleted open as far as they can and say so; viewers harm nothing."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.tui.app.destinations import Behavior, Destination, Groups, Live, Runs, Stepper, Trajectories

from .demo_run import make_run
from .drive import running

ALL_VIEWS = ("live", "list", "step")


def start(run: Path, view: str) -> Destination:
    return Live(run) if view == "live" else Trajectories(run) if view == "list" else Stepper(run, 1)


@pytest.fixture
def run_copy(run: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(run, copy)
    return copy


@pytest.mark.parametrize("view", ALL_VIEWS)
async def test_a_damaged_database_opens_with_a_sentence(run_copy: Path, view: str) -> None:
    database = run_copy / "record.sqlite"
    for name in ("record.sqlite-wal", "record.sqlite-shm"):
        (run_copy / name).unlink(missing_ok=True)
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(size // 3)
        file.write(b"\xde\xad" * (size // 4))
    async with running(run_copy.parent, start(run_copy, view)) as app:
        await app.press("j", "k", "l", "h", "G", "g")
        assert "Traceback" not in app.text


@pytest.mark.parametrize("view", ALL_VIEWS)
async def test_a_file_that_is_no_database_says_so(run_copy: Path, view: str) -> None:
    for name in ("record.sqlite-wal", "record.sqlite-shm"):
        (run_copy / name).unlink(missing_ok=True)
    (run_copy / "record.sqlite").write_bytes(b"this is not a database at all" * 400)
    async with running(run_copy.parent, start(run_copy, view)) as app:
        assert "cannot be" in app.text, app.text


@pytest.mark.parametrize("view", ALL_VIEWS)
async def test_a_record_of_another_version_is_named_in_one_sentence(run_copy: Path, view: str) -> None:
    with sqlite3.connect(run_copy / "record.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    async with running(run_copy.parent, start(run_copy, view)) as app:
        assert "newer grpo-tui" in " ".join(app.text.replace("│", " ").split()), app.text


async def test_a_missing_image_is_said_in_its_place(run_copy: Path) -> None:
    shutil.rmtree(run_copy / "images")
    async with running(run_copy.parent, Stepper(run_copy, 1)) as app:
        assert "is missing" in app.text and "SEGMENT_OBJECT_AT" in app.text


async def test_a_run_without_any_file_but_its_folder_is_only_not_listed(tmp_path: Path) -> None:
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    make_run(tmp_path / "runs", "good", steps=1)
    async with running(tmp_path / "runs") as app:
        assert "1 run" in app.text and "good" in app.text


async def test_a_run_that_is_deleted_while_it_is_shown_crashes_nothing(run_copy: Path) -> None:
    async with running(run_copy.parent, Trajectories(run_copy)) as app:
        shutil.rmtree(run_copy)
        await app.press("j", "enter", "L", "t", "escape", "s", "f")
        await app.press("escape", "v")
        assert app.view in ("trajectories", "live")


@pytest.mark.parametrize("place", [Live, Trajectories, Groups, Behavior, lambda run: Stepper(run, 3)])
async def test_a_run_that_is_deleted_from_the_list_while_a_screen_of_it_waits_crashes_nothing(
    own_runs: Path, place: Callable[[Path], Destination]
) -> None:
    run = own_runs / "one"
    async with running(own_runs, place(run)) as app:
        app.app.open(Runs())
        await app.press()
        app.screen.table.move_to(next(i for i, r in enumerate(app.screen.rows) if r.info.id == "one"))
        await app.press("D", "y")
        assert not run.exists()
        await app.press("escape", "j", "s", "L", "m")
        await asyncio.sleep(1.2)  # what follows the run by the clock
        await app.press()
        assert app.view != "runs" and app.app._exception is None


def digest(run: Path) -> str:
    with RunReader(run) as reader:
        rows = reader.rollouts.page(limit=1000)
        whole = [repr(reader.bodies.trajectory(r.n)) for r in rows[::20]]
    return hashlib.sha256("".join([*map(repr, rows), *whole]).encode()).hexdigest()


async def test_two_viewers_at_once_and_neither_changes_the_record(run_copy: Path) -> None:
    before = digest(run_copy)
    async with running(run_copy.parent, Trajectories(run_copy)) as one, running(run_copy.parent, Live(run_copy)) as two:
        await one.press("j", "enter", "l")
        await two.press("m", "w", "enter", "G")
        assert "step" in one.text and "320 of 320" in two.text
    assert digest(run_copy) == before


def test_a_viewer_killed_while_it_reads_harms_nothing(run_copy: Path) -> None:
    before = digest(run_copy)
    code = (
        "import sys; from pathlib import Path; from grpo_tui.engine.runs.read.reader import RunReader\n"
        "r = RunReader(Path(sys.argv[1])); print('reading', flush=True)\n"
        "while True: [r.bodies.trajectory(n) for n in range(1, 300)]; r.rollouts.count(Query('reward<0.2', 'mask'))"
    )
    viewer = subprocess.Popen([sys.executable, "-c", code, str(run_copy)], stdout=subprocess.PIPE)
    assert viewer.stdout is not None and viewer.stdout.readline() == b"reading\n"
    time.sleep(0.2)
    os.kill(viewer.pid, signal.SIGKILL)
    viewer.wait()
    viewer.stdout.close()
    assert digest(run_copy) == before
    with sqlite3.connect(run_copy / "record.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.execute("CREATE TABLE still_writable (x)")
    db.close()
