"""Going on after a checkpoint: nothing of a later step stays, nothing of an earlier one is lost, numbers stay dense."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.engine.runs.columns import SCHEMA_VERSION
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.store import RecordStore
from grpo_tui.engine.runs.write.truncation import truncate_after
from grpo_tui.engine.runs.write.writer import RunWriter


def test_later_steps_are_removed_from_everything(run_dir: Path, make_record):
    writer = RunWriter(run_dir)
    for step in range(1, 8):
        writer.trajectories(step, [make_record(step, i, answer=f"word{step}") for i in range(20)])
        writer.metrics(step, {"a": step})
        writer.event("alert", f"at {step}", step=step)
    writer.close()
    resumed = RunWriter(run_dir, resume_from_step=4)
    for step in (5, 6):
        resumed.trajectories(step, [make_record(step, i + 100, answer=f"again{step}") for i in range(20)])
        resumed.metrics(step, {"a": -step})
    resumed.event("alert", "again", step=5)
    assert resumed.flush(20)
    with RunReader(run_dir) as reader:
        assert [(r.n, r.step) for r in reader.rollouts.page(limit=500)] == [
            (n, (n - 1) // 20 + 1) for n in range(1, 121)
        ]
        assert reader.metrics.points("a") == [(1, 1), (2, 2), (3, 3), (4, 4), (5, -5), (6, -6)]
        assert [e.message for e in reader.events()] == ["at 1", "at 2", "at 3", "at 4", "again"]
        assert reader.rollouts.count(Query(search="word4")) == 20
        assert reader.rollouts.count(Query(search="word5")) == 0 and reader.rollouts.count(Query(search="word7")) == 0
        assert [r.n for r in reader.rollouts.page(Query(search="again6"), limit=50)] == list(range(101, 121))
        groups = reader.rollouts.groups().page(0, 100)
        assert (
            len(groups) == reader.rollouts.groups().count() == len({r.group for r in reader.rollouts.page(limit=500)})
        )
        assert reader.rollouts.groups(Query("step=6")).count() == 5
        for n in (80, 81, 120):
            step, index = (n - 1) // 20 + 1, (n - 1) % 20
            assert reader.bodies.trajectory(n).trajectory.id == f"t{step}-{index + (100 if step > 4 else 0)}"
            assert reader.bodies.tokens(n) is not None
    resumed.close()


@pytest.mark.parametrize("damaged", [17, 33, 49], ids=["around the cut", "a late evaluation", "behind the cut"])
def test_a_damaged_text_costs_itself_and_not_the_steps_that_follow(run_dir: Path, make_record, damaged: int):
    """24 trajectories of step 1, eight of step 2, 16 of step 1 that came late, 16 of step 3."""
    writer = RunWriter(run_dir)
    given = [(1, i) for i in range(24)] + [(2, i) for i in range(8)]
    for step, chosen in ((1, given[:24]), (2, given[24:])):
        writer.trajectories(step, [make_record(step, i, answer=f"early{step}") for _, i in chosen])
        assert writer.flush(20)
    writer.trajectories(1, [make_record(1, i, answer="late") for i in range(24, 40)])
    assert writer.flush(20)
    writer.trajectories(3, [make_record(3, i, answer="later") for i in range(16)])
    assert writer.flush(20)
    writer.close()
    db = sqlite3.connect(run_dir / "record.sqlite")
    (body,) = db.execute("SELECT body FROM chunks WHERE first_n = ?", (damaged,)).fetchone()
    spoilt = body[: len(body) // 2] + bytes(b ^ 0xA5 for b in body[len(body) // 2 :])
    db.execute("UPDATE chunks SET body = ? WHERE first_n = ?", (spoilt, damaged))
    db.commit()
    db.close()
    resumed = RunWriter(run_dir, resume_from_step=1)
    resumed.trajectories(2, [make_record(2, i + 100, answer="again") for i in range(8)])
    assert resumed.flush(20) and resumed.dropped == 0
    resumed.close()
    late = 0 if damaged == 33 else 16
    with RunReader(run_dir) as reader:
        assert [row.step for row in reader.rollouts.page()] == [1] * (24 + late) + [2] * 8
        assert [row.n for row in reader.rollouts.page(Query(search="again"))] == list(range(25 + late, 33 + late))
        assert reader.rollouts.count(Query(search="early2")) == reader.rollouts.count(Query(search="later")) == 0
        assert reader.rollouts.count(Query(search="late")) == late
        assert reader.bodies.trajectory(25 + late).trajectory.id == "t2-100"
        messages = [e.message for e in reader.events(["record"])]
        assert [m[:41] for m in messages] == ["16 earlier trajectories could not be read"] * (not late)


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 40), min_size=6, max_size=6),
    cut=st.integers(0, 6),
)
def test_any_order_of_steps_keeps_exactly_those_up_to_the_checkpoint(tmp_path_factory, make_record, steps, sizes, cut):
    path = tmp_path_factory.mktemp("cut") / "record.sqlite"
    store = RecordStore(path)
    given_: list[tuple[int, TrajectoryRecord]] = []
    for position, step in enumerate(steps):
        records = [make_record(step, position * 100 + i, answer=f"step{step}") for i in range(sizes[position])]
        with store.transaction():
            store.add_trajectories(step, records)
        given_.extend((step, r) for r in records)
    kept = [(s, r) for s, r in given_ if s <= cut]
    assert truncate_after(store, cut) == len(given_) - len(kept)
    store.close()
    with RunReader(path.parent) as reader:
        assert reader.rollouts.total() == len(kept)
        assert sorted(r.id for r in reader.rollouts.page(limit=500)) == sorted(r.trajectory.id for _, r in kept)
        for step in range(1, 7):
            assert reader.rollouts.count(Query(search=f"answer:step{step}")) == reader.rollouts.count(
                Query(f"step={step}")
            )
            assert reader.rollouts.count(Query(f"step={step}")) == sum(s == step for s, _ in kept)
        by_id = {r.trajectory.id: r for _, r in kept}
        for row in reader.rollouts.page(limit=500):
            assert reader.bodies.trajectory(row.n) == replace(by_id[row.id], tokens=None)


def test_the_short_curve_of_the_list_goes_on_too(run_dir: Path):
    writer = RunWriter(run_dir)
    for step in range(1, 9):
        writer.metrics(step, {"success/train": step / 10})
    writer.close()
    resumed = RunWriter(run_dir, resume_from_step=6)
    resumed.metrics(7, {"success/train": 0.9})
    resumed.status("stopped")
    with RunReader(run_dir) as reader:
        curve = reader.info().facts["summary"]["success/train"]
        assert curve["last"] == 0.9 and curve["curve"] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.9]
        assert curve["steps"] == [1, 2, 3, 4, 5, 6, 7]
    resumed.close()


def test_resuming_a_run_that_recorded_nothing_yet(run_dir: Path):
    writer = RunWriter(run_dir, resume_from_step=0)
    writer.metrics(1, {"a": 1})
    assert writer.flush(10) and writer.position() == 1
    writer.close()


def test_position_is_the_last_step_that_lasts(run_dir: Path, make_record):
    writer = RunWriter(run_dir)
    assert writer.position() == 0
    writer.trajectories(3, [make_record(3, 0)])
    writer.metrics(4, {"a": 1})
    assert writer.flush(10) and writer.position() == 4
    writer.close()
    again = RunWriter(run_dir, resume_from_step=3)
    again.metrics(4, {"a": 1})
    assert again.flush(10) and again.position() == 4
    again.close()


@pytest.mark.parametrize(("found", "age"), [(SCHEMA_VERSION - 1, "older"), (99, "newer")])
def test_a_record_of_another_version_is_not_written_to(run_dir: Path, make_record, found: int, age: str, told):
    writer = RunWriter(run_dir)
    writer.trajectories(1, [make_record(1, 0)])
    writer.close()
    store = RecordStore(run_dir / "record.sqlite")
    store.db.execute(f"PRAGMA user_version = {found}")
    store.close()
    other = RunWriter(run_dir, resume_from_step=0)
    other.metrics(2, {"a": 1})
    assert not other.flush(5)
    other.close()
    assert len(told) == 1 and f"{age} grpo-tui (record version {found};" in told[0]
    db = sqlite3.connect(run_dir / "record.sqlite")
    assert db.execute("SELECT count(*) FROM rows").fetchone() == (1,)
    db.close()


def test_a_viewer_that_was_looking_sees_the_new_life_of_the_run(run_dir: Path, make_record):
    writer = RunWriter(run_dir)
    for step in (1, 2, 3):
        writer.trajectories(step, [make_record(step, i) for i in range(10)])
        writer.metrics(step, {"a": step})
    writer.close()
    with RunReader(run_dir) as reader:
        seen, _ = reader.metrics.since(0)
        assert reader.rollouts.count(Query("step>=2")) == 20 and reader.rollouts.page(
            Query(filter="step=3", sort="reward")
        )
        resumed = RunWriter(run_dir, resume_from_step=1)
        for step in (2, 3):
            resumed.trajectories(step, [make_record(step + 10, i) for i in range(10)])
            resumed.metrics(step, {"a": -step})
        assert resumed.flush(20)
        # As many rows as before: only their contents tell.
        assert {r.id for r in reader.rollouts.page(Query(filter="step=3", sort="reward"))} == {
            f"t13-{i}" for i in range(10)
        }
        assert reader.metrics.since(seen)[1] == {"a": [(2, -2.0), (3, -3.0)]}
        resumed.close()
