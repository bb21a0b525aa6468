"""Compare, diff, help, palette, themes, and what is the same everywhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.command import CommandList

from grpo_tui.engine.runs.control.status import look
from grpo_tui.tui.app.bindings import EVERYWHERE, TABLE, bindings, helps, hints
from grpo_tui.tui.app.comparison import marks
from grpo_tui.tui.app.destinations import Compare, Diff, Live, Runs, Stepper, Trajectories
from grpo_tui.tui.app.screens.compare import flatten
from grpo_tui.tui.app.screens.dialogs import ConfirmDialog
from grpo_tui.tui.app.theme import THEMES

from .demo_run import make_run
from .drive import Driver, running


async def open_compare(app: Driver) -> None:
    await app.press("space", "space", "space", "c")
    assert app.view == "compare"


async def test_compare_draws_runs_over_each_other_and_shows_what_differs(runs: Path) -> None:
    async with running(runs) as app:
        await open_compare(app)
        assert [s.name for s in app.screen.chart.series] == ["ef56", "cd34", "ab12"]
        assert "Settings that differ (3 of 4)" in app.text
        line = next(t for t in app.text.splitlines() if "training.learning_rate" in t)
        assert "≠" in line and "0.003" in line and "0.0015" in line
        assert "mode" not in app.text.split("Settings")[1]
        text = await app.press("a")
        assert "All 4 settings" in text and " mode " in text
        first = app.screen.metric
        await app.press("m")
        assert app.screen.metric != first and app.screen.metric in app.text
        assert "smoothed 0.60" in await app.press("w")
        await app.press("j", "k", "down", "up", "pagedown", "pageup", "g", "G", "home", "end")
        await app.press("escape")
        assert app.view == "runs"


async def test_runs_of_the_same_id_are_compared_by_their_own_curves(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, "same", steps=steps) for name, steps in (("a", 3), ("b", 9))]
    async with running(tmp_path / "a", Compare(tuple(map(look, folders)))) as app:
        assert [len(series.xs) for series in app.screen.chart.series] == [3, 9]


async def test_a_terminal_that_cannot_be_handed_over_shows_no_pager(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(run.parent, Stepper(run, 3)) as app:  # as in a browser
        monkeypatch.setenv("PAGER", "cat")
        assert "The browser cannot open programs" in await app.press("o")
        monkeypatch.setenv("PAGER", "less '")
        assert "Set $PAGER to a program that is installed." in await app.press("o")


async def test_a_text_that_cannot_be_written_for_the_pager_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    monkeypatch.setenv("PAGER", "cat")
    async with running(run.parent, Stepper(run, 3)) as app:
        assert "cat could not be started" in await app.press("o")


async def test_compare_exports_a_picture(own_runs: Path) -> None:
    async with running(own_runs) as app:
        await app.press("space", "space", "c", "e")
        assert next(own_runs.glob("*/exports/compare.svg")).read_text().startswith("<svg")


def test_configs_are_compared_flat() -> None:
    assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": None}) == {"a.b": "1", "a.c": "[1, 2]", "d": ""}


async def test_diff_of_two_rollouts_of_a_group(run: Path) -> None:
    async with running(run.parent, Stepper(run, 3)) as app:
        await app.press("d")
        other = app.screen.rows[app.screen.at].n
        assert "steps differ" in app.text and f"│ {other} " in app.text and "≠ step" in app.text
        await app.press("right_square_bracket")
        assert app.screen.rows[app.screen.at].n != other
        await app.press("left_square_bracket")
        assert app.screen.rows[app.screen.at].n == other
        differing = app.screen.body.differing()
        await app.press("l", "right", "l", "l")
        assert app.screen.body.at == differing[-1]
        await app.press("h", "left", "h", "h")
        assert app.screen.body.at == differing[0]
        await app.press("j", "k", "down", "up", "G", "g", "end", "home", "pagedown", "pageup", "ctrl+d", "ctrl+u")


async def test_diff_tells_long_names_of_components_apart(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = {"matches_the_expected_answer": 1.0, "matches_the_expected_format": 0.5}
    monkeypatch.setattr("grpo_tui.tui.app.screens.diff._sums", lambda record: sums)
    async with running(run.parent, Diff(run, 3)) as app:
        assert all(app.text.count(f"  {name} +") == 2 for name in sums)


async def test_diff_of_one_prompt_at_two_points_of_the_run(run: Path) -> None:
    async with running(run.parent, Stepper(run, 3)) as app:
        text = await app.press("d", "p")
        assert "prompt p0 over the run" in text
        other = app.screen.rows[app.screen.at]
        assert other.prompt_id == "p0" and other.group != "1.0" and other.step > 1, "the newest rollout of the prompt"
        await app.press("p")
        assert "group 1.0" in app.text


async def test_diff_copies_exports_and_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "runs", "own", steps=2)
    async with running(run.parent, Stepper(run, 3)) as app:
        await app.press("d", "y")
        assert "ANSWER(" in app.app.clipboard
        await app.press("e")
        assert "ANSWER(" in next((run / "exports").glob("diff-3-*.txt")).read_text()
        monkeypatch.setenv("PAGER", "no-such-program")
        monkeypatch.setenv("EDITOR", "no-such-program")
        assert "$PAGER" in await app.press("o")
        assert "$EDITOR" in await app.press("O")


def test_words_that_differ_are_found() -> None:
    left, right = marks("the red square", "the blue square")
    assert [w for w, changed in left if changed] == ["red"]
    assert [w for w, changed in right if changed] == ["blue"]
    assert " ".join(w for w, _ in left) == "the red square"


async def test_help_lists_every_key_of_the_screen(run: Path) -> None:
    for start, view in (
        (Runs(), "runs"),
        (Live(run), "live"),
        (Trajectories(run), "trajectories"),
        (Stepper(run, 1), "stepper"),
    ):
        async with running(run.parent, start, size=(150, 90)) as app:
            text = await app.press("question_mark")
            assert app.view == "help"
            for row in helps(view):
                assert row.shown in text and row.help.split(":")[0][:30] in text
            await app.press("j", "k", "G", "g", "pagedown", "pageup", "question_mark")
            assert app.view == view


@pytest.mark.parametrize("view", EVERYWHERE)
def test_no_key_means_two_things_on_one_screen(view: str) -> None:
    keys = [b.key for b in bindings(view)]  # type: ignore[union-attr]
    assert len(keys) == len(set(keys))
    assert hints(view) and helps(view)


def test_every_row_of_the_table_has_its_action() -> None:
    from grpo_tui.tui.app.app import GrpoApp
    from grpo_tui.tui.app.screens import (
        behavior,
        chat,
        compare,
        diff,
        groups,
        help,
        live,
        play,
        runs,
        scatter,
        side_by_side,
        stepper,
        timeline,
        trajectories,
    )

    screens = {
        "runs": runs.RunsScreen, "live": live.LiveScreen, "trajectories": trajectories.TrajectoriesScreen,
        "groups": groups.GroupsScreen, "stepper": stepper.StepperScreen, "compare": compare.CompareScreen,
        "diff": diff.DiffScreen, "help": help.HelpScreen, "play": play.PlayScreen, "chat": chat.ChatScreen,
        "behavior": behavior.BehaviorScreen, "scatter": scatter.ScatterScreen, "timeline": timeline.TimelineScreen,
        "side by side": side_by_side.SideBySideScreen,
    }  # fmt: skip
    for row in TABLE:
        name = row.action.split("(")[0]
        for view in row.screens:
            owner = GrpoApp if name.startswith("app.") else screens[view]
            assert hasattr(owner, f"action_{name.removeprefix('app.')}"), f"{view}: {row.action}"


async def test_the_command_palette_holds_the_keys_of_the_screen_and_the_themes(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        titles = [c.title for c in app.app.get_system_commands(app.screen)]
        assert any(t.startswith("Filter") for t in titles) and "Theme grpo-light-safe" in titles
        await app.press("ctrl+p")
        await app.type("theme grpo-light-safe")
        await app.pilot.pause(0.5)
        await app.press("enter")
        assert app.app.theme == "grpo-light-safe"


@pytest.mark.parametrize("view", [Trajectories, lambda run: Stepper(run, 1)])
async def test_the_command_palette_begins_with_what_the_screen_is_for_and_repeats_nothing(run: Path, view: Any) -> None:
    async with running(run.parent, view(run), size=(160, 40)) as app:
        commands = list(app.app.get_system_commands(app.screen))
        only_here = [row for row in TABLE if row.screens == (app.screen.view,) and row.help]
        assert all(commands[i].title.endswith(f"({row.shown})") for i, row in enumerate(only_here))
        for command in commands:
            title = command.title.rpartition("  (")[0] or command.title
            assert not command.help.casefold().startswith(title.casefold())
        await app.press("ctrl+p")
        await app.pilot.pause(0.5)
        box = app.app.screen.query_one(CommandList)
        assert box.region.width <= 80
        assert str(box.get_option_at_index(0).prompt).startswith(commands[0].title)  # type: ignore[attr-defined]


def test_texts_with_nothing_in_common_have_no_marks() -> None:
    left, right = (
        "I look at the left part of the scene first",
        "Nothing there matters because answers come from counting",
    )
    assert marks(left, right) == ([(left, False)], [(right, False)])
    changed = [w for w, only in marks(f"{left} again", left)[0] if only]
    assert changed == ["again"]


async def test_the_command_palette_shows_what_it_finds_where_there_are_few_lines(run: Path) -> None:
    async with running(run.parent, Trajectories(run), size=(20, 5)) as app:
        await app.press("ctrl+p")
        await app.type("he")
        await app.pilot.pause(0.5)
        assert "Help" in app.text


async def test_themes_change_with_a_key_and_are_remembered(runs: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    async with running(runs, memory=memory) as app:
        seen = [app.app.theme]
        for _ in THEMES:
            await app.press("ctrl+t")
            seen.append(app.app.theme)
        assert set(seen) == set(THEMES) and seen[0] == seen[-1]
        await app.press("ctrl+t")
        chosen = app.app.theme
    async with running(runs, memory=memory) as app:
        assert app.app.theme == chosen
        assert app.app.palette.colors is THEMES[chosen]


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", THEMES)
def test_text_is_readable_in_every_theme(name: str) -> None:
    """Contrast after WCAG 2.2: 4.5 for text, 3 for what only accompanies it."""
    colors = THEMES[name]

    def contrast(a: str, b: str) -> float:
        high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for color in (colors.text, colors.muted, colors.accent, colors.good, colors.bad, colors.warn, *colors.series):
        assert contrast(color, colors.background) >= 4.5, color
    assert contrast(colors.text, colors.cursor) >= 4.5 and contrast(colors.text, colors.band) >= 4.5
    assert contrast(colors.faint, colors.background) >= 3


async def test_q_leaves(runs: Path) -> None:
    async with running(runs) as app:
        await app.pilot.press("q")
        await app.pilot.pause(0.1)
        assert not app.app.is_running or app.app._exit


async def test_clicks_on_hints_do_what_their_keys_do(runs: Path) -> None:
    async with running(runs) as app:
        await app.click("? help", 3)
        assert app.view == "help"
        await app.click("esc back", 5)
        assert app.view == "runs"


async def test_an_answer_given_twice_leaves_the_dialog_alone(runs: Path) -> None:
    async with running(runs, Runs()) as app:
        app.app.push_screen(ConfirmDialog("Stop it?", "Yes"))
        await app.burst("y", "y", "enter", "escape")
        assert await app.press("question_mark") and app.app.is_running


async def test_pages_of_the_palette_before_it_is_laid_out_are_none(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        for key in ("ctrl+p", "z", "z", "z", "z", "pagedown", "pageup", "pagedown"):
            app.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await app.pilot.pause()
        assert app.app.is_running and not app.app.failure
