"""The durable queue: order, room, at-least-once delivery, and settling all or nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from grpo_tui.engine.online.store.update_queue import REFUSED_KEPT, QueueError, Settled, UpdateQueue


@pytest.fixture
def queue(tmp_path: Path) -> UpdateQueue:
    return UpdateQueue(tmp_path / "queue.sqlite", limit=5)


def fill(queue: UpdateQueue, count: int, start: int = 0) -> None:
    for i in range(start, start + count):
        queue.put(f"t{i}", b"payload %d" % i, i)


def test_first_in_first_out(queue: UpdateQueue) -> None:
    fill(queue, 3)
    taken = [queue.take() for _ in range(4)]
    assert [t.id for t in taken if t] == ["t0", "t1", "t2"] and taken[3] is None
    assert taken[1] is not None and (taken[1].payload, taken[1].policy_version) == (b"payload 1", 1)
    assert queue.depth() == 3  # taken, not yet settled


def test_an_id_is_queued_once_even_after_it_was_settled(queue: UpdateQueue) -> None:
    assert queue.put("t", b"1", 0) == []
    assert queue.put("t", b"2", 0) is None
    queue.take()
    queue.settle([Settled("t", "applied")])
    assert queue.put("t", b"3", 0) is None
    assert queue.depth() == 0


def test_when_full_the_oldest_waiting_task_goes(queue: UpdateQueue) -> None:
    fill(queue, 5)
    assert queue.take() is not None  # t0 is being worked on: it does not go
    fill(queue, 1, start=5)
    assert queue.put("t6", b"", 0) == ["t1"]
    assert queue.tasks("dropped") == [("t1", "the queue was full (5 tasks)")]
    assert queue.payload("t1") is None
    assert queue.counts() == {"taken": 1, "queued": 5, "dropped": 1}


def test_taken_tasks_come_back_after_a_death(queue: UpdateQueue, tmp_path: Path) -> None:
    fill(queue, 2)
    queue.take()
    queue.take()
    again = UpdateQueue(tmp_path / "queue.sqlite")
    assert again.take() is None
    assert again.recover() == 2
    task = again.take()
    assert task is not None and (task.id, task.attempts) == ("t0", 2)


def test_settling_is_all_or_nothing(queue: UpdateQueue) -> None:
    fill(queue, 2)
    queue.take()
    queue.settle([Settled("t0", "applied")], [{"kind": "update"}], {"state": "one"})
    with pytest.raises(QueueError, match="settled before"):
        queue.settle([Settled("t1", "applied"), Settled("t0", "applied")], [{"kind": "again"}], {"state": "two"})
    assert queue.tasks("applied") == [("t0", "")]
    assert [r.row for r in queue.journal()] == [{"kind": "update"}]
    assert queue.get("state") == "one"


def test_journal_numbers_are_never_used_twice(queue: UpdateQueue) -> None:
    rows = queue.settle([], [{"a": 1}, {"a": 2}])
    queue.prune_journal(rows[-1].n)
    assert queue.journal() == []
    assert queue.settle([], [{"a": 3}])[0].n == rows[-1].n + 1


def test_refused_tasks_are_kept_aside_but_not_all_of_them(queue: UpdateQueue, tmp_path: Path) -> None:
    queue.limit = 1000
    fill(queue, REFUSED_KEPT + 3)
    for i in range(REFUSED_KEPT + 3):
        queue.settle([Settled(f"t{i}", "refused", "NaN")])
    assert queue.payload("t2") is None
    assert queue.payload("t3") == b"payload 3"
    assert len(queue.tasks("refused")) == REFUSED_KEPT + 3
    assert queue.take() is None  # not retried


def test_two_processes_put_and_take_at_once(queue: UpdateQueue, tmp_path: Path) -> None:
    queue.limit = 10_000
    other = UpdateQueue(tmp_path / "queue.sqlite")
    writer = threading.Thread(target=fill, args=(queue, 60))
    writer.start()
    seen: list[str] = []
    while writer.is_alive() or len(seen) < 60:
        task = other.take()
        if task is not None:
            seen.append(task.id)
            other.settle([Settled(task.id, "applied")])
    writer.join()
    assert seen == [f"t{i}" for i in range(60)]


@pytest.mark.parametrize("content", [b"not a database, but long enough to look like one" * 40, b"\0" * 5000])
def test_a_damaged_file_is_kept_and_the_queue_goes_on_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "queue.sqlite").write_bytes(content)
    queue = UpdateQueue(tmp_path / "queue.sqlite")
    assert queue.take() is None
    queue.close()
    kept = [p for p in tmp_path.iterdir() if p.name != "queue.sqlite" and p.read_bytes() == content]
    assert len(kept) == 1
