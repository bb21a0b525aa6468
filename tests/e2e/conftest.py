"""One tiny model for all end-to-end tests, and no run left behind by any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_tui.engine.launch.find import list_runs
from grpo_tui.engine.launch.stop import stop_run

from .world import save_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder to work in; whatever still runs in it afterwards is stopped."""
    yield tmp_path
    for run in list_runs(tmp_path / "runs"):
        stop_run(run, timeout=0, force=True)
