"""Numbers on the screens: any float is shown, whole or not at all, and what adds up is seen to add up."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from textual.geometry import Region

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.runs.health.headline import Headline
from grpo_tui.engine.runs.learning import UseKind
from grpo_tui.engine.runs.read.groups import GroupRow
from grpo_tui.engine.runs.types import Event, Progress, RunInfo, Served, TrajectoryRecord, TrajectoryRow, Use
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.rewards.breakdown import ComponentValue, RewardBreakdown, StepReward
from grpo_tui.tui import format as formats
from grpo_tui.tui.app.app import GrpoApp
from grpo_tui.tui.app.curves import Series, by_scale, decades, labels, ticks
from grpo_tui.tui.app.destinations import Live, Runs
from grpo_tui.tui.app.live_charts import along
from grpo_tui.tui.app.live_data import ACTIONS, Reading, findings, merged, read, tally
from grpo_tui.tui.app.live_header import header
from grpo_tui.tui.app.rollout_columns import rollout_columns
from grpo_tui.tui.app.run_list import RunRow
from grpo_tui.tui.app.screens.groups import columns as group_columns
from grpo_tui.tui.app.shell import Memory
from grpo_tui.tui.app.theme import DEFAULT_THEME, THEMES, Palette
from grpo_tui.tui.app.widgets.alerts import Alerts
from grpo_tui.tui.app.widgets.chart import Chart
from grpo_tui.tui.app.widgets.learning_panels import ROWS, ActionBars, ComponentTable, PolicyPanel
from grpo_tui.tui.app.widgets.list_panels import GroupPanel
from grpo_tui.tui.app.widgets.live_panels import PHASES, ServingPanel, SnapshotsPanel, SpeedPanel
from grpo_tui.tui.app.widgets.pane import Pane
from grpo_tui.tui.app.widgets.reward_arithmetic import RewardArithmetic
from grpo_tui.tui.app.widgets.run_card import columns as run_columns
from grpo_tui.tui.app.widgets.table import Table, TableColumn
from grpo_tui.tui.plain import Whole
from grpo_tui.tui.text import distinct_names

from .drive import running

ANY = st.floats(allow_nan=True, allow_infinity=True)
EXTREMES = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1.7e308, 5e-324, 0.0, -0.0, 1e-9, 0.5]
PALETTE = Palette(THEMES[DEFAULT_THEME])
CUT = re.compile(r"\d…")
NAMES = [
    *(f"rewards/{kind}/{name}" for name in ("task", "curiosity", "coherence", "penalty", "environment")
      for kind in ("raw", "raw_std", "weight", "per_trajectory", "raw_per_trajectory", "normalized_per_trajectory")),
    "rewards/total/mean", "rewards/total/std", "kl/mean", "kl/target", "kl/tolerance", "kl/beta",
    *(name for rows in ROWS.values() for name, _, _ in rows),
    *(f"time/{phase}" for phase in PHASES), "time/step", "tokens/agent", "memory/rss_mib", "memory/gpu_mib",
    "online/success", "online/success_initial", "online/confidence", "online/latency_s", "online/serving_version",
    "online/snapshot_version", "online/queue_depth", "online/tasks_lost", "online/tasks_dropped",
    *(f"{ACTIONS}{name}" for name in ("ANSWER", "SEGMENT_OBJECT_AT", "READ_TEXT")),
]  # fmt: skip


def framed(pane: Pane) -> Pane:
    """A pane that is on no screen and can be built all the same."""
    app = SimpleNamespace(palette=PALETTE, no_color=False, clock=lambda: 1e9)
    frame = SimpleNamespace(app=app, post_message=lambda message: True)
    frame.refresh = frame.refresh_lines = lambda *regions: None
    pane.frame = frame  # type: ignore[assignment]
    return pane


@given(ANY | st.none(), st.integers(0, 12))
def test_every_formatter_takes_any_number(value: float | None, cells: int) -> None:
    for show in (formats.number, formats.fixed, formats.percent, formats.duration, formats.ago):
        assert isinstance(show(value), str) and len(show(value)) <= 24
    assert len(formats.fitted(value, cells)) <= cells
    if value is not None:
        assert len(formats.bar(value, cells)) == len(formats.progress(value, cells)) == cells
        assert len(formats.sparkline([value, 0.0, value], cells)) <= cells


@given(st.lists(ANY, max_size=60), st.integers(0, 40))
def test_a_sparkline_takes_any_numbers_and_leaves_out_what_is_none(values: list[float], cells: int) -> None:
    text = formats.sparkline(values, cells)
    assert len(text) <= cells
    if cells >= len(values) and any(map(math.isfinite, values)):
        assert [c == " " for c in text] == [not math.isfinite(v) for v in values]


def test_a_trend_leaves_a_blank_where_steps_are_missing() -> None:
    assert formats.trend([(1, 0.0), (2, 0.0), (5, 1.0), (6, 1.0)], 10) == "▁▁  ██"
    assert " " not in formats.trend([(step, float(step)) for step in range(10, 100, 10)], 20), (
        "every tenth step is whole"
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda v: sum(v) > 0.1))
def test_percents_of_a_whole_add_up_to_100(values: list[float]) -> None:
    made = formats.whole_percents([v / sum(values) for v in values])
    assert sum(int(text.removesuffix(" %")) for text in made) == 100


@given(st.floats(-1e300, 1e300), st.floats(1e-300, 1e300), st.integers(2, 12), st.booleans())
def test_tick_labels_say_exactly_where_the_ticks_are(low: float, span: float, most: int, whole: bool) -> None:
    at = ticks(low, low + span, most, whole=whole)
    said = labels(at)
    assert len(at) <= most and len(set(said)) == len(set(at))
    for tick, text in zip(at, said, strict=True):
        size = {"M": 1e6, "G": 1e9}.get(text[-1], 1.0)
        plain = float(text.rstrip("MG").replace(",", "").replace("−", "-")) * size
        assert math.isclose(plain, tick, rel_tol=1e-6, abs_tol=1e-9 * span)
        assert not whole or tick == int(tick)


def test_ticks_between_whole_numbers_are_not_rounded_to_them() -> None:
    assert labels([2.5, 5.0, 7.5]) == ["2.5", "5.0", "7.5"]
    assert ticks(0, 9, 4, whole=True) == [0, 5], "and steps are whole"
    assert decades(-3, 2, 3) == [-2, 0, 2] and len(decades(0.1, 0.9, 4)) == 2, "2 and 5 within one decade"


@settings(max_examples=60)
@given(
    st.lists(ANY | st.sampled_from(EXTREMES), min_size=1, max_size=40),
    st.lists(ANY, min_size=40, max_size=40),
    st.integers(4, 90),
    st.integers(1, 24),
    st.booleans(),
    st.booleans(),
)
def test_a_chart_takes_any_numbers(
    ys: list[float], spread: list[float], width: int, height: int, log: bool, panels: bool
) -> None:
    chart = Chart("chart")
    framed(chart)
    xs = [float(i) for i in range(len(ys))]
    chart.log, chart.panels = log, panels
    chart.put("heading", [Series("a", xs, ys, spread[: len(ys)]), Series("b", xs, [1.0] * len(ys), dots=True)])
    assert all(line.width <= width for line in chart.build(width, height))


def test_curves_share_a_scale_only_where_both_are_seen_to_move() -> None:
    xs = [1.0, 2.0, 3.0]
    reward, success = Series("reward", xs, [0.1, 0.5, 0.9]), Series("success", xs, [0.2, 0.3, 0.8])
    tokens, target = Series("tokens", xs, [100, 500, 900]), Series("target", xs, [0.5, 0.5, 0.5])
    assert [[s.name for s in g] for g in by_scale([reward, tokens, success, target])] == [
        ["reward", "success", "target"], ["tokens"],
    ]  # fmt: skip


values = st.dictionaries(
    st.sampled_from(NAMES), ANY | st.floats(-2, 2) | st.sampled_from(EXTREMES), max_size=len(NAMES)
)


@settings(max_examples=40)
@example(dict.fromkeys(NAMES, math.inf), 60, 20)
@example(dict.fromkeys(NAMES, math.nan), 60, 20)
@given(values, st.integers(1, 130), st.integers(2, 20))
def test_numbers_are_whole_or_absent_at_every_width(latest: dict[str, float], width: int, height: int) -> None:
    trends = {name: [(1, value), (2, value), (9, 0.5)] for name, value in latest.items()}
    events = [
        Event("eval", "", 40, {"greedy": 0.123, "sampled": math.nan}, 1e9 - 1900.0, 1),
        Event("checkpoint", "", 12345, {}, 1e9 - 7200.0, 2),
        Event("snapshot", "", 7, {"version": 123, "action": "published"}, 1e9 - 86400.0, 3),
    ]
    panes = (ComponentTable(), PolicyPanel(), ServingPanel(), SnapshotsPanel(), SpeedPanel(), ActionBars())
    for pane in panes:
        framed(pane)
    betas = [Event("beta", "m", 9, {"from": 0.1, "to": latest.get("kl/beta", 0.2)})]
    for kind in ("rft", "sft", "online"):
        info = RunInfo("ab12", "", kind, "finished", step=1234567)
        for pane in panes:
            pane.put(Reading(info, latest=latest, trends=trends, betas=betas, versions=events))
            for line in pane.build(width, height):
                assert line.width <= width, (pane.name, line.plain)
                assert not CUT.search(line.plain), (pane.name, line.plain)


counts = st.integers(0, 10**12) | st.integers(0, 20)
rollouts = st.builds(
    TrajectoryRow, counts.map(lambda n: n + 1), st.just("id"), counts | st.none(), st.just("12.3"), st.just("p"),
    st.integers(0, 9), st.just("visual"), st.just("train"), ANY | st.none(), ANY | st.none(),
    st.sampled_from([True, False, None]), counts, counts | st.none(), counts, st.sampled_from(["", "length"]),
    st.just(("GET", "ANSWER")), st.just("Question"), st.none(), policy_version=st.integers(0, 99_999),
    gate=st.sampled_from(["", "open"]), confidence=ANY | st.none(),
    extra=st.fixed_dictionaries({"component.task": ANY, "x": ANY}),
)  # fmt: skip
groups = st.builds(
    lambda step, size, mean, std, right, wrong, penalties: GroupRow(
        1, "12.3", 1, step, size, mean, std, right, right + wrong, penalties, mean, std, "p", "Question",
        ((("GET", "ANSWER"), "", size),),
    ),
    counts, counts, ANY | st.none(), ANY | st.none(), counts, counts, counts,
)  # fmt: skip
listed = st.builds(
    lambda step, total, created, reward, success: RunRow(
        RunInfo("run-of-mine", "/r", "online", "running", step=step, total_steps=total, created=created),
        Headline({"rewards/total/mean": reward, "success/eval_greedy": success}, {}),
    ),
    counts, counts | st.none(), st.floats(0, 1e300), ANY, ANY,
)  # fmt: skip


@settings(max_examples=60)
@given(
    st.lists(rollouts, min_size=1, max_size=3),
    st.lists(groups, min_size=1, max_size=3),
    st.lists(listed, min_size=1, max_size=3),
    st.integers(18, 200),
)
def test_numbers_of_tables_are_whole_or_their_column_is_not_there(
    of_rollouts: list[TrajectoryRow], of_groups: list[GroupRow], of_runs: list[RunRow], width: int
) -> None:
    tables: list[tuple[Sequence[TableColumn], Sequence[Any]]] = [
        (rollout_columns(PALETTE, ("component.task", "x"), of_rollouts), of_rollouts),
        (group_columns(PALETTE, of_groups, one_prompt=False), of_groups),
        (group_columns(PALETTE, of_groups, one_prompt=True), of_groups),
        (run_columns(PALETTE, 1e9, of_runs), of_runs),
    ]
    for columns, rows in tables:
        table = Table("table", lambda pane, columns=columns: columns, list)
        framed(table)
        table.placed(Region(0, 0, width, len(rows) + 1))
        table.reset(len(rows))
        table.deliver(0, rows)
        shown = table.layout_columns(width)
        for row in rows:
            for column, cells in shown:
                said = str(column.cell(row)[0])
                if column.align == ">":
                    assert len(said) <= cells, (column.title, said)
        for y in range(len(rows) + 1):
            line = "".join(segment.text for segment in table.line_at(y))
            assert len(line) == width and not CUT.search(line), line
            if len(shown) > 1:  # the last column is as whole as the others
                assert not line.endswith("…") or shown[-1][0].align == "<", line


@settings(max_examples=40)
@given(
    st.lists(rollouts, min_size=1, max_size=4),
    st.lists(st.tuples(ANY, ANY | st.none(), ANY, ANY), min_size=1, max_size=3),
    ANY,
    ANY,
    st.integers(16, 120),
    st.integers(2, 30),
)
def test_numbers_of_the_stepper_are_whole_at_every_width(
    group: list[TrajectoryRow], parts: list[tuple[Any, ...]], total: float, advantage: float, width: int, height: int
) -> None:
    names = ("task", "quality_of_the_answer_by_a_judge", "quality_of_the_answer_by_length")
    step = Step(0, "t", action="GET", arguments={"x": advantage}, seconds=total)
    components = {name: ComponentValue(*values) for name, values in zip(names, parts, strict=False)}
    record = TrajectoryRecord(
        Trajectory("id", "visual", "p", "12.3", 0, "Question", (step,)),
        RewardBreakdown("id", (StepReward(0, components, (), total),), total), advantage, (advantage,),
        use=Use(UseKind.TRAINED, 1, advantage, total),
        served=Served(3, True, "a", True, "a", True, total, {"a": advantage}),
    )  # fmt: skip
    neighbours, arithmetic = GroupPanel(), RewardArithmetic()
    for pane in (neighbours, arithmetic):
        framed(pane)
    neighbours.put(group, group[0].n)
    arithmetic.put(Whole(1, record, [Use(UseKind.APPLIED, 7, advantage, total, facts={"kl": total})]), 0)
    for pane in (neighbours, arithmetic):
        for line in pane.build(width, height):
            assert not CUT.search(line.plain), (pane.name, line.plain)
            assert line.width <= width or not any(map(str.isdigit, line.plain[width:])), (pane.name, line.plain)


@given(st.lists(st.text("ab_", min_size=1, max_size=40), min_size=1, max_size=8, unique=True), st.integers(6, 40))
def test_names_that_are_cut_are_told_apart(names: list[str], cells: int) -> None:
    shown = distinct_names(names, cells)
    assert all(len(text) <= cells for text in shown) and len(set(shown)) == len(names)
    assert all(text == name for text, name in zip(shown, names, strict=True) if len(name) <= cells)


@given(
    st.integers(20, 220),
    st.sampled_from(["starting", "running", "paused", "stopping", "finished", "crashed"]),
    st.sampled_from(["rft", "sft", "online"]),
    st.sampled_from([(10**5, 60), (10**7, 65)]).flatmap(lambda t: st.tuples(st.integers(0, t[0]), st.just(t))),
    st.floats(0, 1e6),
)
def test_the_header_is_whole_or_absent_at_every_width(
    width: int, status: Any, mode: str, steps: tuple[int, tuple[int, int]], pace: float
) -> None:
    step, (total, enough) = steps
    info = RunInfo("r", "/r", mode, status, step=step, total_steps=total, progress=Progress("rollouts", 128, 512),
                   heard=1e9 - 14)  # fmt: skip
    reading = Reading(info, latest={}, seconds_a_step=pace)
    left, right = header(PALETTE, "20261122-063000-abcdef", reading, 1e9, width)
    assert left.width + right.width + 8 <= max(width, 16) and not CUT.search(right.plain)
    assert width < 80 or header(PALETTE, "1120-0949-k3f9", reading, 1e9, width)[0].plain[13:14] == "9"
    if width >= enough and status == "running":
        assert "rollouts 128/512" in right.plain and "14 s ago" in right.plain and f"{step:,}/" in right.plain


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A run whose every metric has been everything that a float can be."""
    folder = tmp_path / "runs" / "wild"
    writer = RunWriter(folder)
    for step, value in enumerate(EXTREMES, 1):
        writer.metrics(step, {**dict.fromkeys(NAMES, value), "success/train": value, "step": value})
    writer.status("running", step=len(EXTREMES), total_steps=100)
    writer.event("eval", "x", step=3, greedy=math.nan, sampled=1e308)
    writer.flush(10)
    writer.close()
    (folder / "run.json").write_text(json.dumps({"id": "wild", "mode": "rft", "created": 1e300}))
    return folder


