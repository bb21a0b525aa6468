"""How the main screens look, as stored pictures (`__snapshots__`), at three sizes in the dark and the light theme.

After a change that is meant to be seen: `pytest tests/tui/test_looks.py --snapshot-update`, then look at the pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from grpo_tui.tui.app.destinations import Live, Runs, Stepper, Trajectories

from .demo_run import make_run
from .drive import make_app, settle

SIZES = [(80, 24), (120, 40), (200, 60)]
MAIN = {
    "runs": (Runs(), ""),
    "live": (Live(Path("runs/ab12")), ""),
    "trajectories": (Trajectories(Path("runs/ab12")), "jj"),
    "stepper": (Stepper(Path("runs/ab12"), 3), ""),
}
OTHERS = {
    "tokens": (Stepper(Path("runs/ab12"), 3), "ttl"),
    "diff": (Stepper(Path("runs/ab12"), 3), "d"),
    "groups": (Trajectories(Path("runs/ab12")), "zj"),
    "compare": (Runs(), "   c"),
    "help": (Live(Path("runs/ab12")), "?"),
    "behaviour": (Live(Path("runs/ab12")), "v"),
    "delete": (Runs(), "D"),
    "filter": (Trajectories(Path("runs/ab12")), "f"),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("looks")
    make_run(folder / "runs", "ab12", steps=40)
    make_run(folder / "runs", "cd34", steps=24, seed=1, status="stopped", total_steps=60)
    make_run(folder / "runs", "ef56", steps=12, seed=2, status="crashed", total_steps=400)
    return folder


async def quiet(pilot: Pilot[Any], keys: str) -> None:
    await settle(pilot)
    for key in keys:
        await pilot.press({" ": "space", "?": "question_mark"}.get(key, key))
        await settle(pilot)


def look(snap_compare: Any, start: Any, keys: str, size: tuple[int, int], theme: str) -> bool:
    app = make_app(Path("runs"), start, theme=theme)
    return snap_compare(app, terminal_size=size, run_before=lambda pilot: quiet(pilot, keys))


@pytest.mark.parametrize("theme", ["grpo-dark", "grpo-light"])
@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", MAIN)
def test_main_screens(
    snap_compare: Any, here: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: tuple[int, int], theme: str
) -> None:
    monkeypatch.chdir(here)
    start, keys = MAIN[name]
    assert look(snap_compare, start, keys, size, theme)


@pytest.mark.parametrize("name", OTHERS)
def test_other_screens(snap_compare: Any, here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(here)
    start, keys = OTHERS[name]
    assert look(snap_compare, start, keys, (120, 40), "grpo-dark-safe")


def test_without_colour(snap_compare: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`NO_COLOR`: signs, words and patterns still say everything; images become shades of characters."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("NO_COLOR", "1")
    assert look(snap_compare, Stepper(Path("runs/ab12"), 3), "", (120, 40), "grpo-dark")
