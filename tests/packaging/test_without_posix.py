"""Everything that looks at runs works on a system without POSIX: opened, filtered, stepped, checked, recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PEERS = HERE.parent / "engine" / "imports" / "peer_dumps"
ROOT = HERE.parents[1]
MAIN = "from grpo_tui.tui.entry import main; main()"
RECORDING = """
from grpo_tui import Recorder
with Recorder("mine", runs_dir="runs") as recorder:
    for step in range(3):
        rows = [{"prompt": "1+1?", "completion": str(n), "reward": float(n == 2)} for n in range(4)]
        recorder.rollouts(step, rows)
        recorder.metrics(step, {"loss": 0.5})
"""
STEPPING = """
import asyncio
from pathlib import Path
from tests.tui.drive import running
from grpo_tui.tui.app.destinations import Trajectories

async def step():
    async with running(Path("runs"), Trajectories(Path("runs/mine"))) as app:
        shown = await app.press("enter")
        assert "1+1?" in shown, shown
        await app.press("l", "d", "escape", "t", "question_mark", "escape")
    print("stepped")

asyncio.run(step())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that the recorder made without POSIX."""
    made = tmp_path_factory.mktemp("without-posix")
    python(made, RECORDING)
    return made


def python(folder: Path, code: str, *arguments: str, found: int = 0) -> str:
    path = os.pathsep.join(map(str, (HERE / "without_posix", ROOT / "typings", ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, found) and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stdout


def test_the_harness_blocks_posix(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    code = """
import os, signal
assert os.name == "nt" and not hasattr(os, "fork") and not hasattr(signal, "SIGKILL")
for wrong in ("import fcntl", "os.open('folder', os.O_RDONLY)"):
    try:
        exec(wrong)
    except (ImportError, PermissionError):
        continue
    raise SystemExit(wrong)
"""
    python(tmp_path, code)


def test_a_recorded_run_is_listed_filtered_checked_and_exported(folder: Path) -> None:
    assert "mine" in python(folder, MAIN, "runs")
    found = python(folder, MAIN, "inspect", "mine", "--filter", "reward>0.5", "--json")
    assert len(found.splitlines()) == 3
    python(folder, MAIN, "check", "mine", found=1)
    python(folder, MAIN, "note", "mine", json.loads(found.splitlines()[0])["id"], "good")
    python(folder, MAIN, "export", "mine", "--out", "rollouts.jsonl")
    assert len((folder / "rollouts.jsonl").read_text().splitlines()) == 12


@pytest.mark.parametrize("dump", ["trl", "verifiers-v1", "inspect-ai"])
def test_dumps_of_other_frameworks_are_indexed_and_checked(folder: Path, dump: str) -> None:
    kept = shutil.copytree(PEERS / dump, folder / dump)
    for _ in ("indexed", "opened again"):
        facts = json.loads(python(folder, MAIN, "inspect", str(kept), "--json"))["run"]["facts"]
        assert facts["rollouts"] > 0
    python(folder, MAIN, "check", str(kept), found=1)


def test_the_app_steps_through_a_run(folder: Path) -> None:
    assert "stepped" in python(folder, STEPPING)
