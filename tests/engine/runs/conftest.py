"""Records to write and runs to read, small and of every kind."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write import sink
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.tools import Argument, ToolSpec
from grpo_tui.envs.trajectory import Step, StepContext, TokenArrays, Trajectory
from grpo_tui.rewards.breakdown import ComponentValue, Penalty, RewardBreakdown, StepReward

TOOLS = (
    ToolSpec("SEGMENT_OBJECT_AT", "", (Argument("x", "integer"), Argument("y", "integer")), produces="mask"),
    ToolSpec("GET_PROPERTIES", "", (Argument("mask", "string", refers_to="mask"),)),
    ToolSpec("ANSWER", "", (Argument("text", "string"),), final=True),
)
MakeRecord = Callable[..., TrajectoryRecord]


def make(step: int, index: int, rng: random.Random | None = None, **changes: object) -> TrajectoryRecord:
    rng = rng or random.Random(step * 1009 + index)
    length = rng.randrange(5, 40)
    mask = np.arange(length) % 3 != 0
    penalties = tuple(
        Penalty(rule, -0.1, 0, {"mask": "7"}, "an existing mask", f"no mask 7 exists: {rule}", "Segment first.")
        for rule in ("missing_prerequisite", "out_of_bounds", "repeated_call")
        if rng.random() < 0.15
    )
    actions = [rng.choice(("SEGMENT_OBJECT_AT", "GET_PROPERTIES", None)) for _ in range(rng.randrange(0, 4))]
    steps = tuple(
        Step(
            index=i,
            text=f"I look {rng.choice(('left', 'right', 'up'))} and call {action}",
            action=action,
            arguments={"x": i},
            observation=rng.choice(("mask 1 made", "a red circle", "error: no such mask")),
            context=StepContext("image", {"width": 8}, {"mask": ("1",)}),
            error="it broke" if rng.random() < 0.05 else None,
            token_span=(i, i + 2),
        )
        for i, action in enumerate([*actions, "ANSWER"])
    )
    total = round(rng.choice((0.0, 1.0, rng.gauss(0, 1))), 6)
    value = ComponentValue(raw=total, normalized=total, weight=1.0, contribution=total)
    id_ = f"t{step}-{index}"
    trajectory = Trajectory(
        id=id_,
        env=rng.choice(("grpo_tui.engine.demonstration.visual.VisualEnv", "my.Env")),
        prompt_id=f"p{index // 4}",
        group=f"g{step}-{index // 4}",
        rollout=index % 4,
        prompt=f"Where is the {('red', 'blue')[index // 4 % 2]} circle of task {index // 4}?",
        steps=steps,
        task={"n": index},
        tools=TOOLS,
        answer=rng.choice(("left", "right", None)),
        correct=rng.choice((True, False, None)),
        stop_reason=rng.choice(("answer", "max_turns")),
        images=("images/a.png",),
    )
    record = TrajectoryRecord(
        trajectory=trajectory,
        breakdown=RewardBreakdown(id_, (StepReward(0, {"task": value}, penalties, total),), total),
        advantage=rng.choice((None, total - 0.5)),
        step_advantages=(0.5, -0.5),
        tokens=TokenArrays(
            np.arange(length, dtype=np.int32) * 7,
            mask,
            np.where(mask, -0.25 * np.arange(length), 0).astype(np.float32),
            (np.arange(length) // 5 - 1).astype(np.int16),
            np.where(mask, total, 0).astype(np.float32) if rng.random() < 0.5 else None,
            {n: np.full(length, 0.5, np.float32) for n in ("entropy", "trainer") if rng.random() < 0.5},
        ),
        policy_version=step,
        split=rng.choice(("train", "train", "eval")),
    )
    for name, change in changes.items():
        object.__setattr__(record if name in TrajectoryRecord.__dataclass_fields__ else trajectory, name, change)
    return record


@pytest.fixture(scope="session")
def make_record() -> MakeRecord:
    return make


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def writer(run_dir: Path) -> Iterator[RunWriter]:
    made = RunWriter(run_dir)
    yield made
    made.close()


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The sentences about trouble with the record that are logged."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    sink.log.addHandler(handler)
    yield messages
    sink.log.removeHandler(handler)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, TrajectoryRecord]]]:
    """A run of 600 trajectories in 10 steps, and what was given to the writer, in order."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    made = RunWriter(folder)
    given: list[tuple[int, TrajectoryRecord]] = []
    for step in range(1, 11):
        records = [make(step, i) for i in range(60)]
        given.extend((step, r) for r in records)
        made.trajectories(step, records)
        made.metrics(step, {"success/train": step / 10, "behavior/action_distribution": {"ANSWER": 0.25}})
    assert made.flush(30)
    made.close()
    return folder, given


@pytest.fixture(scope="module")
def reader(recorded: tuple[Path, list[tuple[int, TrajectoryRecord]]]) -> Iterator[RunReader]:
    with RunReader(recorded[0]) as opened:
        yield opened
