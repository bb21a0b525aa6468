"""The wheel holds every module and data file, and nothing else. `test_light.py` installs it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.together("packaging")
"""What the fixtures of these files make is made once, not by each worker."""


def installed(file: Path) -> str:
    """Where a file of the checkout stands in the wheel: `api/` is the package's own top."""
    return f"grpo_tui/{file.relative_to('api') if file.parts[0] == 'api' else file}"


def test_the_wheel_holds_every_module_and_data_file(wheel: Path, product: list[Path]):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert [str(f) for f in product if installed(f) not in names] == []


def test_the_wheel_holds_nothing_else(wheel: Path, product: list[Path]):
    packaged = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert packaged - {installed(f) for f in product} == set()
