"""The record says of each rollout what it was used for: trained on, filtered out, replaced, and replayed later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run

from .runs import make_run

STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("uses")
    replay = {"min_group_std": 0.08}  # some groups differ by less
    folder = make_run(place / "run", place / "base", max_steps=STEPS, prompts_per_step=3, eval_tasks=0, replay=replay)
    assert run(folder) == 0
    return folder


def test_the_batch_of_every_step_can_be_seen_in_the_record(folder):
    trained: dict[int, int] = {}
    with RunReader(folder) as reader:
        rows = [row for row in reader.rollouts.page(limit=1000) if row.split == "train"]
        assert {mark for row in rows for mark in row.uses or ()} >= {"trained", "replaced", "replayed"}
        for row in rows:
            record, uses = reader.bodies.trajectory(row.n), reader.bodies.uses(row.n)
            own = [u for u in uses if u.step == row.step]
            assert len(own) == 1 and own[0].kind in ("trained", "filtered", "replaced")
            if own[0].kind != "trained":
                assert record.advantage == 0.0  # what was not trained on shows no advantage
            for use in uses:
                if use.kind == "replayed":
                    assert row.step is not None and use.step > row.step
                    assert use.weight is not None and 0 < use.weight <= 1
                    assert use.advantage == pytest.approx(record.advantage)
                if use.kind in ("trained", "replayed"):
                    trained[use.step] = trained.get(use.step, 0) + 1
            if own[0].kind == "trained":
                tokens = reader.bodies.tokens(row.n)
                assert tokens is not None and tokens.advantages is not None
                mask = np.array(tokens.agent_mask, bool)
                assert np.mean(np.array(tokens.advantages)[mask]) == pytest.approx(own[0].advantage, abs=1e-6)
        filtered = {s: sum(r.step == s and "filtered" in (r.uses or ()) for r in rows) for s in range(1, STEPS + 1)}
        shares = dict(reader.metrics.points("grpo/replay_share"))
    for step in range(1, STEPS + 1):
        assert trained.get(step, 0) + filtered[step] == 12  # the whole batch
        replayed = sum(u == step for u in _replayed_at(folder))
        assert shares[step] == pytest.approx(replayed / 12)


def _replayed_at(folder: Path) -> list[int]:
    with RunReader(folder) as reader:
        return [
            u.step
            for row in reader.rollouts.page(limit=1000)
            for u in reader.bodies.uses(row.n)
            if u.kind == "replayed"
        ]
