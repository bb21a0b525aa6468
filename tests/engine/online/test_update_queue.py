"""The durable queue, whatever keeps it: order, room, at-least-once delivery, and settling all or nothing."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_tui.engine.online.serve.enqueuer import Enqueuer
from grpo_tui.engine.online.shared.redis_queue import RedisQueue
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.online.store.update_queue import REFUSED_KEPT, QueueError, Settled, UpdateQueue
from tests.redis_server import redis_server

from .living import counts
from .tiny import lora_model, make_task

Connect = Callable[[], UpdateQueue]


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with redis_server() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "redis"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Opens the one queue of this test, as often as it is called, each time as a process of its own would."""
    if request.param == "sqlite":
        return lambda: SqliteQueue(tmp_path / "queue.sqlite", limit=5)
    url = request.getfixturevalue("redis_url")
    processes = itertools.count()
    return lambda: RedisQueue(url, tmp_path.name, limit=5, process=f"process {next(processes)}")


@pytest.fixture
def queue(connect: Connect) -> Iterator[UpdateQueue]:
    """The queue with one that leads."""
    queue = connect()
    queue.lead()
    yield queue
    queue.close()


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
    assert counts(queue) == {"taken": 1, "queued": 5, "dropped": 1}


def test_taken_tasks_come_back_after_a_death(queue: UpdateQueue, connect: Connect) -> None:
    fill(queue, 2)
    queue.take()
    queue.take()
    queue.close()
    again = connect()
    assert again.lead() == 2
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


def test_refused_tasks_are_kept_aside_but_not_all_of_them(queue: UpdateQueue) -> None:
    queue.limit = 1000
    fill(queue, REFUSED_KEPT + 3)
    for i in range(REFUSED_KEPT + 3):
        queue.settle([Settled(f"t{i}", "refused", "NaN")])
    assert queue.payload("t2") is None
    assert queue.payload("t3") == b"payload 3"
    assert len(queue.tasks("refused")) == REFUSED_KEPT + 3
    assert queue.take() is None  # not retried


def test_one_process_puts_while_another_takes(queue: UpdateQueue, connect: Connect) -> None:
    other = connect()
    other.limit = 10_000
    writer = threading.Thread(target=fill, args=(other, 60))
    writer.start()
    seen: list[str] = []
    while writer.is_alive() or len(seen) < 60:
        task = queue.take()
        if task is not None:
            seen.append(task.id)
            queue.settle([Settled(task.id, "applied")])
    writer.join()
    assert seen == [f"t{i}" for i in range(60)]


@pytest.mark.parametrize("content", [b"not a database, but long enough to look like one" * 40, b"\0" * 5000])
def test_a_damaged_file_is_kept_and_the_queue_goes_on_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "queue.sqlite").write_bytes(content)
    queue = SqliteQueue(tmp_path / "queue.sqlite")
    assert queue.take() is None
    queue.close()
    kept = [p for p in tmp_path.iterdir() if p.name != "queue.sqlite" and p.read_bytes() == content]
    assert len(kept) == 1


def test_facts_and_journal_are_read_by_all(queue: UpdateQueue, connect: Connect) -> None:
    other = connect()
    queue.set(candidate={"state": "a", "update": 3}, nothing=None)
    rows = queue.settle([], [{"kind": "update", "x": 1.5}, {"kind": "beta"}], {"published": 7})
    assert other.get("candidate") == {"state": "a", "update": 3} and other.get("nothing", 1) is None
    assert other.get("published") == 7 and other.get("unknown", "else") == "else"
    assert other.journal() == rows and other.journal(after=rows[0].n) == rows[1:] and other.journal(limit=1) == rows[:1]


def test_numbering_goes_on_above_what_a_lost_queue_held(queue: UpdateQueue) -> None:
    queue.continue_after(40)
    assert queue.settle([], [{"a": 1}])[0].n == 41
    queue.continue_after(10)
    assert queue.settle([], [{"a": 2}])[0].n == 42


def test_the_engine_never_waits_for_the_queue(tmp_path: Path) -> None:
    """Even while another process holds the database."""
    updates = SqliteQueue(tmp_path / "queue.sqlite")
    enqueuer = Enqueuer(updates)
    task = make_task(lora_model())
    locked = SqliteQueue(tmp_path / "queue.sqlite")
    with locked._transaction():
        began = time.perf_counter()
        for _ in range(200):
            enqueuer.put(task)
        waited = time.perf_counter() - began
        assert updates.depth() == 0
    enqueuer.close()
    assert enqueuer.lost > 0 and updates.depth() == 1  # the same experience, once
    assert waited < 5  # far below the lock's 30 s
