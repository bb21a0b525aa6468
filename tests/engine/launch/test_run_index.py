"""The list of runs looks again only at runs that may have changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_tui.engine.launch import find
from grpo_tui.engine.launch.find import list_runs
from grpo_tui.engine.launch.stop import rename_run
from grpo_tui.engine.runs.durable import write_json


def ended(runs_dir: Path, name: str, status: str = "finished") -> Path:
    folder = runs_dir / name
    write_json(folder / "run.json", {"id": name, "created": 5.0, "mode": "rft", "model": "m"})
    state = {"status": status, "step": 3, "summary": {"success/train": {"last": 0.5}}, "ended": 9.0, "exit_code": 0}
    write_json(folder / "processes" / "training.json", state)
    settle(folder)
    return folder


def settle(folder: Path) -> None:
    """Let a moment pass."""
    for path in (folder, folder / "processes"):
        changed = path.stat().st_mtime_ns - 10**10
        os.utime(path, ns=(changed, changed))


def test_what_has_ended_is_looked_at_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    look = find.look
    monkeypatch.setattr(find, "look", lambda folder: looked.append(folder.name) or look(folder))
    names = [f"run-{i:02}" for i in range(40)]
    for name in names:
        ended(tmp_path, name)
    (tmp_path / "run-07" / "processes" / "training.json").write_text("{")  # damaged: it has no process and no end

    def listed() -> set[str]:
        """The runs that were looked at, by another command."""
        find._index.cache_clear()
        looked.clear()
        before = [look(tmp_path / name) for name in sorted(names)]
        assert sorted(list_runs(tmp_path), key=lambda run: run.id) == before
        return set(looked)

    assert listed() == set(names)
    assert listed() == set()
    rename_run(look(tmp_path / "run-03"), "mine")
    ended(tmp_path, "run-04", "stopped")  # resumed and stopped again
    shutil.rmtree(tmp_path / "run-05")
    names.remove("run-05")
    ended(tmp_path, "new")
    names.append("new")
    assert listed() == {"run-03", "run-04", "new"}
    write_json(tmp_path / "run-06" / "processes" / "training.json", {"status": "running", "pid": os.getpid()})
    assert "run-06" in listed() and "run-06" in listed(), "it may end in this very moment"


def test_a_damaged_index_is_no_harm(tmp_path: Path) -> None:
    for i in range(find.NEWS):
        ended(tmp_path, f"run-{i}")
    before = list_runs(tmp_path)
    for damage in ("", "{", "[]", '{"version": 2, "runs": {"run-1": [1, 2, ["x"]]}}'):
        (tmp_path / find.INDEX).write_text(damage)
        find._index.cache_clear()
        assert list_runs(tmp_path) == before


COUNTING = """
import sys
opened = []
sys.addaudithook(lambda event, given: event == "open" and "many/run-" in str(given[0]) and opened.append(given[0]))
from grpo_tui.tui.entry import main
sys.argv = ["grpo-tui", "runs", "--runs-dir", sys.argv[1]]
main()
print(len(opened), file=sys.stderr)
"""


def test_the_command_opens_no_file_of_a_run_that_has_ended(tmp_path: Path) -> None:
    """Also of runs that crashed before their first step, whose status files hold an empty summary."""
    for i in range(find.NEWS):
        crashed = bool(i % 2)
        folder = ended(tmp_path / "many", f"run-{i:02}")
        state = {
            "status": "crashed" if crashed else "finished",
            "summary": {} if crashed else {"success/train": {"last": 0.5, "steps": [3], "curve": [0.5]}},
            "ended": 9.0,
        }
        write_json(folder / "processes" / "training.json", state)
        settle(folder)

    def run() -> tuple[list[str], int]:
        command = [sys.executable, "-c", COUNTING, str(tmp_path / "many")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines(), int(done.stderr)

    first, opened = run()
    assert opened >= 2 * find.NEWS and len(first) == find.NEWS + 1
    assert run() == (first, 0)
