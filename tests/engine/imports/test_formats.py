"""Each writer's real files, against numbers read from them by other means."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.imports.containers import DumpError
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.runs.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord, TrajectoryRow

PEERS = Path(__file__).parent / "peer_dumps"
Open = Callable[[Path | str], RunReader]


def lines(folder: str, pattern: str = "**/*.jsonl") -> list[dict[str, Any]]:
    return [json.loads(text) for path in sorted(PEERS.joinpath(folder).glob(pattern)) for text in path.open()]


def same(found: Iterable[float | None], stated: Iterable[float | None]) -> bool:
    """Equal as collections, with NaN equal to NaN and to nothing."""

    def key(value: float | None) -> str:
        return "nan" if value is None or math.isnan(value) else f"{value:.5f}"

    return Counter(map(key, found)) == Counter(map(key, stated))


def rows(reader: RunReader) -> list[TrajectoryRow]:
    return reader.rollouts.page(limit=1000)


def components(record: TrajectoryRecord) -> dict[str, float | None]:
    if record.breakdown is None:
        return {}
    return {name: value.raw for name, value in record.breakdown.steps[-1].components.items()}


def test_trl(opened: Open):
    from pyarrow import parquet

    stated = [r for p in sorted(PEERS.glob("trl/completions/*")) for r in parquet.read_table(p).to_pylist()]
    reader = opened("trl")
    found = rows(reader)
    assert len(found) == len(stated) == 24
    assert [r.step for r in found] == [r["step"] for r in stated]
    assert same([r.advantage for r in found], [r["advantage"] for r in stated])
    assert all(r.reward is None for r in found), "TRL writes no total: none is invented"
    assert len({r.group for r in found}) == 6
    for name in ("correct", "format", "length"):
        assert same([r.extra.get(f"component.{name}") for r in found], [r[name] for r in stated])
    assert [r.extra.get("extracted") for r in found] == [r["extracted"] for r in stated]
    first = reader.bodies.trajectory(1)
    assert [s.action for s in first.trajectory.steps] == ["segment_object_at", "get_properties", None]
    assert first.trajectory.steps[0].calls[0].arguments == {"x": 13, "y": 30}, "arrow's nulls are no arguments"
    assert first.trajectory.steps[0].calls[0].result == "mask 1: 210 pixels"
    broken = reader.bodies.trajectory(3).trajectory.steps[0]
    assert broken.parse_error and broken.calls[0].problem
    assert "reward" in first.unknown and "weight" in first.unknown
    assert dict(reader.metrics.points("rewards/correct/mean")) == {1: 0.25, 2: 0.6666666865348816, 3: 0.625}


@pytest.mark.parametrize(("folder", "split"), [("verl/rollout", "train"), ("verl/rollout_v0", "train")])
def test_verl(opened: Open, folder: str, split: str):
    stated = lines(folder)
    reader = opened(folder)
    found = rows(reader)
    assert len(found) == len(stated) == 24
    assert same([r.reward for r in found], [s["score"] for s in stated])
    assert Counter(r.step for r in found) == Counter(s["step"] for s in stated)
    assert Counter(Counter(r.group for r in found).values()) == {4: 6}
    assert all(r.advantage is None and r.tokens is None for r in found)
    assert [r.turns for r in found[:4]] == [3, 1, 3, 1]
    if folder.endswith("v0"):
        assert [r.correct for r in found] == [s["acc"] for s in stated]
        assert same([r.extra.get("component.format") for r in found], [s["format"] for s in stated])


def test_the_total_is_checked_where_weights_are_known(opened: Open):
    record = opened("verl/rollout_v0").bodies.trajectory(1)
    assert all(v.weight is None and v.contribution is None for v in record.breakdown.steps[-1].components.values())  # type: ignore[union-attr]
    assert "weight" in record.unknown and "advantage" in record.unknown


@pytest.mark.parametrize(
    ("path", "count", "rewards"),
    [
        ("generic/openai-messages.jsonl", 24, True),
        ("generic/openai-responses.jsonl", 8, True),
        ("generic/prompt-completion.jsonl", 24, True),
        ("generic/groups.jsonl", 24, True),
        ("generic/sharegpt.json", 8, False),
        ("generic/ms-swift/completions.jsonl", 24, False),
    ],
)
def test_generic(opened: Open, path: str, count: int, rewards: bool):
    found = rows(opened(path))
    assert len(found) == count
    assert [r.turns for r in found[:3]] == [3, 1, 3]
    assert found[0].actions == ("segment_object_at", "get_properties", "(text)")
    assert found[0].reward == (1.0970000000000002 if rewards else None)
    assert len({r.group for r in found}) == (6 if found[0].step is not None else 2)


def test_a_pickle_is_refused_in_one_sentence():
    with pytest.raises(DumpError, match="pickle"):
        open_dump(PEERS / "slime", whole=True)
