"""The wheel holds every module and data file, and works where nothing else of this repository is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("configs", "envs", "rewards", "engine", "tui")


def source_files() -> list[Path]:
    """Every file of the product; what Python and editors leave behind is not."""
    files = [p for room in ROOMS for p in (ROOT / room).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return sorted(p.relative_to(ROOT) for p in files if not p.name.startswith("."))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing in the checkout changes."""
    copy = tmp_path_factory.mktemp("source")
    for file in source_files():
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, copy / file)
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copyfile(ROOT / name, copy / name)
        else:
            (copy / name).write_text("# grpo-tui\n")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new environment with the wheel; the libraries it needs are lent from the one that runs the tests."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    python = home / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    installed = subprocess.run(command, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    yield home


def in_clean(clean: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GRPO_TUI", "VIRTUAL_ENV"))}
    return subprocess.run(command, cwd=clean, capture_output=True, text=True, env=environment, timeout=120)


def test_the_wheel_holds_every_module_and_data_file(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert [str(f) for f in source_files() if f"grpo_tui/{f}" not in names] == []


def test_the_wheel_holds_nothing_else(wheel: Path):
    packaged = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert packaged - {f"grpo_tui/{f}" for f in source_files()} == set()


def test_the_wheel_is_what_a_clean_environment_imports(clean: Path):
    answer = in_clean(clean, str(clean / "bin" / "python"), "-c", "import grpo_tui.tui as t; print(t.__file__)")
    assert str(clean) in answer.stdout, answer.stderr


def test_the_command_runs_in_a_clean_environment(clean: Path):
    command = str(clean / "bin" / "grpo-tui")
    answer = in_clean(clean, command, "--help")
    assert answer.returncode == 0 and "inspect" in answer.stdout, answer.stderr
    answer = in_clean(clean, command, "config", "check", "qwen3_0.6b")
    assert answer.returncode == 0 and "good" in answer.stdout, answer.stderr
    answer = in_clean(clean, command, "runs")
    assert answer.returncode == 0 and "no runs" in answer.stdout, answer.stderr
