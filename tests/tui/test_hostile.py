"""What a model wrote never reaches the terminal as markup or escapes, and never makes the app slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.events import Paste

from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.rewards.breakdown import ComponentValue, Penalty, RewardBreakdown, StepReward
from grpo_tui.tui.app.destinations import Live, Stepper, Trajectories
from grpo_tui.tui.app.widgets.prompt_bar import ask

from .demo_run import make_run
from .drive import running, settle
from .test_text import steers_the_terminal

NASTY = (
    "[/red] [bold]x[/bold] [link=http://evil.example]click[/link] [@click=app.quit]q[/] "
    "\x1b]0;owned\x07 \x1b[2J \x1b[31mred \x9b5m \x1b]52;c;aGk=\x07 \r overwritten \x08\x08 "
    "a\u202eb\u2066c z\u200b\u200d\ufeffw \u2028 e" + "\u0301" * 40 + " 👩‍👩‍👧 שלום عالم \ud83d \udfff $(reboot) %s {0}"
)
SPOKEN = NASTY.encode("utf-8", "replace").decode()
NAME = "TOOL_" + "X" * 295


def nasty_record() -> TrajectoryRecord:
    huge = "word [red]\x1b[2J " * (5 * 2**20 // 15)
    steps = (
        Step(0, NASTY, NASTY, NAME, {NASTY: NASTY}, observation=NASTY, error=NASTY),
        Step(1, "huge", "", "HUGE", {"x": 1}, observation=huge),
        Step(2, "long line", "", "LONG", {}, observation="y" * 200_000),
        Step(3, NASTY, "", None, {}, parse_error=NASTY),
    )
    penalty = Penalty(NASTY, -1.0, 0, {NASTY: NASTY}, NASTY, NASTY, NASTY)
    value = ComponentValue(1.0, 1.0, 1.0, 1.0)
    rewards = tuple(StepReward(i, {"task": value, NASTY: value}, (penalty,) if i == 0 else (), 2.0) for i in range(4))
    trajectory = Trajectory(
        "id" + NASTY, NASTY, NASTY, NASTY, 0, NASTY, steps, task={NASTY: NASTY}, answer=NASTY, expected=NASTY,
        correct=False, images=(f"../../{NASTY}.png",), stop_reason=NASTY, error=NASTY,
    )  # fmt: skip
    return TrajectoryRecord(trajectory, RewardBreakdown(trajectory.id, rewards, 8.0), 0.5, (0.5,) * 4)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hostile(tmp_path_factory.mktemp("hostile") / "runs")


def make_hostile(folder: Path) -> Path:
    run = make_run(folder, "[red]bad\x1b[2J", steps=2)
    (run / "run.json").write_text(
        '{"id": "[red]bad\\u001b[2J", "mode": "\\u001b]0;x\\u0007", "environment": "[/]", "name": "[b]n"}'
    )
    (run / "logs" / "training.log").write_bytes(b"\x1b[2Jcleared \xff\xfe [red]markup[/red]\n")
    (run / "config.yaml").write_text('"[red]\\u001b": "\\u001b[2J"\n')
    writer = RunWriter(run)
    record = nasty_record()
    writer.trajectories(3, [record, record])
    writer.metrics(
        3,
        {
            f"behavior/action_distribution/{NAME}": 0.5,
            "behavior/action_distribution/\x1b[2J[red]": 0.5,
            "rewards/raw/[red]\x1b": 1.0,
        },
    )
    writer.event("alert", SPOKEN, step=3, trajectories=["no such id"])
    writer.event("beta", SPOKEN, step=3, reason=SPOKEN, **{"from": 1.0, "to": 2.0})
    writer.close()
    return run


def check(text: str) -> None:
    assert steers_the_terminal(text.replace("\n", "")) == []


async def test_every_screen_shows_it_literally(hostile: Path) -> None:
    async with running(hostile.parent, size=(180, 50)) as app:
        check(app.text)
        assert "[red]bad␛[2J" in app.text
        await app.press("l")
        check(app.text)
        assert "[/red] [bold]x[/bold]" in app.text, "the alert"
        await app.press("v", "v", "M")
        check(app.text)
        await app.press("escape", "enter", "G")
        check(app.text)
        assert "[/red] [bold]x[/bold]" in app.text, "the prompt in the preview"
        await app.press("z")
        check(app.text)
        await app.press("escape", "enter")
        assert app.view == "stepper"
        seen = ""
        for key in ("h", "h", "h", "P", "P", "t", "t", "t", "t", "d", "l", "escape", "l", "l", "l"):
            seen += await app.press(key)
            check(app.text)
        assert "[/red] [bold]x[/bold]" in seen and "␛[2J" in seen and "‹202E›" in seen and "שלום" in seen


@pytest.mark.parametrize("step", range(4))
async def test_each_hostile_step_paints_at_small_and_wide_sizes(hostile: Path, step: int) -> None:
    for size in ((60, 20), (80, 24), (220, 60)):
        async with running(hostile.parent, Stepper(hostile, 18), size=size) as app:
            await app.press(*["l"] * step)
            check(app.text)
            assert all(cell_len(line) == size[0] for line in app.text.splitlines())


async def test_a_text_of_megabytes_folds_and_is_laid_out_only_where_it_is_seen(hostile: Path) -> None:
    async with running(hostile.parent, Stepper(hostile, 18)) as app:
        assert "5.2 MB" in await app.press("l") and "characters · enter" in app.text
        assert "raw: too large to render" in await app.press("enter")
        flow = app.screen.text.lines
        assert sum(len(part.lines or ()) for part in flow.parts) < 1_000 < len(flow)
        await app.press(*["pagedown"] * 5, *["k"] * 30)
        assert sum(len(part.lines or ()) for part in flow.parts) < 3_000
        await app.press("l")
        assert "200,000 characters" in app.text or "200 KB" in app.text


async def test_a_link_in_model_text_is_no_link_and_no_action(hostile: Path) -> None:
    async with running(hostile.parent, Stepper(hostile, 18)) as app:
        for strip in app.app.screen._compositor.render_strips():
            for segment in strip:
                assert segment.style is None or (segment.style.link is None and not segment.style.meta)


async def test_prompts_dialogs_and_messages_show_it_literally(hostile: Path) -> None:
    async with running(hostile.parent) as app:
        await app.press("D")
        assert "[red]bad␛[2J" in app.text
        check(app.text)
        await app.press("escape", "R")
        check(app.text)
        await app.press("escape")
        app.screen.say(NASTY)
        await app.press()
        check(app.text)
        assert "[/red] [bold]x" in app.text


async def test_an_image_outside_the_run_is_not_opened(hostile: Path) -> None:
    async with running(hostile.parent, Stepper(hostile, 18), size=(150, 50)) as app:
        assert "outside the run's folder" in app.text


async def test_exported_text_and_file_names_are_safe(hostile: Path) -> None:
    async with running(hostile.parent, Stepper(hostile, 18)) as app:
        await app.press("e", "y", "d", "e")
        for file in (hostile / "exports").iterdir():
            assert steers_the_terminal(file.name) == [] and "/" not in file.name
    async with running(hostile.parent, Live(hostile)) as app:
        await app.press("e")
        svg = next((hostile / "exports").glob("*.svg")).read_text()
        assert "\x1b" not in svg and "<script" not in svg


@pytest.mark.parametrize("key", ["slash", "f", "ctrl+p"])
async def test_pasted_text_is_typed_without_control_characters(hostile: Path, key: str) -> None:
    async with running(hostile.parent, Trajectories(hostile)) as app:
        await app.press(key)
        app.app.post_message(Paste("a\x1b[31mb\x9bc\u202ed"))
        await settle(app.pilot)
        assert "a[31mbcd" in app.text
        check(app.text)


async def test_pasted_lines_stay_lines(run: Path) -> None:
    done: list[str] = []
    async with running(run.parent, Trajectories(run)) as app:
        ask(app.screen, "Message", "one\n\ttwo", done.append)
        await settle(app.pilot)
        assert "one␊␉two" in app.text
        app.app.post_message(Paste("␊three\r\nfour\n"))
        await app.press("enter")
        assert done == ["one\n\ttwo\nthree\nfour"]
