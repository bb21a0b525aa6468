"""Runs are opened, filtered, stepped, checked and recorded on Windows and macOS, and a training starts there.

On Linux, both systems are simulated.
"""

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


TRAINING = (
    *("model.base=builtin:tiny", "environment.class_path=grpo_tui.envs.CalculatorEnv", "environment.eval_tasks=0"),
    *("environment.config={operations: 1}", "training.max_steps=1", "training.prompts_per_step=2"),
    *("training.num_generations=2", "training.max_turn_tokens=6", "training.output_dir=adapters"),
)


SIMULATED = sys.platform == "linux"


@pytest.fixture(scope="module", params=["windows", "macos"] if SIMULATED else [sys.platform])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder named by the system, with a run that the recorder made there."""
    made = tmp_path_factory.mktemp("system") / request.param
    made.mkdir()
    python(made, RECORDING)
    return made


def python(folder: Path, code: str, *arguments: str, found: int = 0) -> str:
    path = os.pathsep.join(map(str, (HERE / "other_system", ROOT / "typings", ROOT) if SIMULATED else (ROOT,)))
    system = {"OTHER_SYSTEM": folder.name, "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **system},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, found) and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stdout or done.stderr


HARNESS = {
    "windows": """
import os, pathlib, shutil, signal
assert os.name == "nt" and not hasattr(os, "fork") and not hasattr(signal, "SIGKILL")
os.makedirs("held")
held, other = open("held/file", "w"), pathlib.Path("other")
other.touch()
refused = (
    *("import fcntl", "os.open('held', os.O_RDONLY)", "os.replace('other', 'held/file')", "shutil.rmtree('held')"),
    *("os.rename('held', 'moved')", "other.replace('held/file')", "pathlib.Path('held/file').unlink()"),
)
""",
    "macos": """
import os, pathlib, platform
assert platform.system() == "Darwin" and not hasattr(os, "sched_getaffinity") and os.name == "posix"
assert not pathlib.Path("/proc/self").exists()
refused = ("pathlib.Path('/proc/cpuinfo').read_text()", "os.readlink('/proc/self/ns/pid')", "open('/proc/stat')")
""",
}


@pytest.mark.skipif(not SIMULATED, reason="this is another system")
def test_the_harness_shows_another_system(folder: Path) -> None:
    python(
        folder,
        "__name__ = 'grpo_tui'"
        + HARNESS[folder.name]
        + """
for wrong in refused:
    try:
        exec(wrong)
    except (ImportError, OSError):
        continue
    raise SystemExit(wrong)
""",
    )


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


@pytest.mark.slow
def test_a_training_starts(folder: Path) -> None:
    settings = [word for setting in TRAINING for word in ("--set", setting)]
    said = python(folder, MAIN, "train", "--headless", "--run-id", "small", *settings)
    assert "finished at step 1" in said, said
    assert (folder / "adapters" / "adapter_model.safetensors").exists()
    assert "small" in python(folder, MAIN, "inspect", "small", "--json")


def test_serving_with_learning_is_refused_on_windows_in_one_sentence(folder: Path) -> None:
    if folder.name in ("windows", "win32"):
        said = python(folder, MAIN, "online", "--headless", "--run-id", "served", found=2)
        assert said.count("\n") == 1 and "Linux or macOS" in said, said
        assert not (folder / "runs" / "served").exists()
