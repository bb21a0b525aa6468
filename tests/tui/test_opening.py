"""The ways into the app from a shell, in a pseudo-terminal; back to the shell and in again; and inside tmux."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.rewards.breakdown import ComponentValue, RewardBreakdown, StepReward
from grpo_tui.tui.text import literal, width

from .demo_run import make_run
from .terminal import app_terminal, until


def shell(runs: Path, *arguments: str, size: tuple[int, int] = (150, 45)) -> Any:
    words = ("-m", "grpo_tui.tui.entry", *arguments, "--runs-dir", str(runs))
    return app_terminal(*words, cwd=runs.parent, size=size, variables={"XDG_STATE_HOME": runs.parent})


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (("inspect", "ab12", "--at", "160/2"), ("ab12 · 160 of 320", "step 2/")),
        (("inspect", "ab12", "--at", "s3-g1-r2/2"), ("ab12 · 23 of 320", "step 2/")),
        (("inspect", "ab12", "--live"), ("reward", "? help", "40/40")),
        (("inspect", "ab12", "--filter", "step=7 and not correct"), ("step=7 and not correct", "1 of ")),
        (("inspect", "ab12", "--search", "mask"), ("“mask”", "1 of ")),
        (("live", "ab12"), ("reward", "? help", "40/40")),
    ],
    ids=lambda given: " ".join(given[2:] or given),
)
def test_the_app_opens_there(runs: Path, arguments: tuple[str, ...], seen: tuple[str, ...]) -> None:
    with shell(runs, *arguments) as screen:
        screen.see(*seen)
        screen.press("q")
        assert screen.wait() == 0


@pytest.mark.parametrize(("at", "why"), [("999/2", "it has numbers 1 to 320"), ("nobody", "no trajectory 'nobody'")])
def test_a_place_that_is_not_there_is_told_before_the_app_opens(runs: Path, at: str, why: str) -> None:
    with shell(runs, "inspect", "ab12", "--at", at) as screen:
        assert screen.wait() == 3
        assert why in screen.text and b"\x1b[?1049h" not in screen.raw


def test_live_opens_what_is_recorded_now(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs, "old1", steps=2)
    with shell(runs, "live") as screen:
        assert screen.wait() == 3
        said = "".join(screen.text.split())  # where its lines break depends on the folder's name
        assert "norunisactive" in said and "grpo-tuiinspectold1" in said
    going = make_run(runs, "new1", steps=2, seed=1, status="running", total_steps=50)
    writer = RunWriter(going, process="training")  # this process writes: the run is alive
    writer.status("running", step=2)
    make_run(runs, "new2", steps=2, seed=2)
    try:
        with shell(runs, "live") as screen:
            screen.see("new1", "2/50")
            screen.press("q")
            assert screen.wait() == 0
    finally:
        writer.close()


def test_ctrl_z_gives_the_shell_its_terminal_and_fg_comes_back(runs: Path) -> None:
    with shell(runs, "inspect", "ab12", "--at", "160/2") as screen:
        screen.see("ab12 · 160 of 320", "step 2/")
        app = psutil.Process(screen.pid)
        screen.press("\x1a")
        until(screen, lambda: app.status() == psutil.STATUS_STOPPED)
        screen.settle(0.2)
        assert screen.raw.rstrip().endswith(b"l") or b"\x1b[?1049l" in screen.raw, "the shell's screen is back"
        sent = len(screen.raw)
        os.kill(screen.pid, signal.SIGCONT)
        until(screen, lambda: b"\x1b[?1049h" in bytes(screen.raw[sent:]))
        screen.press("l")
        screen.see("ab12 · 160 of 320", "step 3/3" if "step 2/3" in screen.text else "step 2/")
        screen.press("q")
        assert screen.wait() == 0


EMOJI = {
    "flag": "🇩🇪 ab",
    "two flags": "🇩🇪🇫🇷 ab",
    "half a flag": "🇩 ab",
    "skin tone": "👍🏽 ab",
    "tone alone": "🏽 ab",
    "family": "👩‍👩‍👧‍👦 ab",
    "heart": "❤️ ab",
    "keycap": "1️⃣ ab",
    "text form": "☎︎ ab",
    "flag of a region": "🏴󠁧󠁢󠁥󠁮󠁧󠁿 ab",
    "accents": "éè́̂ ab",
    "hangul": "각 한 ab",
    "thai": "กำ ab",
    "wide": "日本語 ab",
    "ambiguous": "①→█ ab",
    "long dash": "⸺ ab",
}
MEASURE = """
import json, os, re, sys, termios, tty
texts, out = json.loads(sys.argv[1]), {}
old = termios.tcgetattr(0)
tty.setraw(0)
for name, text in texts.items():
    os.write(1, ("\\r\\x1b[2K" + text + "\\x1b[6n").encode())
    answer = b""
    while not answer.endswith(b"R"):
        answer += os.read(0, 1)
    out[name] = int(re.search(rb";(\\d+)R", answer)[1]) - 1
