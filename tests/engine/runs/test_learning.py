"""What serving and learning did with a rollout: recorded with it or after it, read back, filtered, taken back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_tui.engine.runs.errors import FilterError
from grpo_tui.engine.runs.learning import UseKind
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import ComponentScore, LossTerms, NeighbourVote, NormalizedBy, Served, Use
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.rewards.breakdown import AdvantageFormula, AdvantageTerm

FORMULA = AdvantageFormula("group", "group", 1e-4, ((AdvantageTerm(0.9, 0.4, 0.25, 4),),))
SERVED = Served(
    3, True, "left", True, "right", False, 0.625, {"left": 0.625, "right": 0.375},
    (NeighbourVote("request-1", "left", 0.5),),
    seconds=0.25,
)  # fmt: skip


def numbers(reader: RunReader, filter: str) -> list[int]:
    return [row.n for row in reader.rollouts.page(Query(filter))]


@pytest.fixture
def learned(run_dir: Path, make_record) -> Path:
    """Four rollouts of step 1; the third is replayed at steps 4 and 6, the fourth answered a request and was used."""
    writer = RunWriter(run_dir)
    own = [Use(UseKind.TRAINED, 1, 1.0, 0.5), Use(UseKind.FILTERED, 1), Use(UseKind.REPLACED, 1), None]
    records = [make_record(1, i, use=use, formula=FORMULA) for i, use in enumerate(own)]
    object.__setattr__(records[3], "served", SERVED)
    writer.trajectories(1, records)
    writer.metrics(6, {"a": 1})
    writer.uses([("t1-2", Use(UseKind.REPLAYED, 4, 0.125, 0.7)), ("t1-2", Use(UseKind.REPLAYED, 6, 0.0625, 0.6))])
    facts = {"update": 9, "kl": 0.02, "grad_norm": 3.5}
    writer.uses(
        [("t1-3", Use(UseKind.APPLIED, 3, advantage=-0.25, clipped=True, facts=facts)), ("gone", Use(UseKind.STALE, 3))]
    )
    assert writer.flush(10)
    writer.close()
    return run_dir


def test_numbers_of_a_training_that_diverged_are_kept(writer: RunWriter, run_dir: Path, make_record):
    nan, inf = math.nan, math.inf
    loss = LossTerms(2, (nan, 1.0), (0, 0), (0, 0), nan, inf, nan)
    used = Use(UseKind.TRAINED, 1, 1.0, nan, loss=loss)
    formula = AdvantageFormula("group", "group", 1e-4, ((AdvantageTerm(nan, 0.0, inf, 4),),))
    record = make_record(1, 0, use=used, formula=formula, log_ratio_sum=-inf, extra={"width": nan})
    by = {"task": NormalizedBy("zscore", nan, inf)}
    scored = (replace(record.trajectory.steps[0], scores=(ComponentScore("judge", nan),)),)
    record = replace(record, breakdown=replace(record.breakdown, normalized_by=by))
    record = replace(record, trajectory=replace(record.trajectory, steps=scored))
    writer.trajectories(1, [record])
    writer.uses([("t1-0", Use(UseKind.REPLAYED, 2, loss=loss))])
    assert writer.flush(10)
    with RunReader(run_dir) as reader:
        found = reader.bodies.trajectory(1)
        assert [repr(u) for u in reader.bodies.uses(1)] == [repr(used), repr(Use(UseKind.REPLAYED, 2, loss=loss))]
        assert repr((found.formula, found.log_ratio_sum)) == repr((formula, -inf))
        assert repr((found.trajectory.extra, found.trajectory.steps[0].scores)) == repr(
            ({"width": nan}, scored[0].scores)
        )
        assert found.breakdown is not None and repr(found.breakdown.normalized_by) == repr(by)


def test_uses_and_the_vote_come_back_as_they_were_recorded(learned: Path):
    with RunReader(learned) as reader:
        assert [u.kind for u in reader.bodies.uses(1)] == ["trained"]
        assert reader.bodies.uses(3) == [
            Use(UseKind.REPLACED, 1), Use(UseKind.REPLAYED, 4, 0.125, 0.7), Use(UseKind.REPLAYED, 6, 0.0625, 0.6),
        ]  # fmt: skip
        (use,) = reader.bodies.uses(4)
        assert use.clipped and use.facts["update"] == 9 and use.advantage == -0.25
        assert reader.bodies.trajectory(4).served == SERVED
        assert reader.bodies.trajectory(1).formula == FORMULA
        rows = reader.rollouts.page()
        assert rows[2].uses == ("replaced", "replayed") and rows[3].uses == ("applied", "clipped")
        assert (rows[3].gate, rows[3].confidence, rows[3].sent) == ("open", 0.625, True)
        assert rows[0].gate == "" and rows[0].sent is None


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ("trained", [1]),
        ("not learned", [2]),
        ("filtered or replaced", [2, 3]),
        ("replayed", [3]),
        ("learned_at:4..5", [3]),
        ("learned_at=1", [1]),
        ("weight>0.1", [3]),
        ("applied and clipped", [4]),
        ("gate:open", [4]),
        ("gate:closed", []),
        ("sent and disagrees", [4]),
        ("confidence>=0.6", [4]),
        ("version:1..5", [1, 2, 3, 4]),
        ("not trained", [2, 3, 4]),
    ],
)
def test_filters_find_what_learning_did(learned: Path, filter: str, found: list[int]):
    with RunReader(learned) as reader:
        assert numbers(reader, filter) == found
        assert reader.rollouts.count(Query(filter)) == len(found)


def test_a_filter_that_is_no_number_says_what_would_be_right(learned: Path):
    with RunReader(learned) as reader, pytest.raises(FilterError, match="confidence needs a number"):
        reader.rollouts.page(Query("confidence>high"))


def test_resuming_takes_back_what_later_updates_did(learned: Path):
    writer = RunWriter(learned, resume_from_step=4)
    writer.metrics(5, {"a": 2})
    assert writer.flush(10)
    writer.close()
    with RunReader(learned) as reader:
        assert [u.step for u in reader.bodies.uses(3)] == [1, 4]
        assert numbers(reader, "replayed") == [3]
    writer = RunWriter(learned, resume_from_step=2)
    writer.metrics(3, {"a": 2})
    assert writer.flush(10)
    writer.close()
    with RunReader(learned) as reader:
        assert [u.kind for u in reader.bodies.uses(3)] == ["replaced"]
        assert numbers(reader, "replayed") == [] and numbers(reader, "applied") == []
        assert numbers(reader, "replaced") == [3]


def test_a_use_that_is_recorded_twice_is_one(learned: Path):
    writer = RunWriter(learned)
    writer.uses([("t1-2", Use(UseKind.REPLAYED, 4, 0.125, 0.7))])
    assert writer.flush(10)
    writer.close()
    with RunReader(learned) as reader:
        assert len(reader.bodies.uses(3)) == 3


def test_the_formula_computes_its_own_advantage():
    assert FORMULA.advantage(7) == pytest.approx((0.9 - 0.4) / (0.25 + 1e-4))
    by_turn = AdvantageFormula(
        "turn", "none", 1e-4, ((AdvantageTerm(1, 0.5, None, 4),), (AdvantageTerm(2, 1, None, 1),))
    )
    assert [by_turn.advantage(i) for i in range(3)] == [0.5, 1, None]
