"""Runs are opened, filtered, stepped, checked and recorded on Windows and macOS, and a training starts there.

On Linux, both systems are simulated.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.forked import ANEW, forked_processes

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


class System:
    """A folder on a system. On a simulated one, commands are forks of one process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        path = os.pathsep.join(map(str, (HERE / "other_system", ROOT / "typings", ROOT) if SIMULATED else (ROOT,)))
        system = {"OTHER_SYSTEM": self.name, "XDG_CACHE_HOME": str(folder / "cache")}
        self.environment = {**os.environ, "PYTHONPATH": path, **system}
        self._server = self._start("import commands; commands.serve()") if SIMULATED else None

    def python(self, code: str, *arguments: str, found: int = 0) -> str:
        """What a process prints that runs `code`; `found`: another exit code that is right."""
        if self._server is None:
            process = self._start(code, *arguments)
            out, err = process.communicate(timeout=120)
            return checked(process.returncode, out, err, found)
        assert self._server.stdin is not None and self._server.stdout is not None
        files = [self.folder.parent / name for name in ("out", "err")]
        print(json.dumps([code, arguments, list(map(str, files))]), file=self._server.stdin, flush=True)
        code_of_exit = int(self._server.stdout.readline())
        return checked(code_of_exit, files[0].read_text(), files[1].read_text(), found)

    def _start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.communicate()


def checked(code: int, out: str, err: str, found: int) -> str:
    """What was printed, by a process that ended well."""
    assert code in (0, found) and "Traceback" not in err, out + err
    return out or err


@pytest.fixture(scope="module", params=["windows", "macos"] if SIMULATED else [sys.platform])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system, in a folder with a run that the recorder made there."""
    folder = tmp_path_factory.mktemp("system") / request.param
    folder.mkdir()
    made = System(folder)
    made.python(RECORDING)
    yield made
    made.close()


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
def test_the_harness_shows_another_system(system: System) -> None:
    system.python(
        "__name__ = 'grpo_tui'"
        + HARNESS[system.name]
        + """
for wrong in refused:
    try:
        exec(wrong)
    except (ImportError, OSError):
        continue
    raise SystemExit(wrong)
""",
    )


def test_a_recorded_run_is_listed_filtered_checked_and_exported(system: System) -> None:
    assert "mine" in system.python(MAIN, "runs")
    found = system.python(MAIN, "inspect", "mine", "--filter", "reward>0.5", "--json")
    assert len(found.splitlines()) == 3
    system.python(MAIN, "check", "mine", found=1)
    system.python(MAIN, "note", "mine", json.loads(found.splitlines()[0])["id"], "good")
    system.python(MAIN, "export", "mine", "--out", "rollouts.jsonl")
    assert len((system.folder / "rollouts.jsonl").read_text().splitlines()) == 12


@pytest.mark.parametrize("dump", ["trl", "verifiers-v1", "inspect-ai"])
def test_dumps_of_other_frameworks_are_indexed_and_checked(system: System, dump: str) -> None:
    kept = shutil.copytree(PEERS / dump, system.folder / dump)
    for _ in ("indexed", "opened again"):
        facts = json.loads(system.python(MAIN, "inspect", str(kept), "--json"))["run"]["facts"]
        assert facts["rollouts"] > 0
    system.python(MAIN, "check", str(kept), found=1)


def test_the_app_steps_through_a_run(system: System) -> None:
    assert "stepped" in system.python(STEPPING)


@pytest.mark.slow
def test_a_training_starts(system: System) -> None:
    settings = [word for setting in TRAINING for word in ("--set", setting)]
    train = [sys.executable, "-m", "grpo_tui.tui.entry", "train", "--headless", "--run-id", "small", *settings]
    with forked_processes() if SIMULATED else nullcontext():
        done = subprocess.run(
            train,
            cwd=system.folder,
            env={**system.environment, ANEW: "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    said = checked(done.returncode, done.stdout, done.stderr, 0)
    assert "finished at step 1" in said, said
    assert (system.folder / "adapters" / "adapter_model.safetensors").exists()
    assert "small" in system.python(MAIN, "inspect", "small", "--json")


def test_serving_with_learning_is_refused_on_windows_in_one_sentence(system: System) -> None:
    if system.name in ("windows", "win32"):
        said = system.python(MAIN, "online", "--headless", "--run-id", "served", found=2)
        assert said.count("\n") == 1 and "Linux or macOS" in said, said
        assert not (system.folder / "runs" / "served").exists()
