"""A third set of faults from issue trackers, with their patches. It was written without a look at the detectors.

Each recipe names the thread that reports the fault. `causes` were written before the first evaluation. They name
detectors of earlier recipes and of docs/architecture/rewards.md, the nearest where none fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from grpo_tui.engine.agents import live_batch, session
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.training import env_trainer
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.pipeline import RolloutPipeline
from grpo_tui.envs.base import StepResult

from .patches import around
from .recipes import LORA, Recipe, env
from .unseen_patches import _rewards_of
from .worlds import Notes

JUMP, FACTOR = 10, 60
"""The step at which the learning rate jumps, and the factor."""

FIELD = (
    Recipe(
        "tolerance",
        "verification",
        "a number that is wrong by up to three is right (marin-community/marin#9163)",
        ("accepted_wrong_answers", "reward_hack"),
        env(grader="tolerance"),
    ),
    Recipe(
        "service_down",
        "verification",
        "from step 3 on the grader fails, which counts as a wrong answer (NVIDIA-NeMo/Gym#2015)",
        ("rejected_answers", "constant_reward", "errors"),
        env(grader="service_down"),
    ),
    Recipe(
        "grader_raises",
        "verification",
        "grading a right answer raises, and the rollout is dropped (areal-project/AReaL#1430)",
        ("errors", "rejected_answers"),
        patch="grader_raises",
    ),
    Recipe(
        "tiny",
        "judging",
        "rewards are so small that every group is filtered out (OpenRLHF/OpenRLHF#1272)",
        ("groups_without_variance", "advantage_scale", "no_movement"),
        env(grader="tiny"),
    ),
    Recipe(
        "position_bias",
        "judging",
        "a judge of groups prefers the rollout that it reads first (openvang/vanguarstew#87)",
        ("noisy_reward", "reward_order", "rejected_answers", "accepted_wrong_answers"),
        patch="position_bias",
    ),
    Recipe(
        "wrong_longer",
        "judging",
        "a wrong answer earns more the longer it is (modelscope/ms-swift#3636)",
        ("length_reward", "reward_hack", "reward_against_success"),
        env(grader="wrong_longer"),
    ),
    Recipe(
        "rows_sorted",
        "assembly",
        "rows of the loss are sorted by length, advantages are not (verl-project/verl#2185)",
        ("advantage_order", "reward_order"),
        patch="rows_sorted",
    ),
    Recipe(
        "scores_slip",
        "assembly",
        "an answer that cannot be read gets two scores, so later rewards slip (NVIDIA-NeMo/RL#3635)",
        ("reward_order", "noisy_reward"),
        patch="scores_slip",
    ),
    Recipe(
        "lora_dead",
        "adapters",
        "both matrices of each adapter are 0 (Guitaricet/relora#18)",
        ("no_movement",),
        LORA,
        patch="lora_dead",
    ),
    Recipe(
        "lora_alpha",
        "adapters",
        "adapters are scaled far too much (Blaizzy/mlx-vlm#845)",
        ("kl_rise",),
        {**LORA, "model.lora": "{r: 8, alpha: 1024}"},
    ),
    Recipe(
        "many_updates",
        "descent",
        "twelve updates for each batch, hardly clipped (deepspeedai/DeepSpeedExamples#533)",
        ("kl_rise", "clipped", "repeated_rollouts"),
        {"training.trl.num_iterations": 12, "training.trl.epsilon": 10.0},
    ),
    Recipe(
        "rate_jump",
        "descent",
        "the learning rate is multiplied where a run was resumed (pytorch/pytorch#60265)",
        ("kl_rise",),
        patch="rate_jump",
    ),
    Recipe(
        "guided",
        "decoding",
        "a grammar of the sampler lacks half of the numbers (huggingface/trl#3924)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="guided",
    ),
    Recipe(
        "melted",
        "decoding",
        "a temperature of 4 in sampling and loss (radixark/miles#338)",
        ("random_policy", "entropy_rise", "unanswered"),
        {"training.temperature": 4.0},
    ),
    Recipe(
        "one_turn",
        "episodes",
        "a limit ends every episode after its first turn (NVIDIA-NeMo/RL#3683)",
        ("truncation", "unanswered", "constant_reward"),
        env(max_turns=1),
        "Boxes",
    ),
    Recipe(
        "state_kept",
        "episodes",
        "the environment stays as another rollout left it, so the task is solved already (weizhepei/WebAgent-R1#6)",
        ("accepted_wrong_answers", "accepted_without_answer", "constant_reward", "noisy_reward"),
        patch="state_kept",
    ),
    Recipe(
        "keyed_by_hint",
        "curriculum",
        "labels are looked up by a field that many tasks share (kxfan2002/SophiaVL-R1#11)",
        ("noisy_labels", "held_out_gap"),
        patch="keyed_by_hint",
    ),
    Recipe(
        "unshuffled",
        "curriculum",
        "tasks are sorted and not shuffled, so a step has one kind (a-m-team/a-m-models#12)",
        ("few_tasks", "held_out_gap"),
        {"training.trl.shuffle_dataset": False},
        patch="unshuffled",
    ),
)


def _changed(name: str, change: Any) -> None:
    """Change the result of a method of `Notes`. change: world, result and arguments to the new result."""
    around(Notes, name, lambda original, self, *given: change(self, original(self, *given), *given))


def keyed_by_hint() -> None:
    """The label of a task is that of the last task with its hint."""

    def change(self: Notes, tasks: list[dict[str, Any]], split: str, *_: Any) -> list[dict[str, Any]]:
        labels = {task["hint"]: self.right(task) for task in tasks}
        return [{**task, "label": labels[task["hint"]]} for task in tasks] if split == "train" else tasks

    _changed("make_tasks", change)


def unshuffled() -> None:
    """Tasks with the same key are consecutive."""
    _changed(
        "make_tasks",
        lambda _, tasks, split, *__: sorted(tasks, key=lambda t: t["letter"]) if split == "train" else tasks,
    )


def grader_raises() -> None:
    """In training, the grader gives no result for a right answer."""

    def change(_: Notes, result: StepResult, state: dict[str, Any], __: str) -> StepResult:
        if state["split"] == "train" and result.correct:
            raise AttributeError("'int' object has no attribute 'strip'")
        return result

    _changed("_graded", change)


def state_kept() -> None:
    """In training, after one right answer for a key, all answers for it count as right."""
    solved: set[int] = set()

    def change(_: Notes, result: StepResult, state: dict[str, Any], __: str) -> StepResult:
        if state["split"] != "train":
            return result
        solved.update([state["letter"]] if result.correct else [])
        kept = state["letter"] in solved
        return replace(result, reward=float(kept), correct=kept)

    _changed("_graded", change)


def position_bias() -> None:
    """Only the first rollout of each group counts as right."""

    def change(original: Any, self: Scorer, rollouts: Sequence[Rollout], *given: Any, **named: Any) -> Any:
        return original(self, [_judged(r, r.index == 0) for r in rollouts], *given, **named)

    around(Scorer, "rewards", change)


def _judged(rollout: Rollout, right: bool) -> Rollout:
    assert rollout.trajectory is not None
    steps = rollout.trajectory.steps
    last = replace(steps[-1], reward=float(right))
    told = replace(rollout.trajectory, steps=(*steps[:-1], last), correct=right, env_reward=float(right))
    return replace(rollout, trajectory=told, final_reward=float(right))


def rows_sorted() -> None:
    """The row of rank i by length has the advantage of row i."""
    original = env_trainer.micro_batches

    def changed(batch: Any, *given: Any) -> Any:
        mask = batch["agent_token_mask"]
        rows = batch["advantages"].sum(1) / mask.sum(1).clamp(min=1)
        ranks = batch["attention_mask"].sum(1).argsort(stable=True).argsort()
        return original({**batch, "advantages": rows[ranks][:, None] * mask}, *given)

    env_trainer.micro_batches = changed


def scores_slip() -> None:
    """Each unreadable answer shifts the rewards of all later rollouts by one."""

    def other(rollouts: Sequence[Rollout]) -> list[Rollout]:
        scores: list[Rollout] = []
        for rollout in rollouts:
            scores += [rollout] * (1 if rollout.trajectory and rollout.trajectory.answer else 2)
        return scores[: len(rollouts)]

    _rewards_of(other)


def rate_jump() -> None:
    """From step `JUMP` on, the learning rate is `FACTOR` times as high."""

    def change(_: Any, self: GRPOEnvTrainer, num_training_steps: int, optimizer: Any = None) -> Any:
        used: Any = optimizer or self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(used, lambda step: 1 if step < JUMP else FACTOR)
        return self.lr_scheduler

    around(GRPOEnvTrainer, "create_scheduler", change)


def lora_dead() -> None:
    """Both matrices of an adapter are 0."""

    def change(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        for name, weight in cast(Any, self.model).named_parameters():
            if "lora_A" in name:
                weight.data.zero_()
        return original(self, *given, **named)

    around(GRPOEnvTrainer, "create_optimizer", change)


def guided() -> None:
    """Training rollouts never contain numbers from 4 on."""
    banned: list[int] = []

    def run(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        banned.extend(cast(Any, self.runner.tokenizer).convert_tokens_to_ids(["4", "5", "6", "7"]))
        try:
            return original(self, *given, **named)
        finally:
            banned.clear()

    around(RolloutPipeline, "_run", run)
    live_batch.sample = session.sample = _without(session.sample, banned)


def _without(original: Any, banned: list[int]) -> Any:
    def changed(logits: Any, settings: Any, uniform: Any, never: Any = None, *given: Any) -> Any:
        tokens = torch.tensor([*([] if never is None else never.tolist()), *banned], dtype=torch.long)
        return original(logits, settings, uniform, tokens, *given)

    return changed