@pytest.mark.parametrize("mode", ["rft", "sft", "online"])
async def test_the_dashboard_shows_any_number(hostile: Path, mode: str) -> None:
    (hostile / "run.json").write_text(json.dumps({"id": "wild", "mode": mode, "created": 1e300}))
    async with running(hostile.parent, Live(hostile)) as app:
        for keys in ("m" * 12, "LttzztM"):
            for key in keys:
                await app.press(key)
        assert app.app.return_code is None


async def test_the_list_of_runs_shows_any_number(hostile: Path) -> None:
    state = json.loads((hostile / "processes" / "training.json").read_text())
    for summary in (
        state["summary"],
        {},
        None,
        7,
        {"success/train": {"last": math.nan, "steps": ["x"], "curve": [1e308]}},
    ):
        (hostile / "processes" / "training.json").write_text(json.dumps({**state, "summary": summary}))
        async with running(hostile.parent, Runs()) as app:
            assert " wild " in app.text
            for _ in range(9):
                await app.press("s")


async def test_a_fault_in_a_worker_leaves_its_traceback(run: Path, tmp_path: Path) -> None:
    memory = Memory(tmp_path / "app.json")
    app = GrpoApp(run.parent, Live(run), memory=memory)

    async def fault() -> None:
        raise ZeroDivisionError("a fault of ours")

    with pytest.raises(Exception, match="a fault of ours"):
        async with app.run_test() as pilot:
            app.run_worker(fault())
            await pilot.pause(0.2)
    told = memory.path.with_name("app-error.log").read_text()
    assert "Traceback" in told and "in fault" in told and "ZeroDivisionError" in told


