"""One number for one thing: in the list, in JSON, in the lines of a followed run; and parts that add up to it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.durable import write_json
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.cli.follow import follow

from .conftest import Cli
from .record import record


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """An online run of 200 requests of which every fourth was answered rightly, the last one among them."""
    folder = tmp_path / "runs" / "served"
    write_json(folder / "run.json", {"id": "served", "mode": "online", "created": 1.0})
    writer = RunWriter(folder, process="engine")
    for step in range(1, 201):
        writer.metrics(step, {"online/success": float(step % 4 == 0), "online/queue_depth": 0.0})
    writer.status("finished", step=200)
    writer.close()
    return folder


def test_the_success_of_serving_is_one_rate_everywhere(cli: Cli, served: Path) -> None:
    listed = cli("runs", "--runs-dir", str(served.parent)).stdout.splitlines()[1]
    said = json.loads(cli("runs", "--json", "--runs-dir", str(served.parent)).stdout)
    assert said["success"] == 0.25 and "0.25" in listed
    told: list[str] = []
    writer = RunWriter(served, process="engine")
    writer.status("running", step=200)

    def more() -> None:
        for step in range(201, 205):
            writer.metrics(step, {"online/success": float(step % 4 == 0)})
        assert writer.flush(10)
        writer.status("finished", step=204)

    threading.Timer(0.2, more).start()
    assert follow(look(served), out=told.append) == 0
    writer.close()
    assert any("success of 100 0.25" in line for line in told), "not that of the last request"


@pytest.mark.parametrize("number", ["1", "2"])
def test_the_json_of_a_rollout_adds_up(cli: Cli, tmp_path: Path, number: str) -> None:
    run = record(tmp_path / "runs")
    said = json.loads(cli("inspect", run.name, "--json", "--trajectory", number, "--runs-dir", str(run.parent)).stdout)
    steps = said["breakdown"]["steps"]
    for step in steps:
        parts = step["components"].values()
        assert sum(p["contribution"] for p in parts) == pytest.approx(step["total"])
        assert all(p["normalized"] * p["weight"] == pytest.approx(p["contribution"]) for p in parts)
        assert sum(p["amount"] for p in step["penalties"]) == pytest.approx(
            step["components"].get("penalty", {"raw": 0.0})["raw"]
        )
    assert sum(step["total"] for step in steps) == pytest.approx(said["breakdown"]["total"])


def test_a_list_of_runs_loads_no_typer_and_no_record(cli: Cli, served: Path) -> None:
    code = (
        "import sys; from grpo_tui.tui.entry import main; main(); "
        "names = ('typer', 'pydantic', 'grpo_tui.engine.runs.read.reader'); "
        "print(*[m for m in names if m in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "runs", "--runs-dir", str(served.parent)]
    quick = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert quick.stderr.strip() == "" and quick.stdout == cli("runs", "--runs-dir", str(served.parent)).stdout
    wrong = subprocess.run([*command, "--nonsense"], capture_output=True, text=True, timeout=120)
    assert "No such option" in wrong.stderr, "what is not plain is explained by the command line"
