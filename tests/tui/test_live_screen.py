"""Keys of the dashboard, what it shows, and how it follows a run that goes on."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from grpo_tui import Recorder
from grpo_tui.engine.runs.control.live import LiveTexts
from grpo_tui.engine.runs.control.requests import ControlChannel
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.app.destinations import Live
from grpo_tui.tui.app.live_charts import CHARTS
from grpo_tui.tui.app.live_data import FOLLOW_SECONDS, read
from grpo_tui.tui.app.screens import chart_keys
from grpo_tui.tui.app.theme import DEFAULT_THEME, THEMES, Palette
from grpo_tui.tui.app.widgets.live_panels import LogPanel, telling
from grpo_tui.tui.format import fixed

from .demo_run import make_run
from .drive import running, settle


def as_number(text: str) -> float:
    """A number as the screen writes it."""
    return float(text.replace("−", "-").replace("+", ""))


async def test_shows_where_the_run_is(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        top = app.text.splitlines()[0]
        assert "ab12 · rft · visual · tiny" in top and "✓ finished" in top and "40/40" in top and "100 %" in top


async def test_the_component_table_is_the_record_s_and_adds_up(run: Path) -> None:
    with RunReader(run) as reader:
        latest = reader.metrics.latest()
    async with running(run.parent, Live(run)) as app:
        lines = [line.plain.split() for line in app.screen.components.lines]
        names = app.screen.components.names()
        assert names == ["task", "curiosity", "coherence", "penalty"]
        cells = {name: next(line for line in lines if line[0] == name) for name in names}
        for name in names:
            assert cells[name][1] == fixed(latest[f"rewards/raw_per_trajectory/{name}"])
            assert cells[name][3] == fixed(latest[f"rewards/weight/{name}"])
            assert cells[name][4] == fixed(latest[f"rewards/per_trajectory/{name}"], 3)
        total = next(line for line in lines if line[0] == "Σ")[2]
        assert total == fixed(latest["rewards/total/mean"], 3)
        shown = sum(as_number(cells[name][4]) for name in names)
        assert shown == pytest.approx(as_number(total), abs=0.0005 * (len(names) + 1)), (
            "the last column adds up to the total"
        )
        raw, weight = as_number(cells["task"][1]), as_number(cells["task"][3])
        assert raw * weight == pytest.approx(as_number(cells["task"][4]), abs=0.01), "and a row multiplies"


async def test_kl_beside_its_target_and_beta_with_its_reason(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        assert "→ 0.050 ± 0.010" in app.text
        assert "×1.20 at 30: mean KL" in app.text
        assert "KL, nats per token" in app.text, "and as a curve with the tolerance as a band"


async def test_the_actions_of_the_last_step(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        line = next(t for t in app.text.splitlines() if "SEGMENT_OBJECT_AT" in t)
        assert "█" in line and "%" in line


async def test_an_alert_opens_its_evidence(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        assert "→ 5 trajectories" in app.text
        await app.click("reward rises, success does not", 3)
        assert app.view == "live" and "enter opens 5 trajectories" in app.text, "the first click tells it in full"
        assert "suggestion:" in app.text
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


async def test_a_run_that_another_script_records_takes_no_requests(tmp_path: Path) -> None:
    with Recorder("mine", runs_dir=tmp_path) as record:
        record.metrics(1, {"train/loss": 0.5})
        async with running(tmp_path, Live(record.run_dir)) as app:
            text = await app.until("loss 0.5")
            assert " pause " not in text and " checkpoint " not in text
            assert "not recorded" in text and "components appear" not in text, "the first step had none"
            for key, command in (("space", "pause"), ("c", "checkpoint"), ("x", "stop")):
                assert f"{command} it there" in await app.press(key)
        async with running(tmp_path) as app:
            assert "stop it there" in await app.press("x")
    assert not (record.run_dir / "control").exists()


async def test_clicks_on_an_action_and_on_a_component(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        await app.click("GET_PROPERTIES", 2)
        assert app.view == "trajectories" and "action:" in app.text
        await app.press("escape")
        await app.click("curiosity ", 2)
        assert app.screen.chart_view.chosen[0] == "rewards/raw/curiosity"


async def test_wide_names_of_actions_are_whole_where_there_is_room(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        shown = replace(app.screen.shown, latest={"behavior/action_distribution/最後の答えを書き出す": 1.0})
        app.screen.actions.put(shown)
        assert "最後の答えを書き出す" in app.text


async def test_charts_change_and_any_metrics_can_be_chosen_by_typing(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        seen = {app.screen.chart.heading}
        for _ in range(len(CHARTS["rft"])):
            await app.press("m")
            seen.add(app.screen.chart.heading)
            assert app.screen.chart.series, "only charts with something to show"
        assert len(seen) >= 8
        assert "type a part of a name" in await app.press("M")
        text = await app.type("entr")
        assert "train/entropy" in text and "kl/beta" not in text
        assert "entropy of the policy at an agent's token" in text, "what the name under the cursor says"
        await app.press("enter")
        assert app.screen.chart_view.chosen == ("train/entropy",)
        await app.press("M")
        await app.type("grad")
        await app.press("space")
        await app.type("beta")
        await app.press("enter")
        assert app.screen.chart_view.chosen == ("train/entropy", "train/grad_norm", "kl/beta"), "in order of choosing"
        assert app.screen.chart.heading == "3 metrics", "the legend names them"
        await app.press("M", "down", "shift+up", "enter")
        assert app.screen.chart_view.chosen[:2] == ("train/grad_norm", "train/entropy")
        await app.press("M", "escape")
        assert app.view == "live" and app.screen.chart_view.chosen[0] == "train/grad_norm"


async def test_curves_of_other_scales_have_panels_of_their_own(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        app.screen.look_at(replace(app.screen.chart_view, chosen=("tokens/agent", "train/clip_fraction")))
        await app.pilot.pause()
        axes = [line.plain for line in app.screen.chart.lines if "╰" in line.plain]
        assert len(axes) == 2, "a panel each"
        app.screen.look_at(replace(app.screen.chart_view, chosen=("success/train", "success/eval_greedy")))
        await app.pilot.pause()
        assert len([line for line in app.screen.chart.lines if "╰" in line.plain]) == 1


async def test_a_log_scale_and_time_or_tokens_along_the_chart(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        app.screen.look_at(replace(app.screen.chart_view, chosen=("train/loss",)))
        text = await app.press("L")
        assert "log scale" in text
        labels = [line.plain.split("┤")[0].strip() for line in app.screen.chart.lines if "┤" in line.plain]
        assert "0.1" in labels and "0.01" in labels
        await app.press("t")
        assert app.screen.chart.x_name in ("seconds", "minutes", "hours", "days")
        await app.press("t")
        assert app.screen.chart.x_name == "tokens" and app.screen.chart.series[0].xs[-1] == 290
        await app.press("t", "L")
        assert app.screen.chart.x_name == "step" and "log scale" not in app.text


@pytest.mark.parametrize("steps", [(1 << 60,), (1, 1 << 60, (1 << 60) + 1), (1, 1 << 62, (1 << 63) - 1)])
async def test_keys_of_the_chart_take_huge_steps(tmp_path: Path, steps: tuple[int, ...]) -> None:
    writer = RunWriter(tmp_path / "run")
    for step in steps:
        writer.metrics(step, {"train/loss": 0.5, "tokens/total": 9.0})
    writer.close()
    async with running(tmp_path, Live(tmp_path / "run")) as app:
        app.screen.look_at(replace(app.screen.chart_view, chosen=("train/loss",)))
        for key in (*["plus"] * 66, "l", "h", "minus", "t", "plus", "t", "plus", "L"):
            await app.press(key)
        assert "train/loss" in await app.press("0", "M")


async def test_smoothing_zoom_and_panning(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        screen = app.screen
        assert "smoothed 0.6" in await app.press("w")
        await app.press("w", "w", "w")
        assert "smoothed" not in app.text
        await app.press("plus")
        low, high = screen.chart_view.window
        assert high == 40 and high - low == pytest.approx(39 / 2)
        await app.press("h")
        assert screen.chart_view.window[0] < low
        await app.press("left", "left", "left")
        assert screen.chart_view.window[0] == 1, "the start holds"
        await app.press("l", "right")
        assert screen.chart_view.window[0] > 1
        await app.press("equals_sign", "minus", "minus")
        assert screen.chart_view.window is None
        await app.press("plus", "0")
        assert screen.chart_view.window is None


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


class FakeRun:
    """The run's end of its requests, answered when a test says so."""

    def __init__(self, folder: Path, process: str = "training") -> None:
        self.channel = ControlChannel(folder, process=process)
        self.writer = RunWriter(folder, process=process)
        self.writer.status("running", step=2, total_steps=50)
        self.writer.flush(5)

    def answer(self, status: str) -> list[str]:
        commands = []
        for request in self.channel.poll():
            commands.append(request.command)
            self.channel.acknowledge(request, f"{request.command} done at step 2")
        self.writer.status(status, step=2)  # type: ignore[arg-type]
        self.writer.flush(5)
        return commands


