"""A queue that engines and workers of several machines share, while processes and the server die and come back."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.online.shared.exchange import Exchange, ExchangeError
from grpo_tui.engine.online.shared.outbox import Outbox, QueueLink
from grpo_tui.engine.online.shared.redis_queue import RedisQueue
from grpo_tui.engine.online.store.update_queue import LeaseHeld, LeaseLost, QueueError, Settled
from tests.redis_server import LASTING, RedisServer, redis_server, stopped_and_restarted

from .living import Lives, Machines, counts


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server(*LASTING) as server:
        yield server


@pytest.fixture
def machine(server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., RedisQueue]]:
    """Opens the queue of this test as a process on a machine of its own."""
    opened: list[RedisQueue] = []

    def open_it(name: str, **options: Any) -> RedisQueue:
        opened.append(RedisQueue(server.url, tmp_path.name, process=name, **{"lease_s": 0.4, **options}))
        return opened[-1]

    yield open_it
    for queue in opened:
        queue.close()


def wait_for(condition: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def leads(queue: RedisQueue) -> bool:
    try:
        queue.lead()
    except LeaseHeld:
        return False
    return True


def dies(queue: RedisQueue) -> None:
    """As by SIGKILL: it says nothing any more, and renews nothing."""
    queue._ended.set()


# ------------------------------------------------------------------------------------------------------------- lease


def test_a_standby_takes_over_when_the_lease_ends_and_the_zombie_is_refused(machine: Callable[..., RedisQueue]) -> None:
    lease = 2.0  # a busy machine renews it in time
    first, second, engine = machine("a", lease_s=lease), machine("b", lease_s=lease), machine("engine")
    for i in range(3):
        engine.put(f"t{i}", b"x", 1)
    first.lead()
    assert first.take() is not None
    time.sleep(1.2 * lease)  # it is renewed
    with pytest.raises(LeaseHeld, match=rf"process {os.getpid()} on"):
        second.lead()
    dies(first)
    wait_for(lambda: leads(second), "the standby to take over")
    task = second.take()
    assert task is not None and (task.id, task.attempts) == ("t0", 2)
    for call in (
        lambda: first.settle([Settled("t0", "applied")], [{"kind": "update"}], {"state": "zombie"}),
        lambda: first.set(snapshot="zombie"),
        first.take,
    ):
        with pytest.raises(LeaseLost, match="another worker has taken over"):
            call()
    second.settle([Settled("t0", "applied")], [{"kind": "update"}], {"state": "second"})
    assert (engine.get("state"), engine.get("snapshot"), len(engine.journal())) == ("second", None, 1)


def test_a_worker_that_ends_gives_its_lease_back(machine: Callable[..., RedisQueue]) -> None:
    first, second = machine("a", lease_s=60.0), machine("b", lease_s=60.0)
    first.lead()
    first.close()
    assert leads(second)


def test_a_worker_that_begins_again_need_not_wait_for_its_own_lease(machine: Callable[..., RedisQueue]) -> None:
    first = machine("a", lease_s=60.0)
    first.put("t", b"x", 1)
    first.lead()
    first.take()
    dies(first)
    again = machine("a", lease_s=60.0)
    assert again.lead() == 1
    task = again.take()
    assert task is not None and task.attempts == 1  # this task has ended nobody


# --------------------------------------------------------------------------------------------- server in trouble


def test_a_restarted_server_has_all_and_an_unsure_call_counts_once(tmp_path: Path) -> None:
    with redis_server(*LASTING) as server:
        engine, worker = (RedisQueue(server.url, "q", process=name, lease_s=0.4) for name in ("engine", "worker"))
        worker.lead()
        for i in range(4):
            engine.put(f"t{i}", b"x", 1)
            task = worker.take()
            assert task is not None
            if i == 2:
                server.kill()
                with pytest.raises(LeaseLost, match="cannot be reached"):
                    worker.settle([Settled("t2", "applied")], [{"task": "t2"}], {"state": "2"})
                with pytest.raises(QueueError, match="cannot be reached"):
                    engine.put("t9", b"x", 1)
                server.start()
                assert engine.get("state") == "1"
                assert worker.lead() == 1
                task = worker.take()
                assert task is not None and (task.id, task.attempts) == ("t2", 1)
            worker.settle([Settled(task.id, "applied")], [{"task": task.id}], {"state": str(i)})
        assert counts(engine) == {"applied": 4}
        assert [r.row["task"] for r in engine.journal()] == ["t0", "t1", "t2", "t3"]
        for queue in (engine, worker):
            queue.close()


def test_a_server_that_forgot_its_last_commits_is_noticed(machine: Callable[..., RedisQueue]) -> None:
    worker, engine = machine("a"), machine("engine")
    engine.put("t", b"x", 1)
    worker.lead()
    worker.take()
    engine._redis.hset(engine._key("holder"), "call", 0)  # as a server that lost its last second
    with pytest.raises(LeaseLost, match="lost its last commits"):
        worker.settle([Settled("t", "applied")])


def test_an_engine_goes_on_while_the_server_is_silent_and_nothing_is_lost(tmp_path: Path) -> None:
    told: list[str] = []
    with redis_server(*LASTING, tcp=True) as server:
        outbox, shown = Outbox(tmp_path / "queue.sqlite"), Outbox(tmp_path / "queue.sqlite")
        link = QueueLink(
            outbox, RedisQueue(server.url, "q", timeout_s=0.2), "engine", poll_s=0.02, shown=shown, tell=told.append
        )
        worker = RedisQueue(server.url, "q", process="worker", lease_s=0.4, timeout_s=0.2)
        worker.lead()
        link.start()
        shown.put("before", b"x", 1)
        wait_for(lambda: shown.elsewhere == 1, "the task to be sent")
        server.pause()  # as if the network were cut
        wait_for(lambda: told, "the engine to say so")
        began = time.monotonic()
        for i in range(20):
            shown.put(f"during-{i}", b"x", 1)
        assert shown.depth() == 21 and shown.journal() == []
        assert time.monotonic() - began < 10  # no call waited for the server
        with pytest.raises(LeaseLost, match="does not answer"):
            worker.take()
        server.resume()
        worker.lead()
        wait_for(lambda: worker.depth() == 21, "the tasks to be sent")
        while (task := worker.take()) is not None:
            worker.settle([Settled(task.id, "applied")], [{"task": task.id}])
        wait_for(lambda: len(shown.journal()) == 21, "the journal to be copied")
        assert [r.row["task"] for r in shown.journal()] == ["before", *(f"during-{i}" for i in range(20))]
        link.close()
        worker.close()
    address = f"redis://127.0.0.1:{server.port}/0"
    assert told == [
        f"The Redis server {address} does not answer. Serving continues. Tasks wait on this machine's disk, learning "
        "waits.",
        "The shared queue can be used again: waiting tasks were sent.",
    ]


def test_an_engine_reads_from_where_its_record_ends(machine: Callable[..., RedisQueue], tmp_path: Path) -> None:
    worker = machine("worker")
    worker.lead()
    worker.settle([], [{"row": i} for i in range(5)])
    joined = QueueLink(Outbox(tmp_path / "new.sqlite"), machine("new"), "new", poll_s=1)
    lost = QueueLink(Outbox(tmp_path / "lost.sqlite"), machine("old"), "old", poll_s=1, recorded=2)
    for link in (joined, lost):
        link.step()
    assert joined.outbox.journal() == []
    assert [row.row["row"] for row in lost.outbox.journal()] == [2, 3, 4]
    worker.settle([], [{"row": 5}])
    for link in (joined, lost):
        link.step()
        assert link.outbox.journal()[-1].row == {"row": 5}
        link.close()


def test_what_a_server_must_be_set_to_and_nothing_of_a_password_is_said() -> None:
    told: list[str] = []
    with redis_server("--requirepass", "hunter2", "--maxmemory-policy", "allkeys-lru", tcp=True) as server:
        known = f"redis://:hunter2@127.0.0.1:{server.port}/0"
        wrong = RedisQueue(f"redis://:hunter3@127.0.0.1:{server.port}/0", "q")
        without = RedisQueue(server.url, "q")
        for queue in (wrong, without):
            with pytest.raises(QueueError, match="refuses the password") as refused:
                queue.put("t", b"x", 1)
            assert "hunter" not in str(refused.value)
        queue = RedisQueue(known, "q", tell=told.append)
        with pytest.raises(QueueError, match="set maxmemory-policy noeviction") as refused:
            queue.put("t", b"x", 1)
        assert "hunter" not in str(refused.value)
        queue._redis.config_set("maxmemory-policy", "noeviction")
        assert queue.put("t", b"x", 1) == []
        assert len(told) == 1 and "a restart loses waiting tasks" in told[0] and "hunter" not in told[0]
        queue._redis.config_set("maxmemory", "1")
        with pytest.raises(QueueError, match="is full"):
            queue.put("t2", b"x", 1)
        for each in (wrong, without, queue):
            each.close()


@pytest.mark.parametrize("denied", ["multi", "exec", "watch", "zadd"])
def test_a_user_without_a_needed_permission_is_told_which_and_leaves_nothing_behind(
    server: RedisServer, machine: Callable[..., RedisQueue], tmp_path: Path, denied: str
) -> None:
    admin = machine("admin")
    admin._redis.execute_command("ACL", "SETUSER", denied, "on", ">pw", "~*", "+@all", f"-{denied}")
    queue = RedisQueue(server.url.replace("//", f"//{denied}:pw@"), tmp_path.name)
    reason = rf"does not allow this user the commands of a queue \(.*'{denied}'"
    with pytest.raises(QueueError, match=reason):
        queue.put("t", b"x", 1)
    assert admin.depth() == 0 and admin.payload("t") is None
    queue.close()


# ------------------------------------------------------------------------------------------------------ shared files


@pytest.mark.parametrize("place", ["{folder}", "file://{folder}", "memory://grpo-tui-{name}"])
def test_files_are_exchanged_through_a_folder_or_a_url(tmp_path: Path, place: str) -> None:
    exchange = Exchange(place.format(folder=tmp_path / "there", name=tmp_path.name))
    assert exchange.names("states") == [] and exchange.read("states/a") is None
    (tmp_path / "here").write_bytes(b"state")
    exchange.put(tmp_path / "here", "states/a")
    exchange.write("states/b", b"{}")
    assert exchange.names("states") == ["a", "b"]
    assert exchange.get("states/a", tmp_path / "copy") and (tmp_path / "copy").read_bytes() == b"state"
    assert not exchange.get("states/c", tmp_path / "none") and not (tmp_path / "none").exists()
    exchange.remove("states/a")
    exchange.remove("states/a")
    assert exchange.names("states") == ["b"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExchangeError, match="cannot be written: Not a directory"):
        Exchange(str(tmp_path / "file")).write("states/a", b"")


# ------------------------------------------------------------------------------------------------------------- kills


def killed_often(machines: Machines, engine: str, worker: str, kills: int, calls: int, rng: random.Random) -> None:
    """Lives of engines and workers on either machine that end at any call to disk or server, until `kills` have."""
    while machines.kills < kills:
        kind, machine, kill_at = rng.choice([engine, worker]), rng.randrange(2), rng.randrange(1, calls)
        options = {"tasks": machines.tasks(rng.randrange(1, 4))} if kind == engine else {"steps": 4}
        machines.live(kind, machine, kill_at, **options)


def queue_is_killed(
    server: RedisServer, lives: Lives, home: Path, kills: int, trouble: contextlib.AbstractContextManager[None]
) -> None:
    online = {"queue": server.url, "queue_name": home.name, "lease_s": 0.15, "shared_files": str(home / "shared")}
    machines = Machines(lives, home, online)
    with trouble:
        killed_often(machines, "send", "learn", kills, 60, random.Random(kills))
    for machine in (0, 1):
        machines.live("send", machine, None, tasks=[])
    machines.live("learn", 1, None, steps=10**6)
    queue = RedisQueue(server.url, home.name)
    state = json.loads((home / "shared" / "states" / queue.get("state")).read_bytes())
    assert len(state) == len(set(state)), "learnt twice"
    assert set(machines.acknowledged) <= set(state), "lost"
    assert counts(queue) == {"applied": len(state)}
    journal = [(row.n, row.row["experience"]) for row in queue.journal(limit=10**6)]
    assert [experience for _, experience in journal] == state
    assert machines.versions == sorted(machines.versions), "a version went back"
    for machine, folder in enumerate(machines.folders):
        machines.live("send", machine, None, tasks=[])
        lines = [json.loads(line) for line in (folder / "recorded.jsonl").read_text().splitlines()]
        numbers = [line["n"] for line in lines]
        assert numbers == [n for n, _ in journal if n >= numbers[0]], "not recorded once"
    queue.close()


@pytest.fixture(scope="module")
def light() -> Iterator[Lives]:
    program = Lives("--light")
    yield program
    program.close()


def test_no_kill_on_either_machine_loses_or_doubles_a_task(server: RedisServer, light: Lives, tmp_path: Path) -> None:
    queue_is_killed(server, light, tmp_path, 25, contextlib.nullcontext())


@pytest.mark.stress
def test_many_kills_while_the_server_stops_and_restarts(light: Lives, tmp_path: Path) -> None:
    with redis_server(*LASTING) as server:
        queue_is_killed(server, light, tmp_path, 200, stopped_and_restarted(server))
