"""A process of a run imports from the working directory what the user names, and no folder with a library's name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_tui.engine.launch.children import spawn

PROGRAM = """
import importlib.util, os, subprocess, sys
from grpo_tui.engine.launch.outcome import set_up_logging
set_up_logging()
from grpo_tui.envs.user_code import find_class
print([importlib.util.find_spec(name) for name in ("vllm_missing", "logs")])
print(find_class("my_env.MyEnv").value(), find_class("file_env.py:FileEnv").value)
print([importlib.util.find_spec(name) for name in ("vllm_missing", "logs", "other")])
import yaml, numpy
print(yaml.safe_load("1"), numpy.zeros(1).shape, "PYTHONSAFEPATH" in os.environ)
"""


def test_only_code_that_the_user_names_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vllm_missing", "numpy", "yaml", "logs"):
        (tmp_path / name).mkdir()
    (tmp_path / "vllm_missing" / "__init__.py").write_text("raise ImportError('a clone of the repository')")
    (tmp_path / "helpers.py").write_text("NUMBER = 3")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "late.py").write_text("NUMBER = 4")
    code = "from helpers import NUMBER\nclass {}:\n    value = {}\n"
    late = "staticmethod(lambda: NUMBER + __import__('more.late', fromlist=['NUMBER']).NUMBER)"
    (tmp_path / "my_env.py").write_text(code.format("MyEnv", late))
    (tmp_path / "file_env.py").write_text(code.format("FileEnv", "NUMBER"))
    monkeypatch.chdir(tmp_path)
    child = spawn(tmp_path / "run", "training", [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE)
    told = child.communicate(timeout=60)[0].decode()
    assert child.returncode == 0, (tmp_path / "run" / "logs" / "training.log").read_text()
    assert told.splitlines() == ["[None, None]", "7 3", "[None, None, None]", "1 (1,) False"]
