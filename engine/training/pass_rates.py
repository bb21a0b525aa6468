"""`data.sampler: difficulty` for a training: whose pass rates it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import cast

from ...configs.schema import RunConfig
from ...envs.base import Env, env_name
from ...envs.seeds import task_id
from ...envs.trajectory import StopReason
from ..record.step_recorder import StepRecorder
from ..rollouts.difficulty import Difficulty, Outcome, PassRatesError
from ..rollouts.runner import Row
from ..runs.read.reader import RunReader
from ..runs.search.query import Query
from ..runs.types import TrajectoryRow
from .env_trainer import GRPOEnvTrainer
from .resumable import StatePart

FAILED = (StopReason.ERROR, StopReason.TIMEOUT)
PAGE = 500


def draw_by_difficulty(
    trainer: GRPOEnvTrainer, rows: Sequence[Row], config: RunConfig, run_dir: Path, recorder: StepRecorder
) -> None:
    """Let the trainer draw prompts by their pass rates, which begin with those of a run. Raises PassRatesError."""
    environments = {row.key: cast(Env, trainer.runner.environment(row)) for row in rows}
    difficulty = Difficulty([task_id(env_name(environments[row.key]), row.task_data) for row in rows], config.seed)
    if (run := config.data.pass_rates) is not None:
        folder = Path(run).expanduser()
        known = difficulty.begin(run, recorded_outcomes(folder if folder.is_dir() else run_dir.parent / run))
        recorder.event("phase", f"began with the pass rates of {run}, which has {known:.0%} of the prompts")
    trainer.pipeline.difficulty = difficulty
    trainer.state_parts.append(StatePart(difficulty.save, difficulty.load))


def recorded_outcomes(run: Path) -> list[list[Outcome]]:
    """Return the outcomes of each step of a recorded training, in order. Raises PassRatesError without any."""
    found: list[TrajectoryRow] = []
    read = 0
    with RunReader(run) as reader:
        while rows := reader.rollouts.page(Query(filter="split:train", sort="step"), offset=read, limit=PAGE):
            read += len(rows)
            found += [r for r in rows if r.correct is not None and r.stop_reason not in FAILED]
    if not found:
        raise PassRatesError(f"data.pass_rates: {run} has no rollouts that are known to be right or wrong")
    return [[(r.prompt_id, r.correct is True) for r in rows] for _, rows in groupby(found, lambda r: r.step)]
