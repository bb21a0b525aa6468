"""Curves of any length: the means that are kept while writing equal those of the values themselves."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.store import RecordStore
from grpo_tui.engine.runs.write.truncation import truncate_after
from grpo_tui.engine.runs.write.writer import RunWriter

values = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan))


def expected(points: list[tuple[int, float]], width: int) -> list[tuple[int, float]]:
    """The last step and the mean of each span by the definition, from the values."""
    made = []
    for span in sorted({s // width for s, _ in points}):
        inside = [(s, v) for s, v in points if s // width == span]
        numbers = [v for _, v in inside if not math.isnan(v)]
        mean = statistics.fmean(numbers) if numbers else math.nan
        made.append((max(s for s, _ in inside), mean))
    return made


@settings(max_examples=40, deadline=None)
@example([(0, 1.0), (1568, 2.0)], 15, 1583)  # the last step of a span
@given(
    st.lists(st.tuples(st.integers(0, 5000), values), min_size=1, max_size=120),
    st.integers(1, 300),
    st.none() | st.integers(0, 5000),
)
def test_means_equal_the_definition_also_after_resuming(tmp_path_factory, given_points, max_points, cut):
    path = tmp_path_factory.mktemp("series") / "record.sqlite"
    store = RecordStore(path)
    with store.transaction():
        for step, value in given_points:
            store.metrics.add(step, {"a": value, "other": 1.0})
    if cut is not None:
        truncate_after(store, cut)
        given_points = [(s, v) for s, v in given_points if s <= cut]
    store.close()
    with RunReader(path.parent) as reader:
        points = reader.metrics.points("a", max_points=max_points)
        if not given_points:
            assert points == []
            return
        steps = [s for s, _ in given_points]
        width = 1
        while max(steps) // width - min(steps) // width + 1 > max_points:
            width *= 2
        if width == 1:
            return  # every value stands for itself: see below
        wanted = expected(given_points, width)
        assert [step for step, _ in points] == [step for step, _ in wanted] and len(points) <= max_points
        assert [v for _, v in points] == pytest.approx([v for _, v in wanted], abs=1e-6, nan_ok=True)


@settings(max_examples=60, deadline=None)
@example([(1, -0.0)], 1, 0, 1)
@given(
    st.lists(st.tuples(st.integers(0, 1000), values), min_size=1, max_size=300),
    st.integers(1, 300),
    st.integers(-1, 1000),
    st.integers(0, 1200),
)
def test_a_part_of_a_curve_equals_the_definition(tmp_path_factory, given_points, max_points, after, until):
    path = tmp_path_factory.mktemp("series") / "record.sqlite"
    store = RecordStore(path)
    with store.transaction():
        for step, value in given_points:
            store.metrics.add(step, {"a": value, "other": 1.0})
    store.close()
    inside = [(s, v) for s, v in given_points if after < s <= until]
    with RunReader(path.parent) as reader:
        points = reader.metrics.points("a", after_step=after, until_step=until, max_points=max_points)
    steps = [s for s, _ in inside]
    if not steps or max(steps) - min(steps) + 1 <= max_points:
        assert sorted(map(repr, points)) == sorted(repr((s, v + 0.0)) for s, v in inside)  # SQLite has no -0.0
        return
    width = 1
    while max(steps) // width - min(steps) // width + 1 > max_points:
        width *= 2
    wanted = expected(inside, width)
    assert [s for s, _ in points] == [s for s, _ in wanted] and len(points) <= max_points
    assert [v for _, v in points] == pytest.approx([v for _, v in wanted], abs=1e-6, nan_ok=True)


def test_a_long_curve_is_thinned(writer: RunWriter, run_dir: Path):
    for step in range(1, 3001):
        writer.metrics(step, {"a": 100.0 if step == 1234 else 1.0})
    assert writer.flush(30)
    with RunReader(run_dir) as reader:
        assert len(reader.metrics.points("a")) == 3000
        points = reader.metrics.points("a", max_points=100)
        assert 50 <= len(points) <= 100 and points[-1][0] == 3000
        assert max(value for _, value in points) > 1.0, "a spike is seen in its mean"
        assert reader.metrics.points("a", after_step=2990, max_points=100) == [(s, 1.0) for s in range(2991, 3001)]
        assert reader.metrics.points("a", max_points=5000) == reader.metrics.points("a")


def test_following_gets_every_value_once_in_limited_portions(writer: RunWriter, run_dir: Path):
    with RunReader(run_dir) as reader:
        last, seen = 0, []
        for step in range(1, 101):
            writer.metrics(step, {"a": step, "b": -step})
            if step % 30 == 0:
                assert writer.flush(10)
                while True:
                    before = last
                    last, news = reader.metrics.since(last, limit=7)
                    assert sum(map(len, news.values())) <= 7
                    seen += [(name, *point) for name, points in news.items() for point in points]
                    if last == before:
                        break
        assert sorted(seen) == sorted([("a", s, s) for s in range(1, 91)] + [("b", s, -s) for s in range(1, 91)])


def test_when_each_step_was_recorded(writer: RunWriter, run_dir: Path):
    for step in (1, 2, 5):
        writer.metrics(step, {"a": 1.0})
    assert writer.flush(10)
    with RunReader(run_dir) as reader:
        times = reader.metrics.step_times()
        assert [s for s, _ in times] == [1, 2, 5]
        assert times[0][1] <= times[-1][1]
        assert reader.metrics.last_step() == 5
        assert [s for s, _ in reader.metrics.step_times(max_points=2)] == [2, 5], "some of many, and always the last"