async def test_a_request_left_while_the_run_is_read_is_shown(own_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRun(own_runs / "two")
    async with running(own_runs, Live(own_runs / "two")) as app:
        begun, go_on = threading.Event(), threading.Event()

        def slowly(*arguments: Any) -> Any:
            made = read(*arguments)
            begun.set()
            assert go_on.wait(30)
            return made

        monkeypatch.setattr(chart_keys, "read", slowly)
        app.screen.follow()
        assert await asyncio.to_thread(begun.wait, 30)
        await app.pilot.press("space")
        go_on.set()
        await settle(app.pilot)
        assert "pauses after this step" in app.text.splitlines()[0]


async def test_pausing_is_told_taken_back_and_answered(own_runs: Path) -> None:
    run = FakeRun(own_runs / "two")
    async with running(own_runs, Live(own_runs / "two")) as app:

        async def news() -> str:
            app.screen.follow()
            await settle(app.pilot)
            return app.text

        assert "space pause" in app.text
        text = await app.press("space")
        assert "pauses after this step" in text.splitlines()[0] and "space don't pause" in text
        text = await app.press("space")
        assert "Undone" in text and "pauses after" not in text.splitlines()[0] and "space pause" in text
        assert run.answer("running") == [], "nothing is asked of the run any more"
        await app.press("space")
        assert run.answer("paused") == ["pause"]
        text = await news()
        assert "‖ paused" in text.splitlines()[0] and "space resume" in text and "pause done at step 2" in text
        assert "save a checkpoint." in await app.press("c")
        assert run.answer("paused") == ["checkpoint"]
        assert "Checkpoint: checkpoint done at step 2" in await news(), "an answer that is seen"
        await app.press("space")
        assert "resumes" in app.text.splitlines()[0]
        assert run.answer("running") == ["resume"]
        assert "● running" in (await news()).splitlines()[0]
        assert "Stop two?" in await app.press("x")
        await app.press("n")
        assert run.answer("running") == []
        await app.press("x", "y")
        assert "saves and stops" in app.text.splitlines()[0]
        assert run.answer("stopping") == ["stop"]
    run.writer.close()


async def test_serving_goes_on_while_learning_pauses(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs", "serving", steps=2, mode="online", status="running", total_steps=50)
    engine, worker = FakeRun(folder, "engine"), FakeRun(folder, "worker")
    (folder / "processes" / "training.json").unlink()
    async with running(folder.parent, Live(folder)) as app:
        assert "serving" in app.text.splitlines()[0]
        await app.press("space")
        assert "learning pauses" in app.text.splitlines()[0]
        assert worker.answer("paused") == ["pause"]
        app.screen.follow()
        await settle(app.pilot)
        top = app.text.splitlines()[0]
        assert "serving" in top and "learning paused" in top and "space resume" in app.text
        await app.press("space")
        assert worker.answer("running") == ["resume"], "and a second space resumes it"
    engine.writer.close()
    worker.writer.close()


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 60)])
async def test_where_the_run_is_inside_its_step_at_every_width(own_runs: Path, size: tuple[int, int]) -> None:
    run = FakeRun(own_runs / "two")
    run.writer.progress("rollouts", 24, 64)
    run.writer.flush(5)
    async with running(own_runs, Live(own_runs / "two"), size=size) as app:
        app.app.clock = lambda: time.time() + 3600
        app.screen.frame.refresh_lines()
        await app.pilot.pause()
        top = app.text.splitlines()[0]
        assert "rollouts 24/64" in top and "1 h ago" in top and ("step 2/50" if size[0] >= 80 else "2/50") in top
    run.writer.close()


