"""Two whole runs, as on two machines, that serve and teach one policy: processes, HTTP apart, as a user starts them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.launch.stop import stop_run
from grpo_tui.engine.online.shared.redis_queue import RedisQueue
from grpo_tui.engine.online.store.snapshots import pointed_version
from grpo_tui.engine.online.store.update_queue import QueueError
from grpo_tui.engine.runs.control.status import look, process_state
from grpo_tui.engine.runs.read.reader import RunReader
from tests.redis_server import redis_server

from .test_online_run import logs, snapshot_actions, wait_for
from .tiny import run_config


@pytest.mark.stress
def test_a_machine_that_dies_is_replaced_by_the_one_that_stood_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = ("--appendonly", "yes", "--appendfsync", "always", "--requirepass", "s3cret-of-redis")
    with redis_server(*options, tcp=True) as server:
        monkeypatch.setenv("POLICY_QUEUE", f"redis://:s3cret-of-redis@127.0.0.1:{server.port}/0")
        config = run_config(
            tmp_path / "policy",
            queue_env="POLICY_QUEUE",
            lease_s=3.0,
            shared_files=str(tmp_path / "shared"),
            snapshot_every=4,
            commit_every=2,
        )
        config.environment.train_tasks = 20_000
        started = [start_run(config, runs_dir=tmp_path / name / "runs", run_id="one") for name in ("a", "b")]
        a, b = runs = [Path(info.path) for info in started]
        queue = RedisQueue(os.environ["POLICY_QUEUE"], "default")

        def versions() -> list[int]:
            return [pointed_version(run / "snapshots") or 0 for run in runs]

        wait_for(lambda: min(versions()) >= 3, "three versions on both machines")
        wait_for(lambda: all("loaded" in snapshot_actions(run) for run in runs), "a version to serve on both")
        standing = {run: "is a standby" in (run / "logs" / "worker.log").read_text() for run in runs}
        assert sorted(standing.values()) == [False, True], [logs(run) for run in runs]
        dies, stays = (a, b) if standing[b] else (b, a)
        for name in ("worker", "engine"):
            os.kill(int(process_state(dies, name)["pid"]), signal.SIGKILL)
        before = queue.get("update")
        wait_for(lambda: "has taken over" in (stays / "logs" / "worker.log").read_text(), "the standby to take over")
        wait_for(lambda: queue.get("update") > before + 4, "learning to go on")
        server.kill()
        wait_for(lambda: "Serving continues" in (stays / "logs" / "engine.log").read_text(), "the engine to say so")
        asked = look(stays).step
        wait_for(lambda: look(stays).step > asked + 8, "answers without the server")
        server.start()

        def update() -> int:
            try:
                return queue.get("update")
            except QueueError:  # with a password, a server that still loads its data looks ready
                return 0

        wait_for(lambda: update() > 0, "the server's data")
        learnt = update()
        wait_for(lambda: queue.get("update") > learnt + 4, "learning to go on")
        assert stop_run(look(stays), timeout=60).status == "stopped", logs(stays)

        journal = queue.journal(limit=100_000)
        updates = [row.row for row in journal if row.row["kind"] == "update"]
        assert [row["update"] for row in updates] == list(range(1, len(updates) + 1))
        taught = [row["experience"] for row in updates]
        assert len(taught) == len(set(taught)) and len({name.split("/")[1] for name in taught}) >= 1
        assert {row["engine"] for row in updates} == {name.rpartition("/")[0] for name in taught}
        rows = [json.loads(line) for line in (stays / "update_contribution.jsonl").read_text().splitlines()]
        assert [row["update"] for row in rows] == [row["update"] for row in updates]
        with RunReader(stays) as reader:
            recorded = [int(value) for _, value in reader.metrics.points("online/updates")]
        assert recorded == sorted(set(recorded)) and recorded[-1] == len(updates)
        queue.close()
    for run in runs:
        for file in (path for path in run.rglob("*") if path.is_file()):
            assert b"s3cret-of-redis" not in file.read_bytes(), file
