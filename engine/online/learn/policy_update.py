"""One update of the policy, in memory.

Total_Loss = RL_Loss + current_beta * KL_Penalty. RL_Loss is PPO's clipped surrogate over the agent's tokens. Its
advantage is the reward-to-go of the reward tensor minus a running baseline. KL_Penalty is the exact KL per token
between the current policy and the policy that answered.

Three independent guards bound the effect of one task on the served model: KL (a step is shortened to the target, and an
update that ends too far from the answering policy is reverted), the clipped gradient and step, and the EMA.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ....configs.sections.online import OnlineConfig
from ...policy.kl import BetaChange, BetaController, kl_directions
from ...policy.prepared import forward_agent_tokens
from ...policy.token_scores import DENSE_LOGITS
from ...policy.unwrap import vocabulary_of
from ...policy.vision.processor import ModelImage
from ...training.losses import clipped_surrogate
from ..store.images import ImageFolder
from ..store.snapshots import check_fit, weights_in_place
from ..store.update_task import Experience, TaskError, UpdateTask
from .influence import Influence, RatingBaseline, RobustBaseline

CLIP = 0.2
"""The ratio of the policy gradient is clipped to 1 ± this (PPO's default)."""
NO_SIGNAL = 1e-9
"""Advantages up to this size carry no signal."""
_STATEFUL = ("beta", "baseline", "ratings", "influence")
"""The attributes of `PolicyUpdater` that have their own state."""
_torch: Any = torch
"""Torch, untyped: its stubs lack the fused operations on lists of tensors."""


@dataclass(frozen=True)
class UpdateReport:
    """The measurements of one update. KLs are in nats per token over the agent tokens of this experience.

    kl: KL(policy ‖ original) after the update, which beta follows. kl_before: the same in the loss. kl_forward:
    KL(original ‖ policy) after the update. kl_start: KL(policy ‖ the run's first policy) after the update. clipped: the
    gradient or step was cut to its limit, or the step to the KL target. advantages: the mean over each candidate's
    agent tokens. rejected: the reason why the policy did not move. weight: the task's weight (`influence.py`).
    """

    update: int
    loss: float
    rl_loss: float
    kl: float
    kl_before: float
    kl_forward: float
    mean_kl: float
    beta: float
    learning_rate: float
    grad_norm: float
    clipped_grad_norm: float
    step_norm: float
    clip_fraction: float
    mean_return: float
    baseline: float
    advantage: float
    tokens: int
    clipped: bool = False
    advantages: tuple[float, ...] = ()
    rejected: str | None = None
    weight: float = 1.0
    kl_start: float = 0.0


class PolicyUpdater:
    """The live model with its optimiser, EMA, beta and running baselines.

    `model` is trained in place and in eval mode: without dropout, the ratio to the answering policy is exact. Only
    parameters with `requires_grad` are trained, smoothed and published.
    """

    def __init__(self, model: nn.Module, config: OnlineConfig, *, images: ImageFolder | None = None) -> None:
        self.model = model.eval()
        self.images = images
        self.config = config
        self.vocabulary = vocabulary_of(model)
        self.parameters: dict[str, nn.Parameter] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("the model has no trainable parameter: load it with its adapters trainable")
        self._live = [p.data for p in self.parameters.values()]
        self.ema = {n: p.detach().clone() for n, p in self.parameters.items()}
        """The smoothed parameters, by name. These are published."""
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=config.lr_adaptive_min, weight_decay=0.0)
        self.beta = BetaController(**config.kl.model_dump(exclude={"limit"}))
        self.baseline = RobustBaseline()
        self.ratings = RatingBaseline()
        self.influence = Influence(config.source_share)
        self._start = {n: p.detach().clone() for n, p in self.parameters.items()}
        """The policy as loaded, to measure how far learning has moved it."""
        self.validated = {n: p.detach().clone() for n, p in self.parameters.items()}
        """The last validated parameters. Initially those that the run started from."""
        self.update = 0

    def mark_validated(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the last validated parameters. Raises ValueError for parameters of another model."""
        self._copy(tensors, self.validated)

    def go_back(self) -> None:
        """Reset to the last validated parameters, with a fresh optimiser."""
        self.load_weights(self.validated)
        self.optimizer.state.clear()

    def apply(self, task: UpdateTask) -> tuple[UpdateReport, BetaChange | None]:
        """Make one update. For a harmful task, or a non-finite loss or gradient, raise TaskError and change nothing."""
        task.check(max_learning_rate=self.config.max_learning_rate, vocabulary=self.vocabulary)
        self._seen(task.experience, slice(None))  # raises for a missing image before anything changes
        weight = self.influence.weigh(
            str(task.facts.get("prompt", "")),
            _source(task),
            labelled="feedback" in task.facts,
            peers=task.facts.get("peers", ()),
        )
        returns, advantages, baseline = self._advantages(task)
        signal = float(advantages.abs().max()) > NO_SIGNAL
        measured = (None if signal else self._without_step(task)) or self._step(task, advantages, weight)
        self.update += 1
        if task.facts.get("feedback") == "rating":
            self.ratings.add(_source(task), float(returns[_rated(task)].mean()))
        else:
            self.baseline.add(float(returns.mean()))
        beta, kl = self.beta.beta, measured["kl"]
        change = self.beta.update(kl, self.update, measured["kl_start"]) if math.isfinite(kl) else None
        report = UpdateReport(
            update=self.update,
            mean_kl=self.beta.mean_kl_divergence,
            beta=beta,
            learning_rate=task.learning_rate,
            mean_return=float(returns.mean()),
            baseline=baseline,
            advantage=float(advantages.abs().mean()),
            tokens=len(advantages),
            advantages=tuple(float(part.mean()) for part in advantages.split(task.experience.counts)),
            weight=weight,
            **measured,
        )
        return report, change

    def _without_step(self, task: UpdateTask) -> dict[str, Any] | None:
        """Return the measurements of a task without signal, or None if the penalty must first lead the policy back.

        Near the answering policy, the penalty's gradient is almost 0, and Adam would turn it into a full step of noise.
        """
        measured = self._measure(task)
        kl = measured["kl"]
        if not kl <= min(self.config.kl.target_kl, self.config.kl.limit):  # also true for NaN
            return None
        names = ("rl_loss", "grad_norm", "clipped_grad_norm", "step_norm", "clip_fraction")
        return {**dict.fromkeys(names, 0.0), **measured, "kl_before": kl, "loss": self.beta.beta * kl}

    def _step(self, task: UpdateTask, advantages: Tensor, weight: float) -> dict[str, Any]:
        """Compute the gradient, make a step or revert it, and return the measurements. Raises TaskError."""
        self.optimizer.zero_grad(set_to_none=True)
        rl_loss, kl_before, clip_fraction = self._backward(task, advantages)
        loss = rl_loss + self.beta.beta * kl_before
        # Immediately after backward() and before step(): the magnitude guardrail.
        grad_norm = float(nn.utils.clip_grad_norm_(self.parameters.values(), self.config.max_norm))
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise TaskError(f"its loss is {loss} and its gradient norm {grad_norm}")
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        clipped = float(nn.utils.get_total_norm(gradients))
        moved = self._move(task, gradients, weight, kl_before)
        self.optimizer.zero_grad(set_to_none=True)
        return {
            "loss": loss,
            "rl_loss": rl_loss,
            "kl_before": kl_before,
            "grad_norm": grad_norm,
            "clipped_grad_norm": clipped,
            "clip_fraction": clip_fraction,
            **moved,
            "clipped": moved["clipped"] or grad_norm > self.config.max_norm,
        }

    def _move(self, task: UpdateTask, gradients: list[Tensor], weight: float, kl_before: float) -> dict[str, object]:
        """Make an optimiser step, or revert it, and return how far it moved the policy."""
        if weight < 1:  # scale gradient and rate, because Adam normalises the gradient
            _torch._foreach_mul_(gradients, weight)
        before, optimizer_before = [p.clone() for p in self._live], self._optimizer_tensors()
        for group in self.optimizer.param_groups:
            group["lr"] = task.learning_rate * weight
        self.optimizer.step()
        step_norm = self._shorten(before)
        clipped = step_norm >= self.config.max_update_norm
        try:
            measured = self._measure(task)
        except RuntimeError:  # out of memory: a step with unknown KL is not kept
            _torch._foreach_copy_(self._live, before)
            self._restore_optimizer(optimizer_before)
            raise
        kl, target, limit = measured["kl"], self.config.kl.target_kl, self.config.kl.limit
        if max(target, kl_before) < kl < math.inf:
            # Adam's first step has full length, whatever the gradient. KL grows with the square of the length. If
            # earlier updates have used up the target, a step away from the answering policy waits for the next version:
            # its gradient stays in Adam's mean.
            part = math.sqrt(max(target - kl_before, 0.0) / (kl - kl_before))
            _torch._foreach_lerp_(self._live, before, 1.0 - part)
            step_norm, clipped = step_norm * part, True
            measured = self._measure(task)
            kl = measured["kl"]
        rejected = None
        if not math.isfinite(kl) or (kl > limit and kl > kl_before):
            rejected = f"KL {kl:.4g} after the update is above the limit {limit:g}"
            _torch._foreach_copy_(self._live, before)
            self._restore_optimizer(optimizer_before)
            step_norm = 0.0
        else:
            _torch._foreach_lerp_(list(self.ema.values()), self._live, 1.0 - self.config.ema_decay)
        return {**measured, "step_norm": step_norm, "clipped": clipped, "rejected": rejected}

    # ------------------------------------------------------------------------------------------------- the pieces

    def _advantages(self, task: UpdateTask) -> tuple[Tensor, Tensor, float]:
        """Compute the returns [B], the advantages of the agent tokens [A], and the baseline.

        If feedback judged samples differently, their baseline is their own mean (as in RLOO and GRPO). The baseline of
        a rating is the running mean of its source; if only some samples have the rated answer, the samples are also
        centred on their own mean. All other tasks use the running median of returns.
        """
        rewards = task.reward_tensor.double().sum(-1)  # [B, S]
        to_go = rewards.flip(-1).cumsum(-1).flip(-1)
        returns = to_go[:, 0]
        feedback = task.facts.get("feedback")
        offset: float | Tensor
        if feedback == "rating":
            rated, baseline = _rated(task), self.ratings.value(_source(task))
            offset = baseline * rated.double()[:, None]
            offset = offset if rated.all() else offset + (returns - offset[:, 0]).mean()
        elif feedback is not None and float(returns.max() - returns.min()) > 1e-6:
            offset = baseline = float(returns.mean())
        else:
            offset = baseline = self.baseline.value(returns.tolist())
        limit = self.config.advantage_limit
        by_turn = (to_go - offset).clamp(-limit, limit)
        turns = task.experience.at_agent_tokens("turn").long()
        row = torch.arange(len(returns)).repeat_interleave(torch.tensor(task.experience.counts))
        return returns, by_turn[row, turns].float(), baseline

    def _chunks(self, task: UpdateTask) -> list[tuple[slice, slice]]:
        """Return the slices of rows for one forward pass each, with the slices of their tokens in [A]."""
        e = task.experience
        rows_per_chunk = max(1, DENSE_LOGITS // (max(map(len, e.rows)) * self.vocabulary))
        ends = np.cumsum([0, *e.counts]).tolist()
        starts = range(0, len(e.rows), rows_per_chunk)
        chunks = [(start, min(start + rows_per_chunk, len(e.rows))) for start in starts]
        return [(slice(a, b), slice(ends[a], ends[b])) for a, b in chunks if ends[b] > ends[a]]

    def _logits(self, task: UpdateTask, rows: slice) -> Tensor:
        chosen = task.experience.rows[rows]
        return forward_agent_tokens(
            self.model,
            [row.token_ids for row in chosen],
            [row.agent_mask for row in chosen],
            images=self._seen(task.experience, rows),
        ).logits.float()

    def _seen(self, experience: Experience, rows: slice) -> list[list[ModelImage]] | None:
        """Load the images of these rows. Raises TaskError if one is missing."""
        if not experience.images:
            return None
        if self.images is None:
            raise TaskError("its answer depends on images, but this learner stores none")
        try:
            return [[self.images.load(name) for name in row] for row in experience.images[rows]]
        except KeyError as error:
            raise TaskError(str(error.args[0])) from error

    def _backward(self, task: UpdateTask, advantages: Tensor) -> tuple[float, float, float]:
        """Accumulate the gradient of Total_Loss. Returns RL_Loss, KL_Penalty and the share of clipped tokens."""
        total = len(advantages)
        targets = task.experience.at_agent_tokens("token_ids").long()
        old_logprobs = task.experience.at_agent_tokens("logprobs")
        rl_loss = kl_penalty = clipped = 0.0
        for rows, tokens in self._chunks(task):
            logits = self._logits(task, rows)
            chosen, old, advantage = (v[tokens].to(logits.device) for v in (targets, old_logprobs, advantages))
            logprobs = torch.log_softmax(logits / self.config.temperature, -1).gather(-1, chosen[:, None])[:, 0]
            ratio = torch.exp(logprobs - old)
            rl = clipped_surrogate(ratio, advantage, CLIP, CLIP).sum() / total
            kl = task.original_logits.at(tokens).kl(logits).reverse.sum() / total
            (rl + self.beta.beta * kl).backward()
            rl_loss += float(rl.detach())
            kl_penalty += float(kl.detach())
            with torch.no_grad():
                outside = torch.where(advantage > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
                clipped += float((outside & (advantage != 0)).sum()) / total
        return rl_loss, kl_penalty, clipped

    @torch.no_grad()
    def _measure(self, task: UpdateTask) -> dict[str, float]:
        """Measure the current policy's KLs per token, as in `UpdateReport`."""
        reverse = forward = start = 0.0
        total = len(task.original_logits)
        for rows, tokens in self._chunks(task):
            logits = self._logits(task, rows)
            kl = task.original_logits.at(tokens).kl(logits)
            reverse += float(kl.reverse.sum()) / total
            forward += float(kl.forward.sum()) / total
            with weights_in_place(self.parameters, self._start):
                started = self._logits(task, rows)
            start += float(kl_directions(logits, started).reverse.sum()) / total
        return {"kl": reverse, "kl_forward": forward, "kl_start": start}

    def _shorten(self, before: list[Tensor]) -> float:
        """Shorten the last step to `max_update_norm`, and return its length."""
        step = _torch._foreach_sub(self._live, before)
        norm = float(nn.utils.get_total_norm(step))
        limit = self.config.max_update_norm
        if norm <= limit:
            return norm
        if math.isfinite(norm):
            _torch._foreach_lerp_(self._live, before, 1.0 - limit / norm)
            return limit
        _torch._foreach_copy_(self._live, before)
        return 0.0

    # ------------------------------------------------------------------------------------------------------ state

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """Return copies of the optimiser's tensors, by `<parameter>/<key>`."""
        found = {}
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{name}/{key}"] = torch.as_tensor(value).detach().clone()
        return found

    def _restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        self.optimizer.state.clear()
        for full, value in tensors.items():
            name, _, key = full.rpartition("/")
            parameter = self.parameters[name]
            value = value if key == "step" else value.to(parameter.device)
            cast(dict, self.optimizer.state[parameter])[key] = value.clone()

    def _groups(self) -> dict[str, dict[str, Tensor]]:
        live = {n: p.data for n, p in self.parameters.items()}
        return {"live": live, "ema": self.ema, "validated": self.validated, "start": self._start}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all state that the next update depends on: tensors (copies) and JSON values."""
        tensors = {f"{g}/{n}": t.clone() for g, group in self._groups().items() for n, t in group.items()}
        tensors |= {f"optimizer/{n}": t for n, t in self._optimizer_tensors().items()}
        values = {name: getattr(self, name).state_dict() for name in _STATEFUL}
        return tensors, {"update": self.update, **values}

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Load a state. Raises ValueError or KeyError for the state of another model."""
        for group, into in self._groups().items():
            names = [n.removeprefix(f"{group}/") for n in tensors if n.startswith(f"{group}/")]
            self._copy({n: tensors[f"{group}/{n}"] for n in names}, into)
        prefix = "optimizer/"
        self._restore_optimizer({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        self.update = int(values["update"])
        for name in _STATEFUL:
            getattr(self, name).load_state_dict(values[name])

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the live parameters and the EMA."""
        self._copy(tensors, self._groups()["live"])
        self._copy(tensors, self.ema)

    def _copy(self, tensors: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
        """Copy weights by name. Raises ValueError for weights of another model."""
        check_fit(into, tensors)
        _torch._foreach_copy_(list(into.values()), [tensors[n].to(t.device, t.dtype) for n, t in into.items()])


def _rated(task: UpdateTask) -> Tensor:
    """Return a mask [B] of the samples that have the rated answer."""
    return torch.tensor(task.facts.get("agrees", [True] * len(task.experience.rows)))


def _source(task: UpdateTask) -> str:
    return str(task.facts.get("source", ""))
