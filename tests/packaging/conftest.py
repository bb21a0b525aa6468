"""The wheel, built once for the tests of this folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("api", "configs", "envs", "rewards", "engine", "tui")


@pytest.fixture(scope="session")
def product() -> list[Path]:
    """Every file of the product; what Python and editors leave behind is not."""
    files = [p for room in ROOMS for p in (ROOT / room).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return sorted(p.relative_to(ROOT) for p in files if not p.name.startswith("."))


@pytest.fixture(scope="session")
def wheel(product: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing in the checkout changes."""
    copy = tmp_path_factory.mktemp("source")
    for file in product:
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