def test_only_actions_of_the_newest_step_are_shown(tmp_path: Path) -> None:
    from grpo_tui.engine.runs.read.reader import RunReader

    writer = RunWriter(tmp_path / "r")
    writer.metrics(1, {f"{ACTIONS}A": 0.5, f"{ACTIONS}B": 0.5})
    writer.metrics(2, {f"{ACTIONS}A": 1.0})
    writer.close()
    with RunReader(tmp_path / "r") as reader:
        assert read(reader, 0).latest == {f"{ACTIONS}A": 1.0}


def test_the_time_of_a_step_is_not_that_of_the_last_one_alone(tmp_path: Path) -> None:
    from grpo_tui.engine.runs.read.reader import RunReader

    writer = RunWriter(tmp_path / "r")
    for step in range(1, 21):
        writer.metrics(
            step, {"time/step": 60.0 if step == 20 else 2.0} | ({"time/evaluate": 40.0} if step == 10 else {})
        )
    writer.close()
    with RunReader(tmp_path / "r") as reader:
        assert read(reader, 0).seconds_a_step == pytest.approx((19 * 2 + 60) / 20 + 40 / 20)


def test_repeats_are_one_finding_and_good_news_is_no_alert() -> None:
    data = {"detector": "advantage_share", "subject": "coherence", "trajectories": ["a"]}
    events = [Event("alert", f"coherence {n}", n, data, float(n), n) for n in (4, 24, 44)]
    events.append(Event("alert", "curiosity", 30, {**data, "subject": "curiosity", "severity": "hint"}, 30.0, 9))
    events.append(Event("note", "solved", 50, {"detector": "groups_without_variance", "severity": "good"}, 50.0, 10))
    found = merged(events)
    assert [(f.severity, f.times, f.first, f.last, f.message) for f in found] == [
        ("warning", 3, 4, 44, "coherence 44"), ("hint", 1, 30, 30, "curiosity"), ("good", 1, 50, 50, "solved"),
    ]  # fmt: skip
    shown = findings(Reading(RunInfo("r", "/r", "rft", "finished"), findings=events[::-1]))
    assert [f.severity for f in shown] == ["warning", "hint", "good"]
    assert tally(shown) == "1 warning, 1 hint"


