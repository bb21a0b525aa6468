"""Every number in the record equals what the orchestrator computed, read back through the record's own reader."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.configs.sections.rewards import RewardsConfig
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.rewards.metrics import flat
from grpo_tui.rewards.orchestrator import RewardOrchestrator

from .episodes import batches


@settings(max_examples=8, deadline=None)
@given(given_batches=st.lists(batches(), min_size=1, max_size=3))
def test_every_number_in_the_record_is_the_orchestrators(tmp_path_factory, given_batches):
    folder: Path = tmp_path_factory.mktemp("run")
    orchestrator = RewardOrchestrator(config=RewardsConfig())
    computed = []
    writer = RunWriter(folder)
    for number, (trajectories, correctness, embeddings) in enumerate(given_batches, start=1):
        result = orchestrator.calculate_total_reward(trajectories, correctness, embeddings=embeddings)
        computed.append(result)
        writer.metrics(number, result.metrics)
        writer.trajectories(
            number, [TrajectoryRecord(t, b) for t, b in zip(trajectories, result.breakdowns, strict=True)]
        )
    writer.close()

    with RunReader(folder) as reader:
        n = 0
        for number, result in enumerate(computed, start=1):
            for name, value in flat(result.metrics).items():
                assert dict(reader.metrics.points(name))[number] == value, name
            for row, breakdown in enumerate(result.breakdowns):
                n += 1
                recorded = reader.bodies.trajectory(n).breakdown
                assert recorded == breakdown
                assert recorded is not None
                dense = torch.tensor([s.total for s in recorded.steps], dtype=torch.float32)
                assert torch.equal(dense, result.total[row, : len(dense)])
        assert reader.rollouts.total() == n
