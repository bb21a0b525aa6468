"""What the worker did, as wandb gets it: its own axis, since several updates may belong to one request."""

from __future__ import annotations

from pathlib import Path

import pytest
import wandb

from grpo_tui.configs.sections.base import LoggingConfig
from grpo_tui.configs.sections.online import KLConfig
from grpo_tui.engine.online.serve.record_keeper import RecordKeeper
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.record.wandb_sink import WandbSink
from grpo_tui.engine.runs.control.alerts import SUGGESTIONS
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import RunWriter
from tests.repeated import lighten_wandb

from ...rewards.wandb_file import history


def test_each_update_is_a_point_of_its_own_in_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    lighten_wandb()
    problems: list[str] = []
    sink = WandbSink(LoggingConfig(wandb="offline"), tmp_path, run_id="ab12", on_problem=problems.append)
    queue, writer = SqliteQueue(tmp_path / "queue.sqlite"), RunWriter(tmp_path / "run", process="engine")
    keeper = RecordKeeper(writer, queue, KLConfig(), sinks=[sink])
    journal = [{"kind": "update", "update": n, "request": 1 + n // 4, "beta": n / 100, "kl": 0.0} for n in range(1, 13)]
    queue.settle([], journal)
    assert keeper.copy_journal() == 12
    keeper.metrics(5, {"online/success": 1.0})
    writer.close()
    sink.close()
    wandb.teardown()

    [file] = tmp_path.glob("wandb/offline-run-*/run-ab12.wandb")
    rows = list(history(file).values())
    points = [(row["online/updates"], row["online/current_beta"]) for row in rows if "online/current_beta" in row]
    assert points == [(n, n / 100) for n in range(1, 13)] and problems == []
    assert [row["online/request"] for row in rows if "online/success" in row] == [5]


def test_a_reverted_update_is_an_alert_with_its_reason(tmp_path: Path) -> None:
    queue, writer = SqliteQueue(tmp_path / "queue.sqlite"), RunWriter(tmp_path / "run", process="engine")
    too_far = "KL 2 after the update is above the limit 0.5"
    common = {"kind": "update", "request": 1, "kl": 2.0}
    queue.settle([], [{**common, "update": 7, "rejected": too_far}, {**common, "update": 8, "rejected": None}])
    RecordKeeper(writer, queue, KLConfig()).copy_journal()
    writer.close()
    with RunReader(tmp_path / "run") as reader:
        [alert] = [e for e in reader.events() if e.kind == "alert"]
    assert alert.data["detector"] == "kl_limit" and too_far in alert.message
    assert alert.data["threshold"] == KLConfig().limit and alert.data["value"] == 2.0
    assert alert.data["detector"] in SUGGESTIONS