@given(st.integers(14, 100))
def test_a_chosen_finding_is_told_in_full(width: int) -> None:
    pane = Alerts()
    framed(pane)
    pane.active = True
    pane.put(merged([Event("alert", "word " * 40 + "the useful end", 3, {"trajectories": ["a", "b"]}, 1.0, 1)]))
    lines = pane.build(width, 4)
    assert all(line.width <= width for line in lines)
    words = " ".join(line.plain for line in lines).split()
    assert words.count("word") == 40 and "useful" in words and "end" in words


def test_all_findings_are_told_in_full_where_there_is_room() -> None:
    pane = Alerts()
    framed(pane)
    pane.put(merged([Event("alert", f"{n} " + "word " * 40 + "end", n, {"subject": n}, 1.0, n) for n in (1, 2)]))
    assert sum(line.plain.count("end") for line in pane.build(60, 20)) == 2
    assert len(pane.build(60, 2)) == 2, "and cut with a mark where there is none"


def test_steps_stand_in_proportion_along_time_and_tokens() -> None:
    time = along("time", "rft", [(1, 100.0), (11, 700.0)], [], 0.0)
    assert time.name == "minutes" and time(6) == pytest.approx(300 / 60)
    tokens = along("tokens", "rft", [], [(1, 10.0), (3, 30.0)], 0.0)
    assert tokens(2) == 20.0 and tokens(9) == 30.0 and along("tokens", "rft", [], [], 0.0).name == "step"


def test_the_dashboard_shows_the_interval_of_held_out_success() -> None:
    policy = PolicyPanel()
    framed(policy)
    latest = {metric.SUCCESS_GREEDY: 0.8, metric.SUCCESS_LOW: 0.68, metric.SUCCESS_HIGH: 0.88}
    policy.put(Reading(RunInfo("ab12", "", "rft", "running"), latest=latest))
    assert "held-out 80 % (68 % to 88 %)" in [line.plain.strip() for line in policy.build(60, 8)]
