from __future__ import annotations

from pathlib import Path

import pytest

from tests.repeated import lighten_strips, parse_styles_once

from .demo_run import make_run
from .rest import wait_for_idle

lighten_strips()
parse_styles_once()


@pytest.fixture(autouse=True)
def _no_dumps_of_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dumps that somebody opened on this machine are in no list here, and ours in none of theirs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _wait_for_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pilot waits for the app itself, and not 20 ms a time."""
    monkeypatch.setattr("textual.app.wait_for_idle", wait_for_idle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", wait_for_idle)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three runs; tests that use it only read."""
    folder = tmp_path_factory.mktemp("app") / "runs"
    make_run(folder, "ab12", steps=40)
    make_run(folder, "cd34", steps=12, seed=1, status="stopped", total_steps=60)
    make_run(folder, "ef56", steps=6, seed=2, status="crashed", total_steps=400)
    return folder


@pytest.fixture(scope="session")
def run(runs: Path) -> Path:
    """A finished run with 320 trajectories."""
    return runs / "ab12"


@pytest.fixture
def own_runs(tmp_path: Path) -> Path:
    """A folder with two small runs that a test may change."""
    folder = tmp_path / "runs"
    make_run(folder, "one", steps=3)
    make_run(folder, "two", steps=2, seed=1, status="running", total_steps=50)
    return folder
