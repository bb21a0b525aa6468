"""The app in a real pseudo-terminal: what arrives there as bytes, with and without colour and graphics."""

from __future__ import annotations

import json
import os
import signal
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks import coding_rollouts

from .terminal import Terminal, app_terminal, until

OPEN = (
    "import sys; from pathlib import Path; from grpo_tui.tui.app.app import run_app; "
    "from grpo_tui.tui.app.destinations import Stepper, Trajectories; run = Path(sys.argv[1]); "
    "run_app(run.parent, Stepper(run, int(sys.argv[2])) if sys.argv[2:] else Trajectories(run))"
)


def terminal(
    run: Path, *arguments: str, variables: dict[str, str] | None = None, size: tuple[int, int] = (150, 45)
) -> Any:
    given = {"XDG_STATE_HOME": str(run.parent / "state"), **(variables or {})}
    return app_terminal("-c", OPEN, str(run), *arguments, cwd=run.parent, size=size, variables=given)


def test_a_person_steps_through_a_run_and_leaves(run: Path) -> None:
    with terminal(run) as screen:
        screen.see("1 of 320", "SEGMENT")
        screen.press("j\r")
        screen.see("step 1/", "reward of this step", "ab12 · 2 of 320")
        screen.press("L")
        screen.see("ab12 · 3 of 320", "missing prerequisite", "right:")
        screen.press("t")
        screen.see("tokens by author")
        screen.press("q")
        assert screen.wait() == 0
        assert b"\x1b[?1049l" in screen.raw, "the terminal is given back as it was"


@pytest.mark.parametrize(
    ("keys", "most", "seen"),
    [
        ("\rx", 4, ("99 ✗ $ pytest -q", "conversation · step 99 of 301", "1 failed", "[exit code: 1]")),
        ("\rfutil", 6, ("1 of 301 steps", "122 ✓ edit app/util.py +3 −1")),
        ("\rd", 3, ("reward 0.00", "A −0.75", "reward 0.25", "A −0.25", "They first differ at step 1")),
    ],
    ids=["the first test command that failed", "the edit of util.py", "the smaller advantage"],
)
def test_a_new_user_needs_few_keys(tmp_path: Path, keys: str, most: int, seen: tuple[str, ...]) -> None:
    """From the list of rollouts of 300 steps, as `inspect` opens it."""
    rollouts = {f"a{i}": list(coding_rollouts.agent(300, i, 2_000)) for i in range(2)}
    file = coding_rollouts.write(tmp_path / "agents.jsonl", rollouts)
    words = ("-m", "grpo_tui.tui.cli", "inspect", str(file))
    assert len(keys) <= most
    with app_terminal(
        *words, cwd=tmp_path, size=(120, 36), forked=False, variables={"XDG_STATE_HOME": tmp_path}
    ) as screen:
        screen.see("1 of 2")
        screen.press(keys[0])
        screen.see("of 301")  # the list has answered: on a busy machine the next key would still be its own
        for key in keys[1:]:
            screen.press(key)
            screen.settle()
        screen.see(*seen)


