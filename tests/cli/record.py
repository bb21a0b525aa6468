"""A small recorded run, written by the product's own writer, with things in it that a terminal must not obey."""

from __future__ import annotations

import time
from pathlib import Path

from grpo_tui.configs.schema import RunConfig
from grpo_tui.configs.writing import to_yaml
from grpo_tui.engine.runs.durable import write_json
from grpo_tui.engine.runs.types import (
    ComponentValue,
    Penalty,
    RewardBreakdown,
    Step,
    StepContext,
    StepReward,
    Trajectory,
    TrajectoryRecord,
)
from grpo_tui.engine.runs.write.writer import RunWriter

HOSTILE = "\x1b]0;owned\x07\x1b[2J[/red][link=x]\u202eevil\u200b"
PENALTY = Penalty(
    rule="missing_prerequisite",
    amount=-0.5,
    step=1,
    saw={"mask": "7", "masks": []},
    limit="a mask that exists",
    why="GET_PROPERTIES(mask=7): no mask 7 exists here.",
    right="Call SEGMENT_OBJECT_AT first.",
)


def trajectory(index: int) -> TrajectoryRecord:
    """Two turns; every third trajectory is penalised in its second."""
    penalised = index % 3 == 0
    steps = (
        Step(
            0,
            f"think {HOSTILE}",
            thought="think",
            action="READ_TEXT",
            arguments={"box": [1, 2, 3, 4]},
            observation="SALE",
        ),
        Step(
            1,
            '{"name": "GET_PROPERTIES"}',
            action="GET_PROPERTIES" if penalised else "ANSWER",
            arguments={"mask": "7"} if penalised else {"text": "red"},
            observation=HOSTILE,
            context=StepContext("image", {"width": 64, "height": 64}),
        ),
    )
    value = ComponentValue(raw=0.5, normalized=0.25, weight=2.0, contribution=0.5)
    penalty = ComponentValue(raw=-0.5, normalized=-0.5, weight=1.0, contribution=-0.5)
    rewards = (
        StepReward(0, {"curiosity": value}, total=0.5),
        StepReward(1, {"penalty": penalty}, (PENALTY,), -0.5) if penalised else StepReward(1, {}, total=0.0),
    )
    total = 0.0 if penalised else 0.5
    return TrajectoryRecord(
        Trajectory(
            id=f"t{index}",
            env="visual",
            prompt_id=f"p{index // 4}",
            group=f"g{index // 4}",
            rollout=index % 4,
            prompt="What colour is the object at (3, 4)?",
            steps=steps,
            answer="red",
            expected="red",
            correct=not penalised,
        ),
        RewardBreakdown(f"t{index}", rewards, total),
        advantage=0.1 * index,
        step_advantages=(0.1, 0.2),
    )


def record(runs: Path, run_id: str = "1120-0949-test", count: int = 12) -> Path:
    """Write a finished run with `count` trajectories, four a step."""
    folder = runs / run_id
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(RunConfig()))
    facts = {
        "id": run_id,
        "mode": "rft",
        "environment": "grpo_tui.engine.demonstration.visual.VisualEnv",
        "model": "builtin:tiny",
    }
    write_json(folder / "run.json", {**facts, "created": time.time(), "total_steps": count // 4})
    writer = RunWriter(folder)
    writer.status("running", step=0, total_steps=count // 4)
    for step in range(1, count // 4 + 1):
        writer.trajectories(step, [trajectory(4 * (step - 1) + i) for i in range(4)])
        writer.metrics(step, {"rewards/total/mean": 0.1 * step, "success/train": 0.5, "kl/mean": float("nan")})
    writer.event(
        "alert", f"reward rises {HOSTILE}", step=2, detector="share", value=0.6, threshold=0.5, trajectories=["t0"]
    )
    writer.event("eval", "greedy 0.75", step=3, split="eval", greedy=0.75)
    writer.status("finished", step=count // 4, total_steps=count // 4, exit_code=0)
    writer.close()
    return folder
