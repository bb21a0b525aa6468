"""The record holds when the parts of a step were, and they add up to the recorded seconds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.store import RecordStore
from grpo_tui.engine.runs.write.truncation import truncate_after
from grpo_tui.engine.training.__main__ import run as train
from grpo_tui.envs.spans import MOST, joined

from .runs import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("timeline")
    folder = make_run(place / "run", place / "base", max_steps=3, save_every=0)
    assert train(folder) == 0
    return folder


def test_spans_of_a_training_add_up_to_its_seconds(run: Path) -> None:
    with RunReader(run) as reader:
        whole = dict(reader.metrics.points(metric.STEP_SECONDS))
        for step in (1, 2, 3):
            spans = reader.timeline(step)
            [(began, ended)] = spans["step"]
            assert ended - began == pytest.approx(whole[step], abs=1e-3)
            for phase in ("generate", "environment", "reward", "backward"):
                seconds = dict(reader.metrics.points(metric.PHASE_SECONDS(phase)))[step]
                longer = sum(b - a for a, b in spans[phase])
                # The update's span includes the log-probs in it, which its seconds do not.
                assert longer >= seconds - 1e-3 and (phase == "backward" or longer == pytest.approx(seconds, abs=1e-3))
                assert all(began - 0.1 <= a <= b <= ended + 0.1 for a, b in spans[phase])
            turns = [a for a, _ in spans["generate"]]
            assert len(turns) > 1 and turns[0] < spans["environment"][-1][0], "generation and tools alternate"
            assert spans["backward"][-1][0] > turns[-1]
        assert reader.timeline(4) == {}


def test_a_resumed_run_forgets_later_steps_and_an_older_record_has_none(run: Path) -> None:
    store = RecordStore(run / "record.sqlite")
    truncate_after(store, 2)
    store.close()
    with RunReader(run) as reader:
        assert reader.timeline(2) and reader.timeline(3) == {}
    with sqlite3.connect(run / "record.sqlite") as db:
        db.execute("DROP TABLE timeline")
    with RunReader(run) as reader:
        assert reader.timeline(2) == {}
        assert [step for step, _ in reader.metrics.points(metric.STEP_SECONDS)] == [1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_joined_spans_cover_the_same_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    begins = rng.integers(0, 2000, 60)
    spans = [(float(a), float(a + n)) for a, n in zip(begins, rng.integers(1, 30, 60), strict=True)]
    covered = np.zeros(2100, bool)
    for a, b in spans:
        covered[int(a) : int(b)] = True
    found = np.zeros(2100, bool)
    made = joined(spans)
    for a, b in made:
        assert not found[int(a) : int(b)].any()
        found[int(a) : int(b)] = True
    assert (found == covered).all() and made == sorted(made)


def test_many_spans_become_few_and_the_longest_pauses_stay() -> None:
    spans = [(10.0 * i, 10.0 * i + (1.0 if i % 10 == 9 else 9.0)) for i in range(500)]
    made = joined(spans)
    assert len(made) <= MOST and (made[0][0], made[-1][1]) == (0.0, spans[-1][1])
    assert len(made) == 50, "the 49 pauses of nine seconds remain"
