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


def test_four_environments_train_in_one_batch(project: Path, model: Path):
    from grpo_tui.envs.loading import make_env

    paths = {
        "grpo_tui.engine.demonstration.visual.VisualEnv": {"questions": ["colour", "text", "motion"]},
        "grpo_tui.envs.CalculatorEnv": {"operations": 3},
        "grpo_tui.envs.plugins.gym.ReasoningGymEnv": {"dataset": "gcd"},
        "grpo_tui.envs.plugins.gym.ReasoningGymEnv ": {"dataset": "chain_sum", "scratch_pad": True},
    }
    rows = [
        {"env_class_path": path.strip(), "env_config": config, "task_data": task}
        for path, config in paths.items()
        for task in make_env(path.strip(), config).make_tasks("train", 4, seed=0)
    ]
    (project / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = {"training__prompts_per_step": 8, "training__num_generations": 2}
    recorded = train(project, model, "mixed", data__source="rows.jsonl", **sizes)
    assert {row["env"] for row in recorded} == {"visual", "calculator", "reasoning-gym"}
    assert not any(row["stop_reason"] == "error" for row in recorded)
    assert len([row for row in recorded if row["split"] == "train"]) == 3 * 8 * 2
    assert any("NOTE(text), ANSWER(text)" in row["prompt"] for row in recorded if row["env"] == "reasoning-gym")


TROUBLE = """
import time

from grpo_tui.envs import MultiTurnEnv, StepResult


class TroubleEnv(MultiTurnEnv):
    name = "trouble"

    def make_tasks(self, split, n, seed):
        return [{"how": ("raise", "hang", "rubbish", "nothing")[k % 4], "n": k} for k in range(n)]

    def reset(self, task):
        return dict(task), [{"role": "user", "content": f"{task['how']} {task['n']}"}]

    def step(self, state, call):
        if state["how"] == "raise":
            raise RuntimeError("the sandbox is gone")
        if state["how"] == "hang":
            time.sleep(60)
        if state["how"] == "rubbish":
            return {"observation": "x"}
        return StepResult("", reward=float(len(call.text) % 2), done=True, answer="x", correct=True)
"""


def test_a_broken_environment_costs_its_own_rollouts_and_the_record_says_why(project: Path, model: Path):
    (project / "trouble.py").write_text(TROUBLE)
    rows = train(
        project,
        model,
        "trouble",
        environment__class_path="trouble.py:TroubleEnv",
        environment__train_tasks=12,
        environment__eval_tasks=0,
        environment__turn_timeout_s=3.0,
        training__prompts_per_step=4,
        training__num_generations=2,
    )
    reasons: dict[str, set[str]] = {}
    for row in rows:
        reasons.setdefault(row["prompt"].split()[0], set()).add(row["stop_reason"])
    # the policy of the last kind writes until its turn is full
    wanted = {"raise": {"error"}, "hang": {"timeout"}, "rubbish": {"error"}, "nothing": {"turn_limit"}}
    assert len(rows) == 3 * 4 * 2 and reasons == {k: v for k, v in wanted.items() if k in reasons} and len(reasons) >= 3
    raised = next(row["id"] for row in rows if row["prompt"].startswith("raise"))
    shown = json.loads(grpo_tui(project, "inspect", "trouble", "--trajectory", raised, "--json").stdout)
    assert shown["trajectory"]["error"] == "step 1: RuntimeError: the sandbox is gone"
    log = "".join(p.read_text() for p in (project / "runs" / "trouble" / "logs").glob("*.log"))
    assert "the sandbox is gone" in log and "Traceback" in log
