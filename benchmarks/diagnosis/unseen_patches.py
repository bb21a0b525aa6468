"""Patches of the families held out last (see `recipes.py`), as functions like those in `patches.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.pipeline import RolloutPipeline

from .patches import advantages, around, made


def _rewards_of(other: Callable[[Sequence[Rollout]], Sequence[Rollout]]) -> None:
    """Give each rollout the rewards of another one. Verdicts do not change."""

    def change(original: Any, self: Scorer, *arguments: Any, **named: Any) -> Any:
        rollouts, metrics = original(self, *arguments, **named)
        return [
            replace(
                r,
                turn_rewards=o.turn_rewards,
                breakdown=o.breakdown and replace(o.breakdown, trajectory_id=r.trajectory.id),
            )
            for r, o in zip(rollouts, other(rollouts), strict=True)
        ], metrics

    around(Scorer, "rewards", change)


def row_late() -> None:
    """Each row has the rewards of the previous row."""
    _rewards_of(lambda rollouts: [rollouts[i - 1] for i in range(len(rollouts))])


def step_late() -> None:
    """Each step has the rewards of the previous step."""
    before: list[Rollout] = []

    def other(rollouts: Sequence[Rollout]) -> list[Rollout]:
        late = before[: len(rollouts)] or list(rollouts)
        before[:] = rollouts
        return late

    _rewards_of(other)


def small_advantages() -> None:
    """Advantages are divided by a thousand."""
    advantages(lambda r: r.advantages / np.float32(1000))


def stop_inside() -> None:
    """A word of the answer ends the turn."""

    def change(original: Any, self: ChatBridge, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.stop_ids = (*self.stop_ids, int(cast(Any, self.tokenizer).convert_tokens_to_ids("answer")))

    around(ChatBridge, "__init__", change)


def frozen() -> None:
    """The optimiser holds copies of the weights."""

    def change(original: Any, self: GRPOEnvTrainer, *arguments: Any, **named: Any) -> Any:
        optimizer = original(self, *arguments, **named)
        for group in optimizer.param_groups:
            group["params"] = [torch.nn.Parameter(p.detach().clone()) for p in group["params"]]
        return optimizer

    around(GRPOEnvTrainer, "create_optimizer", change)


def schedule_over() -> None:
    """The learning rate is 0 after two steps."""

    def change(original: Any, self: GRPOEnvTrainer, num_training_steps: int, optimizer: Any = None) -> Any:
        used: Any = optimizer or self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(used, lambda step: float(step < 2))
        return self.lr_scheduler

    around(GRPOEnvTrainer, "create_scheduler", change)


def dropout() -> None:
    """The loss scores with dropout after the first step, in which the engine would reject a different policy."""

    def change(original: Any, self: GRPOEnvTrainer, model: Any, *arguments: Any, **named: Any) -> Any:
        late = self.state.global_step > 0
        layers = [m for name, m in self.policy.base.named_modules() if late and name.endswith("mlp")]
        hooks = [m.register_forward_hook(lambda _m, _i, out: torch.dropout(out, 0.5, True)) for m in layers]
        try:
            return original(self, model, *arguments, **named)
        finally:
            for hook in hooks:
                hook.remove()

    around(GRPOEnvTrainer, "compute_loss", change)


def _sampled(**settings: float) -> None:
    """Sample with settings that differ from those of the log-probs."""

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        with cast(Any, self.runner.agent).settings(**settings):
            return [replace(r, logprobs=None) for r in original(self, *arguments, **named)]

    around(RolloutPipeline, "_run", change)


def hot() -> None:
    """Sampling at temperature 2, scoring at 1."""
    _sampled(temperature=2.0)


def nucleus() -> None:
    """Sampling only from the likeliest 30 %, scoring over all."""
    _sampled(top_p=0.3)


def penalised() -> None:
    """Sampling with a repetition penalty, scoring without it."""
    _sampled(repetition_penalty=3.0)


def same_batch() -> None:
    """Every step trains on the rollouts of the first one."""
    first: list[Rollout] = []

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        rollouts = original(self, *arguments, **named)
        if not first:
            first.extend(rollouts)
        return list(first[: len(rollouts)])

    around(RolloutPipeline, "_run", change)


def copies() -> None:
    """The rollouts of a group are copies of one."""

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        rollouts, size = original(self, *arguments, **named), self.scorer.group_size
        same = [rollouts[i - i % size] for i in range(len(rollouts))]
        return [
            replace(s, id=r.id, trajectory=s.trajectory and replace(s.trajectory, id=r.trajectory.id))
            for r, s in zip(rollouts, same, strict=True)
        ]

    around(RolloutPipeline, "_run", change)


def padding() -> None:
    """Rollouts are padded, and the loss counts the padding."""

    def padded(self: RolloutPipeline, rollout: Rollout) -> Rollout:
        n, pad = 40 - len(rollout), cast(Any, self.runner.tokenizer).pad_token_id
        longer = {"token_ids": pad, "agent_mask": True, "turn_ids": int(rollout.turn_ids[-1]), "rewards": 0.0}
        arrays = {name: getattr(rollout, name) for name in longer}
        return replace(
            rollout,
            **{name: np.append(a, np.full(max(n, 0), longer[name], a.dtype)) for name, a in arrays.items()},
        )

    made(padded)


def answer_untrained() -> None:
    """The loss leaves out the last tokens of the agent, which hold the answer."""

    def masked(_: RolloutPipeline, rollout: Rollout) -> Rollout:
        mask = rollout.agent_mask.copy()
        mask[np.flatnonzero(mask)[-2:]] = False
        return replace(rollout, agent_mask=mask)

    made(masked)


def prompt_lost() -> None:
    """The trainer reads other prompts than the sampler."""

    def blank(self: RolloutPipeline, rollout: Rollout) -> Rollout:
        ids, pad = rollout.token_ids.copy(), cast(Any, self.runner.tokenizer).pad_token_id
        ids[: int(np.argmax(rollout.agent_mask))] = pad
        return replace(rollout, token_ids=ids)

    made(blank)


def wrong_reference() -> None:
    """The log-probs of the reference belong to other tokens."""

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        return [
            r if r.ref_logprobs is None else replace(r, ref_logprobs=np.where(r.agent_mask, np.float32(-3), 0))
            for r in original(self, *arguments, **named)
        ]

    around(RolloutPipeline, "complete", change)
