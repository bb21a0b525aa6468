"""Keys of the dashboard, what it shows, and how it follows a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_tui.engine.runs.control import ControlChannel
from grpo_tui.engine.runs.reader import RunReader
from grpo_tui.engine.runs.writer import RunWriter
from grpo_tui.tui.app.destinations import Live
from grpo_tui.tui.app.live_data import CHARTS, FOLLOW_SECONDS
from grpo_tui.tui.app.widgets.log_panel import telling
from grpo_tui.tui.format import fixed

from .demo_run import make_run
from .drive import running, settle


async def test_shows_where_the_run_is(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        top = app.text.splitlines()[0]
        assert "ab12 · rft · visual · tiny" in top and "✓ finished" in top and "40/40" in top and "100 %" in top


async def test_the_component_table_is_the_record_s(run: Path) -> None:
    with RunReader(run) as reader:
        latest = reader.metrics.latest()
    async with running(run.parent, Live(run)) as app:
        for name in ("task", "curiosity", "coherence", "penalty"):
            cells = next(t.plain for t in app.screen.components.lines if t.plain.startswith(name)).split()
            assert cells[1] == fixed(latest[f"rewards/raw/{name}"])
            assert cells[3] == fixed(latest[f"rewards/weight/{name}"])
            assert cells[4] == fixed(latest[f"rewards/contribution/{name}"])
            assert cells[5:8] == [
                fixed(latest[f"rewards/running_mean/{name}"]), "±", fixed(latest[f"rewards/running_std/{name}"]),
            ]  # fmt: skip
        assert fixed(latest["rewards/total/mean"]) in next(t for t in app.text.splitlines() if "Σ total" in t)


async def test_kl_beside_its_target_and_beta_with_its_reason(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        assert "→ 0.050 ± 0.010" in app.text
        assert "×1.20 at 30: mean KL" in app.text
        assert "KL, nats per token" in app.text, "and as a curve with the tolerance as a band"


async def test_actions_now_and_over_time(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        line = next(t for t in app.text.splitlines() if "SEGMENT_OBJECT_AT" in t)
        assert "█" in line and "%" in line
        text = await app.press("v")
        assert "Actions over time" in text and "▓" in text
        assert "Actions over time" not in await app.press("v")


async def test_an_alert_opens_its_evidence(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        assert "→ 5 trajectories" in app.text
        await app.click("reward rises, success does not", 3)
        assert app.view == "trajectories" and "1 of 5" in app.text
        await app.press("escape")
        app.screen.activate("alerts")
        await app.press("j", "k", "enter")
        assert app.view == "trajectories" and "1 of 5" in app.text


async def test_enter_opens_trajectories_and_search_searches(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        await app.press("enter")
        assert app.view == "trajectories" and "1 of 320" in app.text
        await app.press("escape", "slash")
        await app.type("mask")
        await app.press("enter")
        assert app.view == "trajectories" and "“mask”" in app.text


async def test_clicks_on_an_action_and_on_a_component(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        await app.click("GET_PROPERTIES", 2)
        assert app.view == "trajectories" and "action:" in app.text
        await app.press("escape")
        assert "rewards/raw/curiosity" in await app.click("curiosity ", 2)


async def test_charts_change_and_any_metrics_can_be_chosen(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        seen = {app.screen.chart.heading}
        for _ in range(len(CHARTS)):
            await app.press("m")
            seen.add(app.screen.chart.heading)
            assert app.screen.chart.series, "only charts with something to show"
        assert len(seen) >= 8
        text = await app.press("M")
        assert "Metrics of the chart" in text and "[ ]" in text
        await app.press("j", "space", "enter")
        assert len(app.screen.chosen) >= 1
        await app.press("M", "escape")


async def test_smoothing_zoom_and_panning(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        screen = app.screen
        assert "smoothed 0.6" in await app.press("w")
        await app.press("w", "w", "w")
        assert "smoothed" not in app.text
        await app.press("plus")
        low, high = screen.window
        assert high == 40 and high - low == pytest.approx(39 / 2)
        await app.press("h")
        assert screen.window[0] < low
        await app.press("left", "left", "left")
        assert screen.window[0] == 1, "the start holds"
        await app.press("l", "right")
        assert screen.window[0] > 1
        await app.press("equals_sign", "minus", "minus")
        assert screen.window is None
        await app.press("plus", "0")
        assert screen.window is None


async def test_panes_take_the_scroll_keys_in_turn(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        names = [b.name for b in app.screen.frame.boxes]
        for name in [*names[1:], names[0]]:
            await app.press("tab")
            assert app.screen._active == name and app.screen.scrolled.name == name
            assert [p.name for p in app.screen.frame.panes.values() if p.active] == [name]
        await app.press("shift+tab")
        assert app.screen._active == names[-1]
        await app.press("j", "down", "k", "up")


async def test_pause_resume_checkpoint_and_stop_are_asked_and_acknowledged(own_runs: Path) -> None:
    run = own_runs / "two"
    channel = ControlChannel(run)
    writer = RunWriter(run)
    writer.status("running", step=2, total_steps=50)

    def answer(status: str) -> list[str]:
        commands = []
        for request in channel.poll():
            commands.append(request.command)
            channel.acknowledge(request, "done")
            writer.event("control", f"{request.command}: done at step 2", step=2, command=request.command)
        writer.status(status, step=2)  # type: ignore[arg-type]
        writer.flush(5)
        return commands

    async with running(own_runs, Live(run)) as app:
        assert "Asked the run: pause" in await app.press("space")
        assert answer("paused") == ["pause"]
        app.screen._tick()
        await settle(app.pilot)
        assert "‖ paused" in app.text and "pause: done at step 2" in app.text
        assert "Asked the run: resume" in await app.press("space")
        assert answer("running") == ["resume"]
        await app.press("c")
        assert answer("running") == ["checkpoint"]
        text = await app.press("x")
        assert "Stop two?" in text
        await app.press("n")
        assert answer("running") == []
        await app.press("x")
        await app.press("y")
        assert answer("stopping") == ["stop"]
    writer.close()


async def test_an_ended_run_is_not_asked_anything(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        for key in ("space", "c", "x"):
            assert "The run is finished" in await app.press(key)
    assert not list((run / "control").glob("*")) if (run / "control").exists() else True


async def test_follows_a_run_that_is_written(own_runs: Path) -> None:
    run = own_runs / "two"
    async with running(own_runs, Live(run)) as app:
        writer = RunWriter(run)
        writer.metrics(7, {"rewards/total/mean": 0.777, "success/train": 0.5})
        writer.event("alert", "entropy has collapsed", step=7)
        writer.status("running", step=7, total_steps=50)
        writer.flush(5)
        app.screen._tick()
        await settle(app.pilot)
        assert "entropy has collapsed" in app.text and "step 7/50" in app.text and "0.78" in app.text
        writer.close()


async def test_redraws_are_rare_while_following(own_runs: Path) -> None:
    run = own_runs / "two"
    async with running(own_runs, Live(run)) as app:
        shown = []
        show = app.screen._show
        app.screen._show = lambda: (shown.append(1), show())[1]
        for _ in range(50):
            app.screen._tick()
        await settle(app.pilot)
        assert len(shown) <= 2, "fifty wishes to redraw within a moment are one redraw or two"
        assert FOLLOW_SECONDS >= 0.25


async def test_export_is_a_picture(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "own", steps=2)
    async with running(run.parent, Live(run)) as app:
        await app.press("e")
        file = next((run / "exports").glob("*.svg"))
        assert file.read_text().startswith("<svg")


async def test_a_run_that_has_not_begun_says_so(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "fresh"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"id": "fresh", "mode": "rft"}))
    async with running(run.parent, Live(run)) as app:
        assert "components appear with the first step" in app.text
        await app.press("m", "M", "w", "plus", "minus", "h", "v", "j", "tab", "e", "o")
        assert "This run has no log yet." in app.text


async def test_help_with_f1_and_back_to_the_list(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        assert "Pause the run after this step" in await app.press("f1")
        await app.press("escape")
        assert app.view == "live"
        await app.press("escape")
        assert app.view == "runs"


def test_the_log_shows_what_a_person_wants_and_the_rest_stays_in_the_file() -> None:
    library = "/x/lib/python3.11/site-packages/transformers/modeling_utils.py:3303: FutureWarning: `a` is deprecated."
    step = "2026-11-21 13:27:52,372 INFO grpo_tui.engine.training.rft: step 1  reward 0.109"
    log = [
        "Loading weights: 100%|██████████| 35/35 [00:00<00:00, 10168.36it/s]",
        library,
        "  warnings.warn(",
        "",
        step,
        "my_env.py:12: UserWarning: no picture",
        '  warnings.warn("no picture")',
        "  an indented line of a traceback",
        "Evaluating:  40%|████      | 4/10 [00:01<00:02,  3.0it/s]",
        "reward is up 40% | success too",
    ]
    kept = [step, "UserWarning: no picture (my_env.py:12)", "  an indented line of a traceback", log[-1]]
    assert telling(log) == kept
    assert telling(log[:-1]) == [*kept[:-1], log[-2]], "a bar that is under way is the news"
    assert telling([]) == telling([library, "  warnings.warn("]) == []
