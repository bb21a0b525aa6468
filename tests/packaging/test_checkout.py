"""The repository holds nothing that a run or a tool left behind."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    *(".ci", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
    *("api", "benchmarks", "configs", "constraints.txt", "docs", "engine", "envs", "examples", "pyproject.toml"),
    *("rewards", "setup.py", "tests", "tui", "typings"),
}
OF_A_RUN = re.compile(r"(^|/)(runs|processes|wandb|saved_models|__pycache__)/|(^|/)run\.json$|\.(sqlite|log|pid|lock)$")
SOURCES = ("engine/runs/", "tests/engine/runs/", "tests/engine/imports/")
"""The code for runs, its tests, and what other frameworks recorded."""
PICTURE = re.compile(r"\.(png|jpe?g|gif|webp|bmp|svg|pdf|mp4)$", re.I)
PICTURES = ("docs/images/", "tests/", "examples/own_pictures/")
POLICIES = "engine/demonstration/policies/"
MEGABYTE = 1_000_000


def stray(files: dict[str, int]) -> list[str]:
    """Which files, by their sizes in bytes, do not belong into the repository."""
    return [
        name
        for name, size in files.items()
        if name.partition("/")[0] not in TOP_LEVEL
        or (OF_A_RUN.search(name) and not name.startswith(SOURCES))
        or (PICTURE.search(name) and not name.startswith(PICTURES))
        or (size > MEGABYTE and not name.startswith(("docs/images/", POLICIES)))
    ]


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="no checkout of git")
def test_every_file_of_the_repository_belongs_there():
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]  # the checkout may belong to another user
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = {name: ROOT / name for name in names if name}
    assert len(paths) > 1000
    assert stray({name: path.lstat().st_size for name, path in paths.items() if path.exists()}) == []


@pytest.mark.parametrize(
    "name",
    [
        "a/b/run.json",
        "configs/run.json",
        "docs/record.sqlite",
        "examples/runs/first/config.yaml",
        "b/processes/training.json",
        "tests/train.log",
        "screen.png",
        "engine/plot.svg",
        "notes.txt",
    ],
)
def test_what_runs_and_tools_leave_is_refused(name: str):
    assert stray({name: 1}) == [name]


@pytest.mark.parametrize("name", ["tests/engine/imports/large.jsonl", "benchmarks/model.safetensors", "README.md"])
def test_a_large_file_is_refused(name: str):
    assert stray({name: MEGABYTE + 1}) == [name]
    assert stray({name: MEGABYTE}) == []


def test_policies_and_pictures_of_the_pages_may_be_large():
    names = [f"{POLICIES}base/model.safetensors", "docs/images/demo.gif"]
    assert stray(dict.fromkeys(names, 6 * MEGABYTE)) == []
