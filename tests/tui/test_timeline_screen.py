"""The time of steps by phase, and the servers that wrote their rollouts."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.tui.app.destinations import Further, Live
from grpo_tui.tui.app.screens import timeline
from grpo_tui.tui.app.screens.timeline import _eighths, timed_steps, timings, written

from .demo_run import make_run
from .drive import running
from .terminal import opened
from .test_hostile import NASTY, check


def served(folder: Path, steps: int = 3, names: tuple[str, ...] = ("http://a:8000", "http://b:8000")) -> Path:
    """A run whose rollouts two servers wrote."""
    run = folder / "served"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"id": "served", "mode": "rft"}')
    writer = RunWriter(run)
    for step in range(1, steps + 1):
        records = []
        for i in range(4):
            turn = Step(0, "x", token_span=(0, 10 * (1 + i)), server=names[i % 2])
            records.append(TrajectoryRecord(Trajectory(f"{step}-{i}", "e", "p", f"g{step}", i, "Q", (turn,))))
        writer.trajectories(step, records)
        times = {"time/generate": 2.0 + step, "time/backward": 1.0, "trainer/idle": 0.5, "time/step": 4.0 + step}
        writer.metrics(step, {**times, "rollout/wait": 0.25, "time/evaluate": 3.0 if step == 2 else math.nan})
    assert writer.flush(20)
    writer.close()
    return run


def test_parts_add_up_to_the_step(run: Path, tmp_path: Path) -> None:
    with RunReader(run) as reader:
        assert timed_steps(reader) == list(range(1, 41))
        for shown in timings(reader, 5, 9):
            assert 5 <= shown.step <= 9 and shown.seconds == pytest.approx(1.9)
            assert sum(shown.parts.values()) == pytest.approx(shown.seconds)
            assert shown.parts["generation"] == 0.9 and shown.parts["tools"] == 0.06
            assert shown.parts["other"] == pytest.approx(1.9 - 0.9 - 0.06 - 0.04 - 0.2 - 0.6 - 0.01)
    with RunReader(served(tmp_path)) as reader:
        first, second, _ = timings(reader, 1, 3)
        assert list(first.parts) == ["waiting for rollouts", "generation", "update", "other"]
        assert first.later == {"rollouts in the queue": 0.25}
        assert second.later == {"evaluation after it": 3.0, "rollouts in the queue": 0.25}
        assert [(w.server, w.turns, w.tokens) for w in written(reader, 1)] == [
            ("http://a:8000", 2, 10 + 30),
            ("http://b:8000", 2, 20 + 40),
        ]


async def test_a_step_and_its_servers(tmp_path: Path) -> None:
    run = served(tmp_path)
    async with running(tmp_path, Further(run, "Timeline"), size=(80, 24)) as app:
        assert "step 3" in app.text and "waiting for rollouts" in app.text
        line = next(text for text in app.text.splitlines() if "generation" in text)
        assert "5.00 s" in line and "71 %" in line
        assert "http://a:8000" in app.text and " 40 tokens in 2 turns" in app.text and "…" not in app.text
        text = await app.press("k")
        assert "step 2" in text and "evaluation after it" in text and "3.00 s" in text
        await app.press("enter")
        assert app.view == "trajectories" and app.screen.list_query.filter == "step=2"


async def test_spans_are_drawn_where_they_were(tmp_path: Path) -> None:
    run = served(tmp_path)
    writer = RunWriter(run)
    alternating = [(100.0 + i, 100.5 + i) for i in range(4)]
    pauses = [(end, end + 0.5) for _, end in alternating]
    spans = {"environment": pauses, "generate": alternating, "http://a:8000": [(100.0, 102.0)], "step": [(99.0, 104.0)]}
    writer.timeline(3, spans)
    assert writer.flush(20)
    writer.close()
    async with running(tmp_path, Further(run, "Timeline"), size=(150, 45)) as app:
        lanes = {line.split("  ")[0].strip(" │▌▓▒░█"): line for line in app.text.splitlines()}
        generation, tools = (next(line for name, line in lanes.items() if n in name) for n in ("generation", "tools"))
        assert "2.00 s" in generation and "2.00 s" in tools
        drawn = [{i for i, c in enumerate(line) if c not in " │"} for line in (generation, tools)]
        bars = [{i for i in some if 26 < i < 130} for some in drawn]
        assert min(bars[0]) < min(bars[1]) and max(bars[0]) < max(bars[1])
        assert len(bars[0] & bars[1]) <= 4, "one is drawn in the pauses of the other"
        assert any("http://a:8000" in line and "2.00 s" in line for line in app.text.splitlines())
        assert "no start times" not in app.text
        assert "no start times" in await app.press("k"), "step 2 was recorded without"


async def test_spans_without_length_hide_no_other(tmp_path: Path) -> None:
    run = served(tmp_path)
    writer = RunWriter(run)
    writer.timeline(3, {"generate": [(100.0, 100.0), (100.0, 104.0), (104.0, 104.0)], "step": [(100.0, 104.0)]})
    assert writer.flush(20)
    writer.close()
    async with running(tmp_path, Further(run, "Timeline"), size=(150, 45)) as app:
        line = next(line for line in app.text.splitlines() if "generation" in line)
        bar = line[26 : line.index("4.00 s")].strip(" █▏▎▍▌▋▊▉│")
        assert len(bar) > 90 and len(set(bar)) == 1, "the bar is as long as the step"


@pytest.mark.parametrize("seed", range(20))
def test_each_cell_is_filled_as_far_as_spans_cover_it(seed: int) -> None:
    rng = random.Random(seed)
    ends = sorted(rng.uniform(0, 7) for _ in range(rng.choice([2, 8, 60])))
    spans = [(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    spans += [(a, a) for a, _ in spans]
    found = _eighths(spans, 50, 7.0)
    for cell, eighths in enumerate(found):
        low, high = cell * 7 / 50, (cell + 1) * 7 / 50
        share = sum(max(0.0, min(b, high) - max(a, low)) for a, b in spans) / (high - low)
        middle = any(low <= (a + b) / 2 <= high for a, b in spans)
        if abs(share - 0.5) > 1e-6:
            assert (eighths == 8) == (share > 0.5)
        assert eighths > 0 or not any(low < (a + b) / 2 < high for a, b in spans)
        if 0 < eighths < 8:
            assert middle and abs(eighths / 8 - share) <= 1 / 8


async def test_from_the_dashboard(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        await app.press("i")
        assert app.view == "timeline" and "step 40" in app.text and "47 %" in app.text
        await app.press("g")
        assert "· step 1 " in app.text


@pytest.mark.parametrize("size", [(20, 6), (40, 12), (80, 24), (300, 90)])
async def test_every_size_and_hostile_names(tmp_path: Path, size: tuple[int, int]) -> None:
    run = served(tmp_path, names=(NASTY, "http://" + "x" * 500))
    async with running(tmp_path, Further(run, "Timeline"), size=size) as app:
        check(app.text)
        await app.press("k", "g", "G", "pageup", "j")
        check(app.text)
        await app.pilot.resize_terminal(100, 30)
        await app.press()
        check(app.text)
        assert "rollouts in the queue" in app.text


async def test_many_steps_and_none(tmp_path: Path, own_runs: Path) -> None:
    run = own_runs / "many"
    run.mkdir()
    (run / "run.json").write_text('{"id": "many", "mode": "sft"}')
    writer = RunWriter(run)
    for step in range(1, 3001):
        writer.metrics(step, {"time/step": 1.0 + step % 7})
    assert writer.flush(20)
    writer.close()
    async with running(own_runs, Further(run, "Timeline"), size=(80, 24)) as app:
        assert "3,000 steps" in app.text and "other" in app.text
        assert "· step 1 " in await app.press("g")
    empty = own_runs / "none"
    empty.mkdir()
    (empty / "run.json").write_text('{"id": "none", "mode": "rft"}')
    async with running(own_runs, Further(empty, "Timeline"), size=(80, 24)) as app:
        assert "No timings were recorded." in app.text
        await app.press("j", "enter", "G")
        assert app.view == "timeline"


async def test_steps_appear_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "FOLLOW_SECONDS", 0.05)
    run = make_run(tmp_path, "grows", steps=0, status="running", total_steps=50)
    async with running(tmp_path, Further(run, "Timeline")) as app:
        assert "They appear after the first training step" in app.text
        writer = RunWriter(run)
        for step in range(1, 4):
            writer.metrics(step, {"time/step": 2.0 * step})
            assert writer.flush(20)
            await app.until(f"step {step} ", f"{2 * step}.00")
            if step == 2:
                await app.press("k")
                break
        writer.metrics(3, {"time/step": 6.0})
        assert writer.flush(20)
        writer.close()
        await app.until("3 steps")
        assert "step 1 " in app.text, "the cursor stays where somebody put it"


def test_in_a_terminal(run: Path) -> None:
    with opened(run, "Live(run)") as screen:
        screen.see("reward")
        screen.press("i")
        screen.see("step 40", "generation", "0.90 s", "47 %")
        screen.press("q")
        assert screen.wait() == 0