def ignoring_hangups(run: Path, state: Path) -> Any:
    """The app as under `nohup`."""
    code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{OPEN}"
    return app_terminal("-c", code, str(run), cwd=run.parent, size=(160, 48), variables={"XDG_STATE_HOME": state})


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with output that is not read"])
def test_the_app_ends_when_its_terminal_is_gone(run: Path, tmp_path: Path, busy: bool) -> None:
    screen = ignoring_hangups(run, tmp_path)
    screen.see("1 of 320", "SEGMENT")
    screen.press("\x14")
    screen.settle()
    if busy:
        for _ in range(40):  # full screens, until the terminal's buffer and Textual's queue are full
            screen.press("\x0c")
            time.sleep(0.03)
    os.close(screen.fd)
    try:
        assert screen.process.wait(10.0) == 129
    finally:
        with suppress(ProcessLookupError):
            os.kill(screen.pid, signal.SIGKILL)
    remembered = json.loads((tmp_path / "grpo-tui" / "app.json").read_text())
    assert remembered["theme"] != "grpo-dark", "the theme that was chosen before"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_app_with_its_settings_and_gives_the_terminal_back(
    run: Path, tmp_path: Path, number: signal.Signals
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("this signal is ignored here, as under nohup")
    with terminal(run, variables={"XDG_STATE_HOME": str(tmp_path)}) as screen:
        screen.see("1 of 320", "SEGMENT")
        screen.press("\x14")
        screen.settle()
        os.kill(screen.pid, number)
        assert screen.wait() == 128 + number
        assert b"\x1b[?1049l" in screen.raw and b"\x1b[?1000l" in screen.raw
    assert json.loads((tmp_path / "grpo-tui" / "app.json").read_text())["theme"] != "grpo-dark"


def test_a_signal_ends_the_app_although_its_terminal_does_not_read(run: Path, tmp_path: Path) -> None:
    code = f"from grpo_tui.tui.app import inside_textual; inside_textual._PATIENCE_S = 0.2\n{OPEN}"
    words = ("-c", code, str(run))
    screen = app_terminal(*words, cwd=run.parent, size=(160, 48), variables={"XDG_STATE_HOME": tmp_path})
    try:
        screen.see("1 of 320", "SEGMENT")
        screen.press("\x14")
        screen.settle()
        for _ in range(60):  # full screens, until the terminal's buffer and Textual's queue are full
            screen.press("\x0c")
            time.sleep(0.01)
        os.kill(screen.pid, signal.SIGTERM)
        assert screen.process.wait(10.0) == 128 + signal.SIGTERM
    finally:
        with suppress(ProcessLookupError):
            os.kill(screen.pid, signal.SIGKILL)
        os.close(screen.fd)
    assert json.loads((tmp_path / "grpo-tui" / "app.json").read_text())["theme"] != "grpo-dark"


def test_a_slow_terminal_gets_the_newest_screen_without_those_before_it(run: Path) -> None:
    with terminal(run, size=(160, 48)) as screen:
        screen.see("1 of 320", "SEGMENT")
        screen.settle()
        first = len(screen.raw)
        for _ in range(24):  # a full screen each, while the terminal reads nothing
            screen.press("\x14")
            time.sleep(0.02)
        screen.press("jj")
        screen.see("3 of 320")
        assert len(screen.raw) < 5 * first
        screen.press("q")
        assert screen.wait() == 0


def test_a_drag_is_no_click(run: Path) -> None:
    with terminal(run) as screen:
        screen.see("1 of 320", "SEGMENT")
        screen.press("\x1b[<0;60;13M\x1b[<32;20;15M\x1b[<0;20;15m")
        screen.settle()
        screen.press("j")
        screen.see("2 of 320")  # whoever drags wants to select text, not a row
        screen.press("\x1b[<0;20;15M\x1b[<0;20;15m")
        screen.see("6 of 320")


def test_bytes_that_are_no_text_are_skipped(run: Path) -> None:
    """As in a paste from another encoding, or in the reports of a mouse right of column 95 without SGR."""
    with terminal(run) as screen:
        screen.see("1 of 320", "SEGMENT")
        os.write(screen.fd, b"\x1b[M \xff\xfe")
        screen.settle()
        screen.press("jj")
        screen.see("3 of 320")
        screen.press("q")
        assert screen.wait() == 0


@pytest.mark.parametrize("signals", [[signal.SIGCONT], [signal.SIGSTOP, signal.SIGCONT], [signal.SIGCONT] * 5])
def test_a_signal_to_continue_starts_no_second_input_thread(
    run: Path, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    file = tmp_path / "threads"
    listing = (
        "import signal, threading; signal.signal(signal.SIGUSR1, lambda *_: "
        f"open({str(file)!r}, 'w').write(' '.join(t.name for t in threading.enumerate())))\n{OPEN}"
    )
    words = ("-c", listing, str(run))
    with app_terminal(*words, cwd=run.parent, size=(160, 48), variables={"XDG_STATE_HOME": tmp_path}) as screen:
        screen.see("1 of 320", "SEGMENT")
        screen.settle()
        for number in signals:
            os.kill(screen.pid, number)
            time.sleep(0.3)
        screen.press("jj")
        screen.see("3 of 320")
        os.kill(screen.pid, signal.SIGUSR1)
        until(screen, lambda: file.exists() and file.read_text() != "")
        assert [n for n in file.read_text().split() if n.startswith("textual")] == ["textual-output", "textual-input"]
        screen.press("q")
        assert screen.wait() == 0


def test_keys_that_are_typed_before_the_app_continues_are_kept(run: Path, tmp_path: Path) -> None:
    lost = tmp_path / "flushed"
    listing = f"import termios; termios.tcflush = lambda *_: open({str(lost)!r}, 'w').close()\n{OPEN}"
    words = ("-c", listing, str(run))
    with app_terminal(*words, cwd=run.parent, size=(160, 48), variables={"XDG_STATE_HOME": tmp_path}) as screen:
        screen.see("1 of 320", "SEGMENT")
        screen.settle()
        os.kill(screen.pid, signal.SIGSTOP)
        screen.press("jj")
        os.kill(screen.pid, signal.SIGCONT)
        screen.see("3 of 320")
        assert not lost.exists()
        screen.press("q")
        assert screen.wait() == 0 and lost.exists(), "at its end, the app leaves no reports of the mouse to the shell"


def test_the_size_is_that_of_the_terminal_whatever_the_environment_says(run: Path) -> None:
    words = ("-c", f"import os; os.environ.update(COLUMNS='1000', LINES='5')\n{OPEN}", str(run))
    with app_terminal(*words, cwd=run.parent, variables={"XDG_STATE_HOME": run.parent / "state"}) as screen:
        screen.see("1 of 320", "q quit")
        screen.press("q")
        assert screen.wait() == 0


def test_no_color_sends_no_colour(run: Path) -> None:
    words = ("-c", f"import os; os.environ['NO_COLOR'] = '1'\n{OPEN}", str(run), "3")
    with app_terminal(*words, cwd=run.parent, variables={"XDG_STATE_HOME": run.parent / "state"}) as screen:
        screen.see("missing prerequisite", "✗")
        screen.press("l")
        screen.see("step 2/")
        colours = [c for c in (b"38;2;", b"48;2;", b"38;5;", b"48;5;") if c in screen.raw]
        assert colours == []


@pytest.mark.parametrize(("kind", "begins"), [("kitty", b"\x1b_G"), ("sixel", b"\x1bP"), ("blocks", "▀".encode())])
def test_images_are_sent_the_way_the_terminal_shows_them(run: Path, kind: str, begins: bytes) -> None:
    with terminal(run, "1", variables={"GRPO_TUI_IMAGES": kind}) as screen:
        screen.see("step 1/", "image")
        until(screen, lambda: begins in screen.raw)
        for other in {b"\x1b_G", b"\x1bP"} - {begins}:
            assert other not in screen.raw


def test_how_a_terminal_shows_images_is_read_from_its_environment() -> None:
    from grpo_tui.tui.app.widgets.image_view import kind

    assert kind({"TERM": "xterm-kitty"}) == "kitty"
    assert kind({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}) == "kitty"
    assert kind({"TERM": "foot"}) == "sixel" and kind({"TERM_PROGRAM": "WezTerm"}) == "sixel"
    assert kind({"TERM": "xterm-256color"}) == "blocks"
    assert kind({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux"}) == "blocks", "a multiplexer in between"
    assert kind({"TERM": "xterm-kitty", "GRPO_TUI_IMAGES": "blocks"}) == "blocks"


def test_a_mistake_of_the_app_is_one_line_and_its_traceback_is_in_a_file(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from grpo_tui.tui.app import app, destinations\n"
        "from grpo_tui.tui.app.screens.stepper import StepperScreen\n"
        "def broken(self, by): raise ValueError('boom \\x1b[2J')\n"
        "StepperScreen.action_step = broken\n"
        "run = Path(sys.argv[1]); app.run_app(run.parent, destinations.Stepper(run, 1))"
    )
    state = run.parent / "state-of-mistakes"
    with app_terminal("-c", code, str(run), cwd=run.parent, variables={"XDG_STATE_HOME": state}) as screen:
        screen.see("step 1/")
        screen.press("l")
        assert screen.wait() == 1
        end = screen.raw[screen.raw.rindex(b"\x1b[?1049l") :].decode("utf-8", "replace")
        assert "the app crashed (ValueError: boom ␛[2J)" in end and "Traceback" not in end
    assert "ValueError" in (state / "grpo-tui" / "app-error.log").read_text()


def test_starting_the_app_loads_no_heavy_library(run: Path) -> None:
    import subprocess

    code = (
        "import asyncio, sys; from pathlib import Path; from grpo_tui.tui.app.app import GrpoApp\n"
        "from grpo_tui.tui.app.destinations import Live, Trajectories\n"
        "async def go(start):\n"
        "    async with GrpoApp(Path('.'), start).run_test() as pilot: await pilot.pause(0.3)\n"
        "run = Path(sys.argv[1]); asyncio.run(go(Trajectories(run))); asyncio.run(go(Live(run)))\n"
        "heavy = {'torch', 'transformers', 'trl', 'numpy', 'PIL', 'textual_image', 'pydantic', 'yaml', 'plotext'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    state = {**os.environ, "XDG_STATE_HOME": str(run.parent / "state")}
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, env=state, check=True)
    assert done.stdout.strip() == "[]"


def test_the_console_script_opens_the_app_without_waiting_for_the_command_line(run: Path) -> None:
    state = str(run.parent / "state")
    start = [str(Path(sysconfig.get_path("scripts")) / "grpo-tui")]
    home = ["env", f"GRPO_TUI_HOME={run.parent.parent}", f"XDG_STATE_HOME={state}"]
    with Terminal([*home, *start, "inspect", "ab12"], cwd=run.parent, env=os.environ, rows=45, columns=150) as screen:
        screen.see("1 of 320")
        screen.press("q")
        assert screen.wait() == 0
    with Terminal([*home, *start], cwd=run.parent, env=os.environ, rows=45, columns=150) as screen:
        screen.see("ab12", "cd34", "3 runs")
        screen.press("q")
        assert screen.wait() == 0
    with Terminal([*home, *start, "inspect", "nope"], cwd=run.parent, env=os.environ, rows=45, columns=150) as screen:
        assert screen.wait() == 3
        assert "no run 'nope'" in screen.text and "ab12" in screen.text, "a sentence with the nearest ids"


@pytest.mark.parametrize(
    ("keys", "seen"), [(":7\r", "ab12 · 7 of"), ("freward<0\r", "trajectories · reward<0"), ("/red\r", "“red”")]
)
def test_keys_typed_ahead_reach_the_prompt(run: Path, keys: str, seen: str) -> None:
    with terminal(run) as screen:
        screen.see("1 of 320", "SEGMENT")
        screen.settle()
        screen.press(keys)
        screen.see(seen, within=20.0)
