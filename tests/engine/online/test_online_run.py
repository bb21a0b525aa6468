"""Whole runs in processes of their own: served, learnt from, recorded, stopped, resumed, piped."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from grpo_tui.configs.metric_names import meaning
from grpo_tui.configs.writing import to_yaml
from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.launch.stop import stop_run
from grpo_tui.engine.online.store.snapshots import pointed_version
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.runs.control import requests as control
from grpo_tui.engine.runs.control.status import ENDED, look
from grpo_tui.engine.runs.paths import OnlineFolder
from grpo_tui.engine.runs.read.reader import RunReader
from tests.forked import forked_processes

from .living import counts
from .tiny import run_config

LONG = 180.0


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def wait_for(condition: Any, what: str, seconds: float = LONG) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited for {what}")


def logs(run_dir: Path) -> str:
    return "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in (run_dir / "logs").glob("*.log"))


def snapshot_actions(run_dir: Path) -> set[str]:
    return {event.data["action"] for event in RunReader(run_dir).events(kinds=["snapshot"], limit=1000)}


def test_a_run_serves_learns_validates_and_ends_by_itself(tmp_path: Path) -> None:
    config = run_config(
        tmp_path / "policy",
        max_requests=24,
        snapshot_every=4,
        validation={"every_updates": 4, "tasks": 4, "canary_tasks": 4},
    )
    with forked_processes():
        run_dir = Path(start_run(config, runs_dir=tmp_path / "runs", run_id="one").path)
    status = wait_for(lambda: (i := look(run_dir)).status in ENDED and i, "the run's end")
    assert status.status == "finished", logs(run_dir)
    reader = RunReader(run_dir)
    latest = reader.metrics.latest()
    assert [name for name in latest if not meaning(name)] == []
    rows = [json.loads(line) for line in (run_dir / "update_contribution.jsonl").read_text().splitlines()]
    queue = SqliteQueue(OnlineFolder(run_dir).queue)
    found = counts(queue)
    settled = found.get("applied", 0) + found.get("rejected", 0)
    assert settled == len(rows) == latest["online/updates"] > 5
    assert found.keys() <= {"applied", "rejected", "stale", "dropped"}
    assert reader.rollouts.count() == 24 * config.online.samples
    for name in (
        *("current_beta", "mean_kl", "queue_depth", "snapshot_version", "serving_version", "gate_rate", "flip_rate"),
        *("success", "confidence"),
    ):
        assert f"online/{name}" in latest
    curve = dict(reader.metrics.points("online/current_beta"))
    for row in rows:  # what is in the record is what the worker committed
        assert curve[row["request"]] == row["beta"]
    assert latest["online/snapshot_version"] == pointed_version(run_dir / "snapshots")
    beta = reader.events(kinds=["beta"], limit=1000)
    assert len(beta) == sum(r.row["kind"] == "beta" for r in queue.journal(limit=10_000))
    assert all({"from", "to", "reason", "mean_kl", "target_kl"} <= e.data.keys() for e in beta)
    assert "published" in snapshot_actions(run_dir)
    assert queue.get("offered") == queue.get("update")  # what was learnt last was validated before the end
    assert queue.get("candidate") is None


def ask_over_http(run_dir: Path, timeout: float = 60) -> dict[str, Any]:
    address = wait_for(lambda: _address(run_dir), "the address")
    body = {"messages": [{"role": "user", "content": "what is it?"}]}
    return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=timeout).json()


def test_stopped_resumed_and_asked_over_http(tmp_path: Path) -> None:
    config = run_config(tmp_path / "policy", serve="127.0.0.1:0", snapshot_every=2)
    runs = tmp_path / "runs"
    with forked_processes():
        run_dir = Path(start_run(config, runs_dir=runs, run_id="two").path)

    def ask(count: int, timeout: float = 60) -> list[dict[str, Any]]:
        return [ask_over_http(run_dir, timeout) for _ in range(count)]

    answers = ask(10)
    assert all(a["choices"][0]["message"]["content"] in ("0", "1", "2") for a in answers)
    assert [a["grpo_tui"]["request"] for a in answers] == list(range(1, 11))
    wait_for(lambda: (pointed_version(run_dir / "snapshots") or 0) >= 2, "a second version")
    wait_for(lambda: "loaded" in snapshot_actions(run_dir), "a version to serve")
    paused = control.request(run_dir, "pause")
    assert "paused" in wait_for(lambda: control.outcome(run_dir, paused, "worker"), "an answer to pause")
    assert ask(1)  # serving continues
    with contextlib.closing(sqlite3.connect(OnlineFolder(run_dir).queue, isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")  # as a worker that was stopped inside a transaction holds it
        assert all(a["choices"] for a in ask(3, timeout=20))
        held.execute("ROLLBACK")
    version = pointed_version(run_dir / "snapshots")
    assert stop_run(look(run_dir), timeout=60).status == "stopped", logs(run_dir)
    updates = SqliteQueue(OnlineFolder(run_dir).queue).get("update")

    with forked_processes():
        start_run(config, runs_dir=runs, resume="two")
    again = ask(4)
    assert [a["grpo_tui"]["request"] for a in again] == [15, 16, 17, 18]
    assert again[-1]["grpo_tui"]["policy_version"] >= (version or 0) - 1
    wait_for(lambda: SqliteQueue(OnlineFolder(run_dir).queue).depth() == 0, "the queue to be used up")
    assert stop_run(look(run_dir), timeout=60).status == "stopped", logs(run_dir)
    rows = [json.loads(line) for line in (run_dir / "update_contribution.jsonl").read_text().splitlines()]
    assert [r["update"] for r in rows] == list(range(1, len(rows) + 1)) and len(rows) >= updates
    assert (pointed_version(run_dir / "snapshots") or 0) >= (version or 0)


def _address(run_dir: Path) -> str | None:
    file = OnlineFolder(run_dir).address
    assert look(run_dir).status != "crashed", logs(run_dir)
    try:
        return json.loads(file.read_text())["url"]
    except (OSError, ValueError):
        return None


def test_in_a_pipe(tmp_path: Path) -> None:
    """Not forked: engine, worker and validator start as they do for a user."""
    config = run_config(tmp_path / "policy")
    config.environment.class_path = str(Path(__file__).with_name("tiny.py:LoudEnv"))
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    command = [sys.executable, "-m", "grpo_tui.tui.cli", "online", str(tmp_path / "config.yaml"), "--requests", "-"]
    lines = [
        '{"id": "a", "task_data": {"question": "what is it?", "answer": "1"}}',
        "not json",
        '{"id": "b", "task_data": {"question": "red"}}',
        *(json.dumps({"id": f"failing {i}", "task_data": {}}) for i in range(5)),
    ]
    done = subprocess.run(
        [*command, "--runs-dir", str(tmp_path / "runs"), "--run-id", "three"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(out) == 8, done.stderr + logs(tmp_path / "runs" / "three")
    by_id = {o.get("id"): o for o in out}
    assert by_id["a"]["answer"] in ("0", "1", "2") and "trajectory_id" in by_id["b"]
    assert "line 2: not JSON" in by_id[None]["error"]
    assert all("needs a question" in by_id[f"failing {i}"]["error"] for i in range(5))
    [alert] = RunReader(tmp_path / "runs" / "three").events(kinds=["alert"], limit=100)
    assert alert.data["detector"] == "environment" and len(alert.data["trajectories"]) == config.online.samples
    assert "The last 5 requests all failed in the environment" in done.stderr
    assert done.returncode == 0
    assert "run three finished" in done.stderr
    assert look(tmp_path / "runs" / "three").mode == "online"
