"""A disk that is full, a folder that goes away: training goes on, it is said once, and the record resumes."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from grpo_tui.engine.runs import durable
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write import writer as writer_module
from grpo_tui.engine.runs.write.store import RecordStore
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.cli.doctor import disk
from tests.forked import ForkedProcess


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", (0.05, 0.1))


def test_a_full_disk_costs_rows_and_not_the_run(tmp_path: Path):
    """The size limit of a process stands in for a small disk: writes beyond it fail like on a full one."""
    script = textwrap.dedent(
        """
        import logging, resource, sys, time
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from conftest import make
        from grpo_tui.engine.runs.write import writer as module
        module.RETRY_SECONDS = (0.05, 0.1)
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        from grpo_tui.engine.runs.write.writer import RunWriter
        writer = RunWriter(Path(sys.argv[1]), queue_bytes=300_000)
        writer.trajectories(1, [make(1, i) for i in range(50)])
        assert writer.flush(20)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        slowest = 0.0
        for step in range(2, 200):
            began = time.perf_counter()
            writer.trajectories(step, [make(step, i) for i in range(50)])
            writer.metrics(step, {"a": step})
            writer.status("running", step=step)
            if step % 50 == 0:
                writer.flush(10)  # before a checkpoint: must not wait for a disk that is full
            slowest = max(slowest, time.perf_counter() - began)
        lost = writer.dropped
        assert lost > 1000, lost
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        deadline = time.monotonic() + 20
        while not writer.flush(1) and time.monotonic() < deadline:
            time.sleep(0.05)
        writer.trajectories(500, [make(500, 0, id="after")])
        writer.status("finished", exit_code=0)
        writer.close()
        print(writer.dropped, slowest)
        """
    )
    folder = tmp_path / "run"
    command = [sys.executable, "-c", script, str(folder), str(Path(__file__).parent)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = ForkedProcess(command, light=True, **pipes)
    printed, told = process.communicate(timeout=120)
    assert process.wait() == 0, told
    dropped = int(printed.split()[0])
    with RunReader(folder) as reader:
        assert reader.info().status == "finished" and not reader.problems
        assert reader.bodies.trajectory("after").trajectory.id == "after"
        assert [r.n for r in reader.rollouts.page(limit=5000)] == list(range(1, reader.rollouts.total() + 1))
        assert reader.rollouts.total() > 50
        events = reader.events(["record"])
        assert 1 <= len(events) <= 4
        assert sum(e.data["dropped"] for e in events) == dropped
        metrics = len(reader.metrics.points("a"))
        assert reader.rollouts.total() + metrics + dropped == 50 + 198 * 51 + 1
    said = [line for line in told.splitlines() if "training continues" in line]
    assert 1 <= len(said) <= 3
    assert all("disk" in line for line in said)


def test_viewers_are_warned_of_a_full_disk_at_once_and_learn_how_the_run_ended(run_dir: Path, make_record, monkeypatch):
    writer = RunWriter(run_dir)
    writer.status("running", step=1, total_steps=9)
    assert writer.flush(10) and "trouble" not in look(run_dir).facts

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "replace_file", full)
    monkeypatch.setattr(RecordStore, "transaction", lambda self: full())
    for step in range(2, 10):
        writer.metrics(step, {"a": 1.0})

    def warned(sentence: str) -> None:
        deadline = time.monotonic() + 20
        while look(run_dir).facts.get("trouble") != sentence:
            assert time.monotonic() < deadline, look(run_dir).facts
            time.sleep(0.01)

    warned(f"the disk of {run_dir} is full; training continues without its record until writing works again")
    waits = "saved_models/x cannot be written; the run waits and retries"
    writer.event("record", waits)
    warned(waits)
    writer.status("finished", step=9, exit_code=0)
    writer.close()
    info = look(run_dir)
    assert (info.status, info.step, info.exit_code) == ("finished", 9, 0)


def test_the_vocabulary_is_kept_while_the_queue_is_full(run_dir: Path, make_record, monkeypatch):
    writer = RunWriter(run_dir, queue_bytes=10_000)
    with monkeypatch.context() as patched:
        patched.setattr(RecordStore, "transaction", lambda self: os.fstat(-1))
        while not writer.dropped:
            writer.trajectories(1, [make_record(1, 0)])
        writer.vocabulary(["a", "b"])
    writer.close()
    with RunReader(run_dir) as reader:
        assert reader.bodies.token_texts([0, 1]) == ["a", "b"]


def test_a_removed_folder_is_not_made_again_and_said_once(run_dir: Path, make_record, told):
    writer = RunWriter(run_dir, queue_bytes=200_000)
    writer.trajectories(1, [make_record(1, 0)])
    assert writer.flush(10)
    shutil.rmtree(run_dir)
    for step in range(2, 60):
        writer.trajectories(step, [make_record(step, i) for i in range(10)])
        writer.metrics(step, {"a": 1})
        writer.status("running", step=step)
        writer.save_image(make_record, f"image {step}")  # type: ignore[arg-type]
        time.sleep(0.01)
    assert not writer.flush(2)
    assert told == [told[0]] and "was removed" in told[0] and "training continues" in told[0]
    assert not run_dir.exists()
    writer.close()
    assert writer.dropped == 58 * 10 + 58 * 2
    assert not run_dir.exists()


def test_a_folder_that_comes_back_is_written_again(run_dir: Path, make_record, told):
    writer = RunWriter(run_dir)
    writer.trajectories(1, [make_record(1, i) for i in range(5)])
    assert writer.flush(10)
    away = run_dir.with_name("away")
    os.rename(run_dir, away)
    writer.trajectories(2, [make_record(2, i) for i in range(5)])
    assert not writer.flush(5)
    os.rename(away, run_dir)
    deadline = time.monotonic() + 20
    while not writer.flush(1) and time.monotonic() < deadline:
        time.sleep(0.05)
    writer.close()
    assert writer.dropped == 0 and len(told) == 2 and "recording has resumed" in told[1]
    with RunReader(run_dir) as reader:
        assert [r.step for r in reader.rollouts.page()] == [1] * 5 + [2] * 5
        assert len(reader.events(["record"])) == 1


def test_each_reason_is_told_and_a_disk_that_wavers_is_told_once(run_dir: Path, make_record, monkeypatch, told):
    """Full, not full, full, … within a minute is one trouble; another reason in between is told as well."""
    writer = RunWriter(run_dir)
    writer.metrics(1, {"a": 1})
    assert writer.flush(10)
    original = RecordStore.transaction
    reason = ["database or disk is full"]

    def transaction(self) -> AbstractContextManager[None]:
        if reason:
            raise sqlite3.OperationalError(reason[0])
        return original(self)

    monkeypatch.setattr(RecordStore, "transaction", transaction)
    for step, why in enumerate(("database or disk is full", "database or disk is full", "disk I/O error"), 2):
        reason[:] = [why]
        writer.metrics(step, {"a": step})
        assert not writer.flush(5)
        reason.clear()
        deadline = time.monotonic() + 20
        while not writer.flush(1) and time.monotonic() < deadline:
            time.sleep(0.02)
    writer.close()
    assert [("is full" in t, "recording has resumed" in t) for t in told] == [
        (True, False),
        (True, True),
        (False, False),
        (False, True),
    ]
    with RunReader(run_dir) as reader:
        assert reader.metrics.points("a") == [(s, s) for s in range(1, 5)]
        assert [e.data["dropped"] for e in reader.events(["record"])] == [0, 0]


def test_a_folder_that_cannot_be_made_at_all(tmp_path: Path, make_record, told):
    (tmp_path / "file").write_text("not a folder")
    writer = RunWriter(tmp_path / "file" / "run")
    writer.trajectories(1, [make_record(1, 0)])
    assert not writer.flush(5)
    writer.status("finished", exit_code=0)
    writer.close()
    assert len(told) == 1 and writer.dropped == 1


def test_another_process_that_holds_the_database_for_long_delays_and_loses_nothing(run_dir: Path, make_record):
    writer = RunWriter(run_dir)
    writer.metrics(1, {"a": 1})
    assert writer.flush(10)
    other = sqlite3.connect(run_dir / "record.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer.metrics(2, {"a": 2})
    assert not writer.flush(0.3)
    other.execute("ROLLBACK")
    other.close()
    assert writer.flush(20)
    writer.close()
    with RunReader(run_dir) as reader:
        assert reader.metrics.points("a") == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize(
    ("fstype", "opts", "network"),
    [("nfs4", "rw", True), ("fuse.sshfs", "rw", True), ("NTFS", "rw,remote", True), ("ext4", "rw,relatime", False)],
)
def test_a_run_on_a_network_file_system_says_where_it_can_be_opened(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, fstype: str, opts: str, network: bool
):
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4", opts="rw")]
    mounts.append(SimpleNamespace(mountpoint=str(run_dir), fstype=fstype, opts=opts))
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    writer = RunWriter(run_dir)
    assert writer.flush(10)
    writer.close()
    with RunReader(run_dir) as reader:
        notes = [event.message for event in reader.events(kinds=["note"], limit=10)]
    assert [fstype in note and "open it on this machine" in note for note in notes] == [True] * network
    assert (disk(run_dir).state == "note") is network
