"""What the first paint of a dump waits for, and what goes on behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from grpo_tui.engine.imports.opening import open_dump


def test_opening_loads_nothing_that_only_the_diagnosis_needs():
    code = (
        "import sys, grpo_tui.engine.imports.opening; print(sorted({'pydantic', 'numpy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_indexing_does_not_begin_when_the_app_was_gone_before(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dump = tmp_path / "dump.jsonl"
    dump.write_text('{"prompt": "a", "completion": "b", "reward": 1.0}\n')
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-m", "grpo_tui.engine.imports", str(open_dump(dump).folder), str(gone.pid)]
    assert subprocess.run(command, timeout=60).returncode == 0
