"""Files and folders of other users, and users without a home, as in a container or on a shared disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

USER = 65533
PROGRAM = f"""
import encodings.ascii, os, shutil
from grpo_tui import Recorder
from grpo_tui.tui.cli.main import run

def use(name):
    with Recorder(name, runs_dir="runs") as record:
        record.rollouts(1, [{{"prompt": "a", "completion": "b", "reward": 1.0}}])
    for words in (
        ["runs"], ["runs", "--runs-dir", "only"], ["inspect", "closed"], ["inspect", "unreadable"],
        ["repair", "unreadable"], ["export", "unreadable", "--out", f"{{name}}.jsonl"],
        ["inspect", "dump.jsonl"], ["inspect", "dumps"],
    ):
        print("==", *words, flush=True)
        print("exit code", run(words), flush=True)

use("first")  # imports everything while that is allowed
for name in ("closed", "unreadable"):
    shutil.copytree("runs/first", f"runs/{{name}}")
shutil.copytree("runs/first", "only/closed")
os.chmod("runs/closed", 0)
os.chmod("only/closed", 0)
os.chmod("runs/unreadable/record.sqlite", 0)
os.chmod("dumps/closed.jsonl", 0)
os.chmod("dumps/folder", 0)
print("as another user", flush=True)
if os.getuid() == 0:
    os.setgroups([])
    os.setuid({USER})
os.environ.pop("HOME")
os.environ.update(eval(os.environ["LATER"]))
use("second")
"""


@pytest.fixture(scope="module", params=["no home", "a home of another user"])
def said(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """What each command prints to another user."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        for folder in ("", "runs", "home", "dumps", "dumps/folder"):
            (here / folder).mkdir(exist_ok=True)
            (here / folder).chmod(0o777)
        row = '{"prompt": "a", "completion": "b", "reward": 1.0}\n'
        for file in ("dump.jsonl", "dumps/closed.jsonl", "dumps/open.jsonl"):
            (here / file).write_text(row)
        later = {}
        if request.param != "no home":
            (here / "home").chmod(0)
            later["HOME"] = str(here / "home")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=here,
            env={**kept, "TMPDIR": name, "HOME": str(here / "root"), "LATER": repr(later)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        answers = done.stdout.partition("as another user")[2].split("\n== ")[1:]
        yield {line: rest for line, _, rest in (answer.partition("\n") for answer in answers)}


def test_a_folder_of_another_user_hides_no_other_run(said: dict[str, str]) -> None:
    assert "second" in said["runs"] and "first" in said["runs"] and "exit code 0" in said["runs"]
    assert "closed cannot be read: Permission denied\nexit code 3" in said["inspect closed"]
    assert "only/closed/run.json cannot be used: Permission denied\nexit code 1" in said["runs --runs-dir only"]


def test_a_record_of_another_user_is_not_damaged(said: dict[str, str]) -> None:
    assert "cannot be opened (Permission denied)" in said["inspect unreadable"]
    assert "wrote 0 trajectories" in said["export unreadable --out second.jsonl"]
    assert "exit code 1" in said["export unreadable --out second.jsonl"]
    assert said["repair unreadable"].endswith("Permission denied\nexit code 1")


def test_a_dump_opens_without_a_home(said: dict[str, str]) -> None:
    assert "1 rollout in 1 file" in said["inspect dump.jsonl"] and "exit code 0" in said["inspect dump.jsonl"]
    assert "skipped: closed.jsonl: Permission denied\nskipped: folder: Permission denied\n" in said["inspect dumps"]
