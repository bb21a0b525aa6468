"""Alerts of a run reach a command and a webhook of the user's, not too often, and never harm the run."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from grpo_tui import Recorder
from grpo_tui.engine.runs.control.alerts import AlertDestination, AlertSender
from grpo_tui.engine.runs.read.reader import RunReader


@pytest.fixture
def posted() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    found: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", found
    server.shutdown()
    server.server_close()


def keeper(folder: Path) -> tuple[list[str], Callable[[], list[dict[str, Any]]]]:
    """A command that keeps what it reads, and what it has read."""
    code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
    out = folder / "alerts.jsonl"
    command = [sys.executable, "-S", "-c", code, str(out)]
    return command, lambda: [json.loads(text) for text in out.open()] if out.exists() else []


def settings(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    (folder / "config" / "grpo-tui").mkdir(parents=True)
    (folder / "config" / "grpo-tui" / "config.yaml").write_text(text)


def test_a_command_and_a_webhook_of_the_settings_get_the_alerts_of_a_recorded_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, posted: tuple[str, list[dict[str, Any]]]
):
    command, kept = keeper(tmp_path)
    settings(tmp_path, monkeypatch, f"alerts:\n  command: {json.dumps(command)}\n  webhook: {posted[0]}\n")
    with Recorder(tmp_path / "runs" / "mine") as record:
        record.event("note", "All is well.", step=1)
        record.event(
            "alert",
            "Reward rises; token hf_abcdefghijklmnopqrstuvw.",
            step=2,
            detector="not_finite",
            trajectories=["a"],
        )
    for alerts in (kept(), posted[1]):
        (alert,) = alerts
        assert (alert["run"], alert["step"], alert["severity"], alert["trajectories"]) == ("mine", 2, "warning", ["a"])
        assert "Reward rises" in alert["text"] and alert["suggestion"] in alert["text"] and alert["suggestion"]
        assert "hf_" not in json.dumps(alert), "secrets stay here"
    with RunReader(tmp_path / "runs" / "mine") as reader:
        assert [e.kind for e in reader.events(("note", "alert"))] == ["note", "alert"]


def test_what_comes_too_soon_is_told_together_the_gravest_first_and_repeats_once(tmp_path: Path):
    command, kept = keeper(tmp_path)
    sender = AlertSender(tmp_path, AlertDestination(command=command, every_seconds=3600))
    sender.event("alert", "first", 1, {"detector": "a"})
    until = time.monotonic() + 20
    while not kept() and time.monotonic() < until:
        time.sleep(0.02)
    for step in range(2, 50):
        sender.event("alert", "first again", step, {"detector": "a"})
        sender.event("alert", "second", step, {"detector": "b"})
        sender.event("alert", "gravest", step, {"detector": "c", "severity": "failure"})
        sender.event("alert", "only a hint", step, {"detector": "d", "severity": "hint"})
    assert len(kept()) == 1, "the others wait"
    sender.close()
    assert [(a["message"], a["more"]) for a in kept()] == [("first", 0), ("gravest", 1)]


@pytest.mark.parametrize(
    "destination",
    [
        AlertDestination(command=["/nonexistent/program"]),
        AlertDestination(command=[sys.executable, "-S", "-c", "raise SystemExit(3)"]),
        AlertDestination(webhook="http://127.0.0.1:9/refused"),
        AlertDestination(webhook="http://[broken"),
    ],
)
def test_a_destination_that_fails_costs_only_the_alert(
    destination: AlertDestination, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    sender = AlertSender(tmp_path, destination)
    sender.event("error", "it crashed", 3, {})
    sender.close()
    assert not sender._thread.is_alive()
    assert "the run continues" in caplog.text and "127.0.0.1" not in caplog.text


def test_a_mistake_in_the_settings_is_logged_and_the_run_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    settings(tmp_path, monkeypatch, "alerts:\n  webhook: ftp://nowhere\n")
    with Recorder(tmp_path / "run") as record:
        record.metrics(1, {"loss": 1.0})
    assert "no alerts are sent" in caplog.text and "https://" in caplog.text
    with RunReader(tmp_path / "run") as reader:
        assert reader.metrics.latest() == {"loss": 1.0}


def test_a_run_that_crashes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    command, kept = keeper(tmp_path)
    settings(tmp_path, monkeypatch, f"alerts: {{command: {json.dumps(command)}}}\n")
    with pytest.raises(RuntimeError), Recorder(tmp_path / "run"):
        raise RuntimeError("out of memory")
    (alert,) = kept()
    assert alert["severity"] == "failure" and "out of memory" in alert["message"]
