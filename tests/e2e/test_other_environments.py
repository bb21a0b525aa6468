"""Tasks that nobody here wrote, and several environments in one batch, trained from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from .world import grpo_tui

SETTINGS = {
    "training.max_steps": 3,
    "training.prompts_per_step": 4,
    "training.num_generations": 4,
    "training.max_turn_tokens": 12,
    "environment.eval_tasks": 4,
    "model.sft_adapters": "null",
    "model.device": "cpu",
}


def train(project: Path, model: Path, run_id: str, **settings: object) -> list[dict]:
    """Train for three steps; the recorded rollouts."""
    arguments = ["train", "--run-id", run_id, "--set", f"model.base={model}"]
    for key, value in {**SETTINGS, **{k.replace("__", "."): v for k, v in settings.items()}}.items():
        arguments += ["--set", f"{key}={value}"]
    answer = grpo_tui(project, *arguments)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "step 3/3" in answer.stdout
    rows = grpo_tui(project, "inspect", run_id, "--filter", "step>=0", "--json").stdout.splitlines()
    return [json.loads(row) for row in rows]


def test_reasoning_gym_trains_from_the_command_line(project: Path, model: Path):
    config = json.dumps({"dataset": "chain_sum", "options": {"max_terms": 2, "max_digits": 1}, "scratch_pad": True})
    rows = train(
        project,
        model,
        "gym",
        environment__class_path="grpo_tui.envs.gym.ReasoningGymEnv",
        environment__config=config,
        environment__train_tasks=16,
    )
    assert {row["env"] for row in rows} == {"reasoning-gym"}
    assert len([row for row in rows if row["split"] == "train"]) == 3 * 4 * 4
    assert all("NOTE(text), ANSWER(text)" in row["prompt"] for row in rows)


def test_four_environments_train_in_one_batch(project: Path, model: Path):
    from grpo_tui.envs.loading import make_env

    paths = {
        "grpo_tui.envs.visual.VisualEnv": {"questions": ["colour", "text", "motion"]},
        "grpo_tui.envs.CalculatorEnv": {"operations": 3},
        "grpo_tui.envs.gym.ReasoningGymEnv": {"dataset": "gcd"},
        "grpo_tui.envs.gym.ReasoningGymEnv ": {"dataset": "chain_sum", "scratch_pad": True},
    }
    rows = [
        {"env_class_path": path.strip(), "env_config": config, "task_data": task}
        for path, config in paths.items()
        for task in make_env(path.strip(), config).make_tasks("train", 4, seed=0)
    ]
    (project / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recorded = train(project, model, "mixed", environment__train_data="rows.jsonl", training__prompts_per_step=8)
    assert {row["env"] for row in recorded} == {"visual", "calculator", "reasoning-gym"}
    assert not any(row["stop_reason"] == "error" for row in recorded)
