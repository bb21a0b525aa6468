"""Two values of rollouts in cells, against a plain count of the same rows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.rewards.breakdown import RewardBreakdown


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory):
    rng = random.Random(3)
    folder = tmp_path_factory.mktemp("scatter") / "run"
    writer = RunWriter(folder)
    for step in range(1, 40):
        records = []
        for i in range(8):
            rewards = [rng.choice([0.1, 0.3, 0.7]), rng.uniform(-2, 2), float("nan"), float("inf"), 1.5e308, -1.5e308]
            reward = rng.choices(rewards, [5, 5, 1, 1, 1, 1])[0]
            extra = {"difficulty": rng.choice([1, 2.5, "hard"]), "two words": 1.0}
            steps = tuple(Step(s, f"word{s % 3}") for s in range(rng.randint(1, 9)))
            made = Trajectory(f"{step}-{i}", "e", f"p{i}", f"g{step}", i, "Q", steps, extra=extra)
            records.append(
                TrajectoryRecord(made, RewardBreakdown(made.id, (), reward), token_count=rng.randint(5, 4000))
            )
        writer.trajectories(step, records)
    assert writer.flush(20)
    writer.close()
    with RunReader(folder) as opened:
        yield opened


@pytest.mark.parametrize(
    ("x", "y"), [("tokens", "reward"), ("step", "turns"), ("reward", "n"), ("extra.difficulty", "reward")]
)
@pytest.mark.parametrize("query", [Query(), Query("turns>3"), Query("step<20", "word1")])
@pytest.mark.parametrize("size", [(2, 2), (17, 9), (200, 80)])
def test_cells_hold_the_rollouts_of_their_filter(
    reader: RunReader, x: str, y: str, query: Query, size: tuple[int, int]
) -> None:
    cloud = reader.rollouts.scatter(query, x, y, size)
    assert cloud.x.cells <= size[0] and cloud.y.cells <= size[1]
    matching = reader.rollouts.page(query, limit=1000)

    def value(row, name):
        found = row.extra.get("difficulty") if name == "extra.difficulty" else getattr(row, name)
        return found if isinstance(found, (int, float)) and abs(found) < 1e300 else None

    points = [row.n for row in matching if value(row, x) is not None and value(row, y) is not None]
    assert cloud.rollouts == len(points) > 0
    counts = Counter()
    for (a, b), (n, first) in cloud.cells.items():
        terms = [f"({query.filter})"] if query.filter else []
        inside = Query(" and ".join([*terms, cloud.x.term(a), cloud.y.term(b)]), query.search)
        found = [row.n for row in reader.rollouts.page(inside, limit=1000)]
        assert len(found) == n and min(found) == first
        counts.update(found)
    assert counts == Counter(points)


def test_enormous_rewards_stretch_no_histogram(reader: RunReader) -> None:
    assert all(-2 <= low <= high <= 2 for low, high, _ in reader.rollouts.histogram())


def test_names_are_those_that_filters_take(reader: RunReader) -> None:
    names = reader.rollouts.values()
    assert {"reward", "tokens", "turns", "step", "extra.difficulty"} <= set(names)
    assert "extra.two words" not in names, "no filter can name it"


def test_nothing_to_plot(reader: RunReader, tmp_path: Path) -> None:
    assert reader.rollouts.scatter(Query("reward>99"), "tokens", "reward", (10, 10)).cells == {}
    assert reader.rollouts.scatter(Query(), "confidence", "reward", (10, 10)).cells == {}
    with RunReader(tmp_path) as empty:
        assert empty.rollouts.scatter(Query(), "tokens", "reward", (10, 10)).cells == {}
        assert empty.rollouts.values() == []
