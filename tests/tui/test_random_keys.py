"""Random keys, clicks, pastes and sizes: the app never fails, screens stay whole, no text steers the terminal."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from textual import events

from grpo_tui.tui.app.bindings import TABLE
from grpo_tui.tui.app.destinations import (
    Behavior,
    Diff,
    Further,
    Groups,
    Live,
    Runs,
    Scatter,
    SideBySide,
    Stepper,
    Trajectories,
)

from .drive import Driver, running, settle
from .test_hostile import NASTY, make_hostile
from .test_hostile import check as check_literal

SIZES = [(20, 5), (80, 24), (120, 40), (400, 120)]
LEAVES = {"q", "ctrl+z", "o", "O"}
"""Keys that end the session or wait for another program."""
KEYS = sorted({key for row in TABLE for key in row.keys.split(",")} - LEAVES | {"enter", "escape", "tab", "ctrl+p"})
TYPED = ["1", "7", "slash", "colon", "a", "e", "space", "less_than_sign", "quotation_mark", "backspace", "é", "日"]


PASTED = ["12", "reward<0.2", "word\nnext", NASTY]


async def session(run: Path, seed: int, presses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Act at random, beginning at a screen that the seed chooses."""
    rng = random.Random(seed)
    runs = run.parent
    start = rng.choice(
        [
            Runs(),
            Live(run),
            Trajectories(run),
            Groups(run),
            Stepper(run, 5),
            Diff(run, 5),
            Behavior(run),
            SideBySide(run, 5),
            Scatter(run),
            Further(run, "Timeline"),
        ]
    )
    monkeypatch.setenv("PAGER", "no-such-program")
    said: list[str] = []
    async with running(runs, start, size=SIZES[seed % len(SIZES)]) as app:
        for at in range(presses):
            act = rng.random()
            if act < 0.08:
                width, height = app.app.size
                await app.pilot.click(
                    offset=(rng.randrange(width), rng.randrange(height - 1))
                )  # quit is in the last line
                said.append("click")
            elif act < 0.12:
                app.app.post_message(events.Paste(rng.choice(PASTED)))  # as a terminal's driver does
                said.append("paste")
            else:
                keys = [rng.choice(KEYS if rng.random() < 0.85 else TYPED) for _ in range(1 + 2 * rng.randrange(2))]
                said.extend(keys)
                await app.burst(*keys)
            if at % 70 == 69:
                await app.pilot.resize_terminal(*rng.choice(SIZES))
            if at % 25 == 24:
                await settle(app.pilot)
                check(app, said)
            assert app.app._exception is None and not app.app.failure, said
            if not app.app.is_running:
                break
        assert app.app.is_running, " ".join(said[-12:])


def check(app: Driver, said: list[str]) -> None:
    """As many lines as the terminal has, and a way out in the last one."""
    check_literal(app.text)
    lines = app.text.split("\n")
    assert len(lines) == app.app.size.height, said
    if hasattr(app.screen, "frame") and hasattr(app.screen, "view") and not app.screen.query("#prompt-bar"):
        assert "esc" in lines[-1] or app.app.screen.query("Toast"), (said, lines[-1])


@pytest.fixture
def own(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs that random keys may rename, forget and delete."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(runs, tmp_path / "runs"))


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_hostile(tmp_path / "runs")


@pytest.mark.parametrize("seed", [0, 1])
async def test_random_keys_do_no_harm(own: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await session(own / "ab12", seed, 50, monkeypatch)


async def test_random_keys_over_hostile_text_do_no_harm(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await session(hostile, 2, 50, monkeypatch)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(12))
async def test_many_random_keys_do_no_harm(own: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await session(own / "ab12", seed, 350, monkeypatch)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(12))
async def test_many_random_keys_over_hostile_text_do_no_harm(
    hostile: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session(hostile, seed, 350, monkeypatch)
