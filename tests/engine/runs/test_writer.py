"""The writer never stands in training's way: bounded, quiet, exact about what it lost."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.runs.durable import read_json
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.schema import recorded_position
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.write import writer as writer_module
from grpo_tui.engine.runs.write.sink import Sink
from grpo_tui.engine.runs.write.store import MetricTables, RecordStore
from grpo_tui.engine.runs.write.writer import NullWriter, RunWriter, open_writer


def test_a_disk_that_hangs_costs_rows_that_are_counted_and_reported_once(run_dir: Path, make_record, monkeypatch, told):
    monkeypatch.setattr(writer_module, "PATIENCE_SECONDS", 0.05)
    gate = threading.Event()
    original = RecordStore.add_trajectories

    def slow(self, step, records):
        gate.wait(120)
        return original(self, step, records)

    monkeypatch.setattr(RecordStore, "add_trajectories", slow)
    writer = RunWriter(run_dir, queue_bytes=100_000)
    for step in range(1, 201):
        writer.trajectories(step, [make_record(step, i) for i in range(8)])
    assert len(told) == 1 and "accepts no writes" in told[0]  # after one wait, not one for each step
    assert writer._bytes <= 100_000 + 100_000
    dropped = writer.dropped
    assert dropped > 1000
    gate.set()
    while not writer.flush(30):
        time.sleep(0.01)
    writer.trajectories(300, [make_record(300, 0)])
    writer.close()
    with RunReader(run_dir) as reader:
        assert reader.rollouts.total() + dropped == 1601
        assert [r.n for r in reader.rollouts.page(limit=3)] == [1, 2, 3]
        events = reader.events(["record"])
        assert sum(e.data["dropped"] for e in events) == dropped
    assert len(told) == 1 + len(events) <= 3


def test_steps_larger_than_the_queue_wait_for_a_slow_disk_and_lose_nothing(
    run_dir: Path, make_record, monkeypatch, told
):
    original = RecordStore.add_trajectories
    sizes: list[int] = []

    def slow(self, step, records):
        sizes.append(sum(len(r.trajectory.steps[0].text) for r in records))
        time.sleep(0.01)
        return original(self, step, records)

    monkeypatch.setattr(RecordStore, "add_trajectories", slow)
    monkeypatch.setattr(writer_module, "BATCH_BYTES", 60_000)
    writer = RunWriter(run_dir, queue_bytes=100_000)
    text = "x" * 20_000
    for step in range(1, 9):  # 160 kB each
        records = [make_record(step, i) for i in range(8)]
        long = [r.trajectory.steps[0] for r in records]
        writer.metrics(step, {"a": step})
        writer.trajectories(
            step,
            [
                dataclasses.replace(
                    r, trajectory=dataclasses.replace(r.trajectory, steps=(dataclasses.replace(s, text=text),))
                )
                for r, s in zip(records, long, strict=True)
            ],
        )
        writer.event("eval", "said", step=step)
    writer.close()
    assert writer.dropped == 0 and told == []
    assert max(sizes) <= 60_000, "a transaction holds a part of a step"
    with RunReader(run_dir) as reader:
        assert [(r.step, r.id) for r in reader.rollouts.page(limit=100)] == [
            (step, f"t{step}-{i}") for step in range(1, 9) for i in range(8)
        ]
        assert len(reader.metrics.points("a")) == len(reader.events(["eval"])) == 8


def test_the_end_waits_for_a_disk_that_makes_progress(run_dir: Path, monkeypatch):
    original = RecordStore.transaction

    def slow(self):
        time.sleep(0.25)
        return original(self)

    monkeypatch.setattr(RecordStore, "transaction", slow)
    monkeypatch.setattr(writer_module, "BATCH_BYTES", 64)
    writer = RunWriter(run_dir)
    for step in range(1, 9):
        writer.metrics(step, {"a": step})
    writer.close(timeout=1.5)  # 2 s of commits
    with RunReader(run_dir) as reader:
        assert len(reader.metrics.points("a")) == 8


def test_one_thing_that_cannot_be_stored_does_not_cost_the_others(run_dir: Path, make_record):
    writer = RunWriter(run_dir)
    bad = make_record(1, 5, rollout=2**70)  # no SQLite integer
    worse = make_record(1, 6, steps=None)
    writer.trajectories(1, [make_record(1, 0), bad, make_record(1, 1)])
    writer.trajectories(2, [worse, make_record(2, 0)])
    writer.metrics(2, {"a": 1.0})
    assert writer.flush(10)
    assert writer.dropped == 2
    writer.close()
    with RunReader(run_dir) as reader:
        assert [r.id for r in reader.rollouts.page()] == ["t1-0", "t1-1", "t2-0"]
        assert reader.metrics.points("a") == [(2, 1.0)]
        assert reader.info().facts["dropped"] == 2


def test_two_processes_of_a_run_write_to_one_record(run_dir: Path, make_record):
    engine = RunWriter(run_dir, process="engine")
    worker = RunWriter(run_dir, process="worker")
    for step in range(1, 31):
        engine.trajectories(step, [make_record(step, i) for i in range(4)])
        worker.trajectories(step, [make_record(step, i + 50, split=f"split{step}") for i in range(3)])
        worker.metrics(step, {"online/current_beta": 0.1})
        engine.metrics(step, {"online/queue_depth": 1.0})
    assert engine.flush(30) and worker.flush(30)
    engine.close()
    worker.close()
    with RunReader(run_dir) as reader:
        assert [r.n for r in reader.rollouts.page(limit=500)] == list(range(1, 211))
        assert (
            len(reader.metrics.points("online/current_beta")) == len(reader.metrics.points("online/queue_depth")) == 30
        )
        assert reader.rollouts.count(Query("split:split7")) == 3
        assert {r.env for r in reader.rollouts.page(limit=500)} <= {
            "grpo_tui.engine.demonstration.visual.VisualEnv",
            "my.Env",
        }


def test_secrets_never_reach_the_record(run_dir: Path):
    writer = RunWriter(run_dir)
    writer.event("error", "failed", where="x", config={"api_key": "abc123", "max_tokens": 5}, text="hf_" + "a" * 30)
    assert writer.flush(10)
    writer.close()
    data = b"".join(p.read_bytes() for p in run_dir.rglob("*") if p.is_file())
    assert b"abc123" not in data and b"a" * 30 not in data
    with RunReader(run_dir) as reader:
        assert reader.events()[0].data["config"]["max_tokens"] == 5


def test_only_the_first_rank_writes(run_dir: Path, make_record):
    assert isinstance(open_writer(run_dir, rank=1), NullWriter)
    null = open_writer(run_dir, rank=3)
    null.trajectories(1, [make_record(1, 0)])
    null.metrics(1, {"a": 1})
    null.event("alert", "x")
    null.status("running")
    null.vocabulary(["a"])
    assert null.save_image(object(), "a b") == "images/a_b.png" and null.flush() and null.dropped == 0  # type: ignore[arg-type]
    null.close()
    assert not run_dir.exists()
    with_rank = open_writer(run_dir, rank=0)
    assert isinstance(with_rank, RunWriter)
    with_rank.close()


def test_a_forked_child_writes_nothing_and_does_not_hang(run_dir: Path):
    writer = RunWriter(run_dir)
    pid = os.fork()
    if pid == 0:
        writer.metrics(1, {"child": 1.0})
        writer.status("crashed")
        writer.flush()
        writer.close()
        os._exit(7)
    assert os.waitpid(pid, 0)[1] >> 8 == 7
    writer.metrics(1, {"parent": 1.0})
    assert writer.flush(10)
    writer.close()
    with RunReader(run_dir) as reader:
        assert reader.metrics.names() == ["parent"]
        assert reader.info().status != "crashed" or reader.info().error == "the process is gone"


def test_an_ended_status_is_on_disk_at_once_with_the_last_rows(run_dir: Path, make_record):
    writer = RunWriter(run_dir)
    writer.trajectories(1, [make_record(1, 0)])
    writer.metrics(9, {"success/train": 0.5})
    writer.status("finished", total_steps=9, exit_code=0)
    with RunReader(run_dir) as reader:
        info = reader.info()
        assert (info.status, info.step, info.total_steps, info.exit_code) == ("finished", 9, 9, 0)
        assert info.ended is not None and reader.rollouts.total() == 1
        assert info.facts["summary"]["success/train"]["last"] == 0.5
    writer.close()
    writer.close()
    writer.metrics(10, {"a": 1.0})  # after the end: dropped, not raised
    assert writer.dropped == 1


def test_the_summary_on_disk_holds_what_was_given_before_the_end(run_dir: Path, monkeypatch):
    taken, go_on = threading.Event(), threading.Event()
    transaction = Sink._transaction

    def slow(self: Sink, items: Any) -> None:
        taken.set()
        assert go_on.wait(20)
        transaction(self, items)

    monkeypatch.setattr(Sink, "_transaction", slow)
    writer = RunWriter(run_dir)
    writer.metrics(1, {"success/train": 0.1})
    assert taken.wait(20)
    writer.metrics(2, {"success/train": 0.2})  # the first step is being written: this comes with the next batch
    ending = threading.Thread(target=lambda: writer.status("finished", step=2))
    ending.start()
    while not writer._state.ended:
        time.sleep(0.001)
    go_on.set()
    ending.join(20)
    state = read_json(run_dir / "processes" / "training.json")
    assert state["status"] == "finished" and state["summary"]["success/train"]["last"] == 0.2
    writer.close()


def test_a_folder_in_the_place_of_the_record_only_delays_it(run_dir: Path, monkeypatch):
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", (0.05,))
    run_dir.mkdir()
    (run_dir / "record.sqlite").mkdir()  # no database can be there
    writer = RunWriter(run_dir)
    writer.metrics(1, {"a": 1})
    assert not writer.flush(5)
    (run_dir / "record.sqlite").rmdir()
    deadline = time.monotonic() + 10
    while not writer.flush(1) and time.monotonic() < deadline:
        time.sleep(0.05)
    writer.close()
    with RunReader(run_dir) as reader:
        assert reader.metrics.points("a") == [(1, 1.0)]
        assert len(reader.events(["record"])) == 1


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_flush_gives_up_in_time(run_dir: Path, monkeypatch, seconds: float, make_record):
    gate = threading.Event()
    monkeypatch.setattr(MetricTables, "add", lambda *a: gate.wait(20))
    writer = RunWriter(run_dir)
    writer.metrics(1, {"a": 1})
    assert not writer.flush(seconds)
    gate.set()
    writer.close()


def test_what_is_given_together_is_stored_with_its_position_or_not_at_all(tmp_path: Path) -> None:
    with_position = RunWriter(tmp_path)
    assert recorded_position(tmp_path, "journal") is None
    with with_position.together(journal=3):
        with_position.metrics(1, {"a": 1.0})
        with_position.event("beta", "one", step=1)
    assert with_position.flush(10.0)
    assert recorded_position(tmp_path, "journal") == 3 == with_position.positions["journal"]
    with with_position.together(journal=4):  # one part cannot be stored: it alone is left out
        with_position.metrics(2, {"a": 2.0})
        with_position.event("beta", "no step", step=2**70)
        with_position.event("beta", "two", step=2)
    with_position.flush(10.0)
    with_position.close()
    assert recorded_position(tmp_path, "journal") == 4
    with RunReader(tmp_path) as reader:
        assert [v for _, v in reader.metrics.points("a")] == [1.0, 2.0]
        assert [e.message for e in reader.events(kinds=["beta"])] == ["one", "two"]