async def test_an_ended_run_that_is_resumed_is_noticed(own_runs: Path) -> None:
    folder = own_runs / "one"
    async with running(own_runs, Live(folder)) as app:
        assert "finished" in app.text.splitlines()[0]
        writer = RunWriter(folder)
        writer.status("running", step=3, total_steps=9)
        writer.flush(5)
        app.screen.follow()
        await settle(app.pilot)
        assert "running" in app.text.splitlines()[0] and "3/9" in app.text.splitlines()[0]
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
        app.screen.follow()
        await settle(app.pilot)
        assert "entropy has collapsed" in app.text and "7/50" in app.text and "0.78" in app.text
        writer.close()


async def test_redraws_are_rare_while_following(own_runs: Path) -> None:
    run = own_runs / "two"
    async with running(own_runs, Live(run)) as app:
        shown = []
        show = app.screen.show
        app.screen.show = lambda reading, extra: (shown.append(1), show(reading, extra))[1]
        for _ in range(50):
            app.screen.follow()
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
        assert "after the first step" not in app.text, "no panel that has nothing to show"
        await app.press("m", "M", "w", "plus", "minus", "h", "j", "tab", "e", "o")
        assert "This run has no log yet." in app.text


async def test_help_with_f1_and_back_to_the_list(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        assert "Pause after this step" in await app.press("f1")
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


@pytest.mark.parametrize("width", range(34, 72))
def test_a_step_in_the_log_keeps_its_seconds_at_any_width(width: int) -> None:
    panel = LogPanel()
    panel.frame = cast(Any, SimpleNamespace(app=SimpleNamespace(palette=Palette(THEMES[DEFAULT_THEME]))))
    numbers = "step 1,204  reward 0.934  success 0.94  kl 0.0967  12.81 s"
    panel.tail = [f"2026-11-28 11:50:53,929 INFO grpo_tui.recording: {numbers}"]
    lines = [line.plain for line in panel.build(width, 6)]
    assert len(lines) <= 2 and all(len(line) <= width for line in lines)
    assert "  ".join(line.strip() for line in lines) == f"11:50:53 {numbers}"


async def test_rollouts_in_flight_with_how_long_they_take(tmp_path: Path) -> None:
    run = tmp_path / "flying"
    writer = RunWriter(run)
    writer.status("running", step=3)
    writer.metrics(3, {"time/step": 4.0, "rewards/total/mean": 0.5})
    for id_ in ("quick", "slow-1", "slow-2"):
        writer.begin(id_, "task 7")
    writer.end("quick")
    writer.status("running", step=3)
    writer.flush()
    try:
        async with running(tmp_path, Live(run), size=(160, 48)) as app:
            text = app.text
            assert "2 in flight" in text and "took" in text
            app.screen.activate("speed")
            text = await app.press("z")
            assert "slow-1" in text and "slow-2" in text and "task 7" in text and "quick" not in text
    finally:
        writer.close()


async def test_each_server_shows_its_rate_mismatch_and_age(tmp_path: Path) -> None:
    run, facts = tmp_path / "served", {"in_flight": 3, "turns": 40, "tokens": 5000, "why_out": ""}
    servers: list[dict[str, object]] = [
        {**facts, "url": "http://a:8000", "mismatch": 0.0021, "behind": 1.25},
        {**facts, "url": "http://b:8000", "mismatch": None, "behind": None},
    ]
    writer = RunWriter(run)
    live = LiveTexts(servers=lambda: servers)
    live.begin(["2 + 2?"], 2, 40)
    writer._state.live = live
    writer.status("running", step=3)
    writer.metrics(3, {"time/step": 4.0, "rewards/total/mean": 0.5})
    writer.progress("rollouts", 0, 2)
    writer.flush()
    try:
        async with running(tmp_path, Live(run), size=(160, 48)) as app:
            lines = app.text.splitlines()
            (first,), (second,) = ([x for x in lines if url in x] for url in ("http://a:8000", "http://b:8000"))
            assert "mismatch 0.002  " in first and "1.25 steps behind" in first and "3 in flight" in first
            assert "mismatch" not in second and "steps behind" not in second and "40 turns" in second
    finally:
        writer.close()


async def test_a_log_that_cannot_be_read_is_said_in_a_sentence(own_runs: Path) -> None:
    log = own_runs / "one" / "logs" / "training.log"
    async with running(own_runs, Live(own_runs / "one")) as app:
        log.unlink()
        log.mkdir()
        assert "The log cannot be read" in await app.press("o")
        log.rmdir()
        log.symlink_to("/nowhere")
        assert "This run has no log yet." in await app.press("o")


async def test_a_run_that_is_moved_or_deleted_meanwhile_has_not_crashed(own_runs: Path) -> None:
    async with running(own_runs, Live(own_runs / "one"), size=(120, 40)) as app:
        assert "finished" in app.text
        (own_runs / "one").rename(own_runs / "other")
        app.screen.follow()
        await settle(app.pilot)
        assert "? gone" in app.text and "moved or deleted" in app.text and "crashed" not in app.text


async def test_an_ended_run_promises_no_further_values(tmp_path: Path) -> None:
    with Recorder("one", runs_dir=tmp_path) as record:
        record.metrics(1, {"loss": 0.5})
    async with running(tmp_path, Live(tmp_path / "one"), size=(120, 40)) as app:
        assert "finished" in app.text and "not recorded" in app.text
        assert "after the first" not in app.text and "c saves one" not in app.text and "a chat" not in app.text