termios.tcsetattr(0, termios.TCSANOW, old)
open(sys.argv[2], "w").write(json.dumps(out))
"""


@pytest.fixture
def tmux(tmp_path: Path) -> Any:
    """Runs a tmux command on a server of its own."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    base = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null"]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
    for name in ("TMUX", "COLUMNS", "LINES"):  # where they are set, a program believes them instead of its terminal
        environment.pop(name, None)

    def run(*arguments: str) -> str:
        return subprocess.run([*base, *arguments], env=environment, capture_output=True, text=True, check=True).stdout

    yield run
    subprocess.run([*base, "kill-server"], env=environment, check=False)


def waited(holds: Any, within: float = 30.0) -> Any:
    """What `holds` gives, as soon as it gives something."""
    end = time.monotonic() + within
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def test_tmux_counts_the_cells_of_any_text_as_we_do(tmux: Any, tmp_path: Path) -> None:
    shown = {name: literal(text) for name, text in EMOJI.items()}
    file, script = tmp_path / "cells.json", tmp_path / "measure.py"
    script.write_text(MEASURE)
    command = [sys.executable, str(script), json.dumps(shown), str(file)]
    tmux("new-session", "-d", "-x", "120", "-y", "30", shlex.join(command))
    cells = json.loads(waited(lambda: file.exists() and file.read_text()))
    assert cells == {name: width(text) for name, text in shown.items()}


def test_no_text_shifts_the_cells_beside_it_in_tmux(tmux: Any, tmp_path: Path) -> None:
    texts = [*EMOJI.values(), "नि क्षि ab", "🏳️‍🌈🏳️‍⚧️👨🏿‍🚀 ab"]
    folder = make_run(tmp_path / "runs", "emoji", steps=1)
    steps = (Step(0, "…", " ".join(texts), "LOOK", {"at": texts[0]}, observation="\n".join(texts)),)
    writer = RunWriter(folder)
    reward = RewardBreakdown("e", (StepReward(0, {"task": ComponentValue(0.5, 0.5, 1.0, 0.5)}, total=0.5),), 0.5)
    writer.trajectories(2, [TrajectoryRecord(Trajectory("e", "visual", "p", "g", 0, texts[3], steps), reward)])
    writer.close()
    state = f"XDG_STATE_HOME={tmp_path}"
    command = ["env", state, sys.executable, "-m", "grpo_tui.tui.entry", "inspect", str(folder), "--at", "9"]
    tmux("new-session", "-d", "-x", "100", "-y", "40", shlex.join(command))

    def settled() -> str:
        text = tmux("capture-pane", "-p", "-N")
        time.sleep(0.5)
        whole = "日本語" in text and all(text.splitlines())
        return text if whole and text == tmux("capture-pane", "-p", "-N") else ""

    for _ in range(2):
        lines = waited(settled).splitlines()
        assert len(lines) == 40
        assert [line for line in lines if line[-1] not in "│┤╮╯"] == [], "the border is the last cell"
        assert sum(line.count("│") == 3 for line in lines) > 30, "two panes"
        tmux("send-keys", "c")
        tmux("send-keys", "j")
