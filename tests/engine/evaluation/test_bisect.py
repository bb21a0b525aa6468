"""The step at which a behaviour became common: from counts, from a record, and by evaluating checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from grpo_tui.engine.evaluation.bisect import ODDS, change_point, first_common
from grpo_tui.engine.runs.health.checkpoints import policies
from grpo_tui.engine.training.checkpoints import thin
from tests.e2e.world import grpo_tui, save_model, write_world


def test_planted_changes_are_found() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        at = int(rng.integers(5, 56))
        shares = np.where(np.arange(1, 61) < at, 0.05, 0.5)
        counts = [(step, 32, int(rng.binomial(32, p))) for step, p in enumerate(shares, 1)]
        found = change_point(counts)
        assert found is not None and found.odds > ODDS
        assert abs(found.step - at) <= 1 and found.low <= found.step <= found.high
        assert abs(found.before - 0.05) < 0.1 and abs(found.after - 0.5) < 0.1


def test_intervals_cover_weak_changes() -> None:
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(400):
        at = int(rng.integers(2, 41))
        before, after = rng.uniform(size=2)
        steps = np.arange(1, 41)
        counts = [(int(t), 6, int(rng.binomial(6, before if t < at else after))) for t in steps]
        found = change_point(counts)
        assert found is not None
        inside.append(found.low <= at <= found.high)
    assert 0.93 <= np.mean(inside) <= 1.0  # at least 95 %: steps are discrete and the interval has no holes


def test_nothing_is_found_where_nothing_changes() -> None:
    rng = np.random.default_rng(2)
    false = 0
    for _ in range(300):
        p = rng.uniform()
        found = change_point([(t, 16, int(rng.binomial(16, p))) for t in range(50)])
        false += found is not None and found.odds >= ODDS
    assert false / 300 <= 1 / ODDS


def test_the_odds_are_those_of_numerical_integration() -> None:
    counts = [(1, 8, 1), (2, 8, 0), (5, 8, 5), (6, 3, 3)]
    p = (np.arange(200_000) + 0.5) / 200_000

    def evidence(part: list[tuple[int, int, int]]) -> float:
        n, k = sum(c[1] for c in part), sum(c[2] for c in part)
        return float(np.mean(p**k * (1 - p) ** (n - k)))

    splits = [evidence(counts[:i]) * evidence(counts[i:]) for i in range(1, 4)]
    found = change_point(counts)
    assert found is not None and found.odds == pytest.approx(np.mean(splits) / evidence(counts), rel=1e-6)
    assert found.step == counts[1 + int(np.argmax(splits))][0] == 5 and found.seen == 1


def test_too_little_to_compare() -> None:
    assert (
        change_point([]) is None and change_point([(3, 9, 4)]) is None and change_point([(1, 0, 0), (2, 5, 1)]) is None
    )


@pytest.mark.parametrize("n", [1, 2, 5, 16, 31])
def test_binary_search_asks_logarithmically_often(n: int) -> None:
    for planted in range(n + 1):
        asked: list[int] = []

        def share(step: int, planted: int = planted, asked: list[int] = asked) -> float:
            asked.append(step)
            return float(step >= 10 * planted)

        found = first_common([10 * i for i in range(n)], share, 0.5)
        assert found == (10 * planted if planted < n else None)
        assert len(asked) <= math.ceil(math.log2(n + 1))


def test_adapters_stay_spread_over_the_run(tmp_path: Path) -> None:
    kept: list[tuple[int, Path]] = []
    for step in range(1, 201):
        (folder := tmp_path / f"adapters-{step}").mkdir()
        kept = [*kept, (step, folder)]
        thin(kept, 8)
        kept = [(s, f) for s, f in kept if f.is_dir()]
    steps = [s for s, _ in kept]
    assert len(steps) == 8 and steps[-1] >= 199
    assert max(np.diff([0, *steps])) <= 60


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run `mine` of six steps."""
    folder = tmp_path_factory.mktemp("world")
    config = write_world(folder, save_model(folder / "model"), max_steps=6, save_every=1, keep_checkpoints=1)
    rows = "{source: rows.jsonl"
    text = (
        config.read_text().replace(rows, f"{rows}, eval_source: rows.jsonl").replace("eval_tasks: 0", "eval_tasks: 4")
    )
    config.write_text(text)
    done = grpo_tui(folder, "train", config.name, "--run-id", "mine", "--headless", "--set", "training.keep_adapters=3")
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_keeps_adapters_of_removed_checkpoints(world: Path) -> None:
    kept = policies(world / "runs" / "mine" / "checkpoints")
    assert len(kept) == 4 and max(kept) == 6
    assert all((path / "adapter_model.safetensors").is_file() for path in kept.values())


def test_the_record_decides(world: Path) -> None:
    done = grpo_tui(world, "bisect", "mine", "--filter", "step>=4", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["by"], found["step"], found["before"], found["after"]) == ("record", 4, 0.0, 1.0)
    assert "step 4 (95 %: 4 to 4)" in grpo_tui(world, "bisect", "mine", "--filter", "step>=4").stdout


def test_checkpoints_are_evaluated_where_the_record_cannot_decide(world: Path) -> None:
    kept = sorted({0, *policies(world / "runs" / "mine" / "checkpoints")})
    done = grpo_tui(world, "bisect", "mine", "--filter", f"step>={kept[2]}", "--evaluate", "--tasks", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["step"], found["after"], found["checkpoints"]) == (kept[2], kept[1], kept)
    assert len(found["shares"]) <= math.ceil(math.log2(len(kept) + 1))


def test_a_wrong_filter_is_one_sentence(world: Path) -> None:
    done = grpo_tui(world, "bisect", "mine", "--filter", "stepp>3")
    assert done.returncode == 2 and "Traceback" not in done.stderr and "stepp" in done.stderr
