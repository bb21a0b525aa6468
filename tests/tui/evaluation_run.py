"""A finished evaluation, made through the project's own writer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from grpo_tui.engine.evaluation.statistics import rate_interval
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.rewards.breakdown import ComponentValue, RewardBreakdown, StepReward


def make_evaluation(
    runs: Path,
    name: str,
    subject: str,
    right: Sequence[Sequence[bool]],
    *,
    created: float = 1_763_600_000.0,
    seed: int = 0,
) -> Path:
    """right: the outcomes of each task's samples."""
    folder = runs / name
    folder.mkdir(parents=True)
    samples = len(right[0])
    (folder / "config.yaml").write_text(
        f"mode: eval\nseed: {seed}\n"
        f"evaluation: {{subject: {json.dumps(subject)}, samples: {samples}, temperature: 1.0}}\n"
    )
    facts = {"id": name, "mode": "eval", "environment": "visual", "model": "tiny", "created": created, "name": ""}
    facts |= {"facts": {"subject": subject}}
    (folder / "run.json").write_text(json.dumps(facts))
    writer = RunWriter(folder)
    for task, outcomes in enumerate(right):
        records = []
        for sample, correct in enumerate(outcomes):
            id_ = f"{name}-{task}-{sample}"
            text = "right" if correct else "wrong"
            step = Step(0, text, action="ANSWER", arguments={"text": text})
            trajectory = Trajectory(
                id_, "visual", f"task-{task}", str(task), sample, f"Question {task}?", (step,), answer=text,
                correct=correct, env_reward=float(correct), extra={"task_number": task},
            )  # fmt: skip
            value = ComponentValue(float(correct), float(correct), 1.0, float(correct))
            reward = StepReward(0, {"task": value}, (), float(correct))
            records.append(
                TrajectoryRecord(
                    trajectory, RewardBreakdown(id_, (reward,), float(correct)), split="eval", token_count=9
                )
            )
        writer.trajectories(0, records)
    success = rate_interval([sum(outcomes) / samples for outcomes in right])
    names = ("success/eval_sampled", "success/eval_low", "success/eval_high", "rewards/total/mean")
    values = (success.estimate, success.low, success.high, success.estimate)
    writer.metrics(0, dict(zip(names, values, strict=True)))
    writer.flush(30)
    writer.status("finished", step=0)
    writer.close()
    return folder
