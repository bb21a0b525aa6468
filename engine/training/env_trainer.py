"""`GRPOEnvTrainer`: TRL's GRPO on whole environment rollouts; see docs/architecture/training.md.

A thin adapter. When TRL asks for completions, it returns the rollouts of `pipeline` as the tensors of `batch`. When
TRL's loss asks for log-probs, it returns those of one packed forward pass. TRL's loss is called, not copied.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, PrinterCallback
from trl.trainer.grpo_config import GRPOConfig

from ...envs.agent import Agent
from ...rewards.orchestrator import RewardOrchestrator
from ..policy.packing import Packing
from ..policy.padded import padded_scores
from ..policy.prepared import PreparedModel
from ..policy.versions import is_checkpointing
from ..rollouts.replay import ReplayBuffer
from ..rollouts.runner import EnvKey, RolloutRunner, Row, TrialEnv, parse_row
from ..rollouts.scoring import Scorer
from . import trl_seam
from .batch import Batch, make_batch, micro_batches, needs_logits, packing_of, with_trl_names, without_kl_of_replayed
from .frozen import FrozenPass, add_reference, copy_of_policy
from .losses import Loss, LossInputs, importance_ratio, kl_of_tokens, sum_over_tokens
from .losses.terms import LossTermsOfStep
from .mismatch import Mismatch, check_unchanged, drops_out
from .phases import PhaseClock
from .pipeline import RolloutOptions, RolloutPipeline, StepRequest, StepRollouts, kl_of_rollouts
from .processes import Processes, may_idle
from .resumable import ResumableTrainer, StatePart
from .sharding import whole


@dataclass
class LossPass:
    """The loss of one micro-batch. packing: None for padded rows. logprobs: [B, T], of the policy, once computed."""

    batch: Batch
    packing: Packing | None
    logprobs: Tensor | None = None


class GRPOEnvTrainer(ResumableTrainer):
    """GRPO on rollouts of any mix of environments.

    agent: acts in the environments; its `model` is the policy unless `model` is given. tokenizer: passed to
    environments. train_dataset: rows, or a table of `env_class_path`, `env_config`, `task_data` (`runner.parse_row`).
    orchestrator: shaped rewards; None: the environment's own. options: see `RolloutOptions`; `args.scale_rewards`
    scales the advantages. replay: selective sample replay. prepare_env: called once for each environment made. packed:
    use the packed forward pass if the model allows it. loss: minimised instead of TRL's `args.loss_type` (see
    `losses`).
    """

    rollouts: StepRollouts
    """The rollouts of the current step."""
    loss_terms: LossTermsOfStep
    """The contribution of each rollout to the loss of the current step."""
    _loss_pass: LossPass | None = None
    _unchanged_until: int | None = None

    def __init__(
        self,
        agent: Agent,
        tokenizer: PreTrainedTokenizerBase,
        *,
        args: GRPOConfig,
        train_dataset: Dataset | Sequence[Row],
        model: nn.Module | None = None,
        orchestrator: RewardOrchestrator | None = None,
        options: RolloutOptions | None = None,
        replay: ReplayBuffer | None = None,
        prepare_env: Callable[[TrialEnv], None] | None = None,
        packed: bool = True,
        loss: Loss | None = None,
        kl_estimator: str = "k3",
        **kwargs: Any,
    ) -> None:
        trl_seam.check_methods()
        model = model if model is not None else agent.model  # type: ignore[attr-defined]
        if args.ddp_find_unused_parameters is None:
            args.ddp_find_unused_parameters = may_idle(model)
        self.rows = [parse_row(row, f"row {n}") for n, row in enumerate(cast(Iterable[Any], train_dataset), 1)]
        reference = copy_of_policy(model, args.beta)
        beta, synced = args.beta, args.sync_ref_model
        if reference is not None:  # keep TRL from loading its own copy
            args.beta, args.sync_ref_model = 0.0, False
        super().__init__(
            model=model,  # type: ignore[arg-type]
            reward_funcs=[trl_seam.environment_reward],
            args=args,
            train_dataset=Dataset.from_dict({"row": trl_seam.indices(len(self.rows), args)}),
            processing_class=tokenizer,
            **kwargs,
        )
        trl_seam.check_attributes(self)
        self.args.beta = self.beta = beta
        self.remove_callback(PrinterCallback)
        self.agent = agent
        self.tokenizer = tokenizer
        self.orchestrator = orchestrator
        self.loss = loss
        self.kl_estimator = kl_estimator
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        num_micro_batches = self.num_iterations * args.steps_per_generation  # type: ignore[operator]
        self.updates_per_batch = max(num_micro_batches // args.gradient_accumulation_steps, 1)
        self.phases = PhaseClock(self.accelerator.device)
        if reference is not None:
            add_reference(self, reference, synced)
        self.policy = self._prepared(self.model, packed)
        copied = None if self.ref_model is None else self._prepared(self.ref_model, packed)  # type: ignore[arg-type]
        self.packed = self.policy.packed and (copied is None or copied.packed)
        self.frozen = FrozenPass(self.policy, copied, max(args.per_device_train_batch_size, 1))
        self.env_cache: dict[EnvKey, TrialEnv] = {}
        self.runner = RolloutRunner(agent, tokenizer, self.num_generations, self.env_cache, prepare_env)
        self.pipeline = self._make_pipeline(options or RolloutOptions(), replay)
        self._upcoming: deque[tuple[list[Any], Tensor | int | None]] = deque()
        self.rollouts = StepRollouts()
        self.mismatch = Mismatch(self.epsilon_low, self.epsilon_high)
        self.loss_terms = LossTermsOfStep(trl_seam.clipping(self, own_loss=loss is not None, kl_estimator=kl_estimator))
        self.state_parts += trl_seam.adaptive_entropy(self)

    def _make_pipeline(self, options: RolloutOptions, replay: ReplayBuffer | None) -> RolloutPipeline:
        if replay is not None:
            self.state_parts.append(StatePart(replay.save, replay.load))
        scorer = Scorer(
            self.num_generations,
            self.orchestrator,
            options.advantages,
            self.args.scale_rewards,
            options.min_group_std,
            options.signal,
            solved=replay is not None,
            distillation=options.distillation,
        )
        return RolloutPipeline(
            self.policy,
            self.runner,
            self.frozen,
            scorer,
            Processes(self.accelerator),
            self.phases,
            self.rows,
            options,
            replay,
            self.args.seed,
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Make and score rollouts of these rows, one per row, in the order of `inputs`.

        inputs: this process's rows (of `env_class_path`, `env_config`, `task_data`, or an index `row`), each prompt
        repeated `num_generations` times. Returns the tensors [B, T] of `make_batch`, also under TRL's names.
        """
        training = self.model.training
        if training:
            self.mismatch = Mismatch(self.epsilon_low, self.epsilon_high)
        request = StepRequest(self._rows_of(inputs), self.state.global_step, reference=self.beta != 0.0)
        with whole(self.policy.model):
            self.rollouts = self.pipeline.train(request) if training else self.pipeline.evaluate(request)
        if self.accelerator.is_main_process:
            trl_seam.log_rollouts(self, self.rollouts.generated, "train" if training else "eval")
        batch = make_batch(
            self.rollouts.batch,
            pad_token_id=self._tokenizer.pad_token_id,  # type: ignore[arg-type]
            device=self.accelerator.device,
            reference=self.beta != 0.0,
        )
        tokens = self.accelerator.gather(batch["agent_token_mask"].sum()).sum()  # type: ignore[union-attr]
        return with_trl_names({**batch, "num_items_in_batch": tokens})

    def _rows_of(self, samples: Sequence[Mapping[str, Any]]) -> list[Row]:
        return [self.rows[s["row"]] if "row" in s else parse_row(s, f"row {n}") for n, s in enumerate(samples, 1)]

    def get_batch_samples(
        self, epoch_iterator: Iterator[object], num_batches: int, device: torch.device
    ) -> tuple[list[object], Tensor | int | None]:
        """Fetch the batches of a step as transformers does, and also look ahead to the next steps of the epoch so that
        their rollouts can begin."""
        ahead = self.pipeline.options.servers.ahead if self.pipeline.on_servers else 0
        while len(self._upcoming) <= ahead:
            samples = super().get_batch_samples(epoch_iterator, num_batches, device)
            if not samples[0]:
                break
            self._upcoming.append(samples)
        present = self._upcoming.popleft() if self._upcoming else ([], None)
        for step, (samples, _) in enumerate(self._upcoming, self.state.global_step + 1):
            if step < self.state.max_steps:
                self.pipeline.plan(step, self._rows_of(samples[0]))
        return present

    def _prepare_inputs(self, generation_batch: list[dict[str, object]] | dict[str, object]) -> dict[str, object]:
        """Prepare inputs as TRL does, but keep row order: groups stay together, so a micro-batch encodes a prompt once.

        The optimiser step sums over all micro-batches, so their order within it does not matter. Batches that are
        spread over several optimiser steps are shuffled by whole groups. Prepared inputs are returned unchanged.
        """
        if isinstance(generation_batch, dict):
            return generation_batch
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            shuffled = self.num_generations if parts > self.args.gradient_accumulation_steps else 0
            self._buffered_inputs = micro_batches(batch, self.rollouts.batch, parts, shuffled)
        elif self._step % self.args.gradient_accumulation_steps == 0:  # an earlier step has recorded these rollouts
            self.rollouts = replace(self.rollouts, generated=[], replayed=[], metrics={})
        return self._buffered_inputs[self._step % parts]

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None
    ) -> Tensor:
        """Train on one micro-batch, after making rollouts if they are due."""
        if self._unchanged_until is None:
            self._unchanged_until = self.state.global_step
            self._step = self.state.global_step * self.args.gradient_accumulation_steps  # also correct after a resume
        inputs = self._prepare_inputs(inputs)
        with self.phases("backward", without="logprobs"), self._packed_pass(self.packed):
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self.state.global_step == self._unchanged_until and self.accelerator.sync_gradients:
            self._check_unchanged()
        return loss

    def _check_unchanged(self) -> None:
        """Raise TrainingError if the loss scores a different policy from the one that acted."""
        # Rollouts sampled by servers have their own threshold: `rollouts.max_mismatch`.
        uncorrected = self.pipeline.on_servers and self.pipeline.options.weighting.how == "none"
        if uncorrected or drops_out(self.policy.base):
            return
        sums = torch.tensor([self.mismatch.kl, self.mismatch.tokens], device=self.accelerator.device)
        found = cast(Tensor, self.accelerator.reduce(sums))
        kl = float(found[0] / found[1].clamp(min=1))
        self._metrics["train"]["kl_unchanged"].append(kl)
        check_unchanged(kl, half=self.pipeline.rounds or self.accelerator.mixed_precision != "no")

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Compute TRL's loss over the agent's tokens of whole trajectories. All other tokens are masked in every term.

        inputs: the result of `_generate_and_score_completions`, or only the contract's tensors.
        """
        batch = with_trl_names(inputs)
        # With checkpointing, a packed forward must still be packed in the backward pass. Within a step it is.
        checkpointing = is_checkpointing(self.policy.base) and model.training
        packed = self.packed and (self.policy.in_packed_pass or not checkpointing)
        self._loss_pass = LossPass(batch, packing_of(batch, self.policy) if packed else None)
        try:
            with self.phases("logprobs"), self._packed_pass(packed):
                if self.loss is not None:
                    loss = self._own_loss(self.loss, model, batch)
                elif self.beta == 0.0 or self.kl_estimator == "k3":
                    loss = super().compute_loss(model, batch, return_outputs, num_items_in_batch)
                else:
                    beta, self.beta = self.beta, 0.0
                    try:
                        loss = super().compute_loss(model, batch, return_outputs, num_items_in_batch)
                    finally:
                        self.beta = beta
                    loss = loss + beta * self._kl_term(self._loss_pass)
        finally:
            self._loss_pass = None
        if self.rollouts.kl is not None and self.beta != 0.0:
            if self.mismatch.trained and self.accelerator.num_processes == 1:
                generated = self.mismatch.known(self.rollouts.generated)
                self.rollouts = replace(self.rollouts, generated=generated, kl=kl_of_rollouts(generated))
            self._metrics["train" if self.model.training else "eval"]["kl"] = [self.rollouts.kl]
        return loss

    def _kl_term(self, scored: LossPass) -> Tensor:
        """Return the KL by `kl_estimator`, averaged as TRL averages the terms of its loss."""
        batch, logprobs = scored.batch, scored.logprobs
        assert logprobs is not None
        mask = (batch["completion_mask"] * batch["tool_mask"]).float()
        kl = kl_of_tokens(logprobs, batch["ref_per_token_logps"], self.kl_estimator)
        if self.args.use_bias_correction_kl:
            old = batch.get("old_per_token_logps", logprobs.detach())
            kl = kl * importance_ratio(logprobs, old, mask.bool(), self.importance_sampling_level == "sequence")
        sums, counts = (kl * mask).sum(1), mask.sum(1).clamp(min=1.0)
        accumulation = self.current_gradient_accumulation_steps if self.model.training else 1
        if self.loss_type in ("grpo", "sapo"):
            return (sums / counts).mean() / accumulation
        if self.loss_type == "bnpo":
            return sums.sum() / mask.sum().clamp(min=1.0) / accumulation
        if self.loss_type == "dr_grpo":
            return sums.mean() / self.max_completion_length / accumulation
        return sums.mean() / accumulation if self.loss_type == "luspo" else sums.sum() / self._tokens_of_step(batch)

    def _tokens_of_step(self, batch: Batch) -> Tensor:
        """Return the number of agent tokens in an optimiser step, divided by the number of processes."""
        tokens = batch["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if self.model.training:
            tokens = tokens * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        return tokens

    def _own_loss(self, loss: Loss, model: nn.Module, batch: Batch) -> Tensor:
        """Average the loss (and beta times the KL) over the agent's tokens of the whole optimiser step."""
        ids, attention = batch["completion_ids"], batch["completion_mask"]
        logprobs, entropy, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, ids.shape[1], compute_entropy=True
        )
        assert entropy is not None
        mask = (attention * batch["tool_mask"]).float()
        old = batch.get("old_per_token_logps", logprobs.detach())
        inputs = LossInputs(logprobs, old, batch["advantages"], entropy, mask)
        reference = batch["ref_per_token_logps"] if self.beta != 0.0 else None
        mean = (entropy.detach() * mask).sum() / mask.sum().clamp(min=1.0)
        mean = self.accelerator.gather(mean).mean().item()  # type: ignore[union-attr]
        self._metrics["train" if self.model.training else "eval"]["entropy"].append(mean)
        return sum_over_tokens(loss, inputs, reference, self.beta, self.kl_estimator) / self._tokens_of_step(batch)

    def _packed_pass(self, packed: bool) -> contextlib.AbstractContextManager[None]:
        return self.policy.packed_pass() if packed and not self.policy.in_packed_pass else contextlib.nullcontext()

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return log-probs and entropies of every token, [B, logits_to_keep]. The first token has none: it gets 0.

        In the loss, only the agent's tokens are scored. The others are 0: they are masked anyway.
        """
        loss_pass, aux = self._loss_pass, None
        if loss_pass is not None and loss_pass.packing is not None:
            with self.accelerator.autocast():
                out = model(packing=loss_pass.packing, entropy_grad=self._entropy_bonus_enabled)
            logprobs, entropy = loss_pass.packing.pad(out.logprobs), loss_pass.packing.pad(out.entropy)
        elif loss_pass is not None and needs_logits(loss_pass.batch, self.policy.base):
            with self.accelerator.autocast():
                logprobs, entropy, aux = padded_scores(
                    model,
                    self.policy.base,
                    input_ids,
                    attention_mask,
                    loss_pass.batch["agent_token_mask"],
                    [r.images for r in loss_pass.batch["rollouts"]],
                    self.temperature,
                    bool(kwargs.get("compute_aux_loss")),
                )
            entropy = entropy if self._entropy_bonus_enabled else entropy.detach()
        else:
            complete = logits_to_keep == input_ids.shape[1]
            logprobs, entropy, aux = super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep - complete,
                batch_size=batch_size,
                compute_entropy=compute_entropy,
                **kwargs,
            )
            if complete:
                logprobs = nn.functional.pad(logprobs, (1, 0))
                if loss_pass is not None:  # π_ref / π of a token that the policy would never write is infinite
                    logprobs = logprobs.where(loss_pass.batch["agent_token_mask"].bool(), 0.0)
                entropy = None if entropy is None else nn.functional.pad(entropy, (1, 0))
        if loss_pass is not None:
            loss_pass.logprobs = logprobs
            # Later passes over the same rollouts use an updated policy.
            first = self._step % (self.args.steps_per_generation * self.num_iterations) < self.args.steps_per_generation
            if self.model.training and first:
                self._compare_with_sampler(loss_pass.batch, logprobs.detach())
            without_kl_of_replayed(loss_pass.batch, logprobs)
            if self.model.training and entropy is not None:
                self.loss_terms.add(loss_pass.batch, logprobs.detach(), entropy.detach())
        return logprobs, entropy, aux

    def _compare_with_sampler(self, batch: Batch, logprobs: Tensor) -> None:
        """Measure the mismatch. In half precision, correct it while the policy is unchanged."""
        self.mismatch.add(batch, logprobs)
        one_update = self.args.steps_per_generation <= self.args.gradient_accumulation_steps
        if self.pipeline.rounds and not self.pipeline.on_servers and self.num_iterations == 1 and one_update:
            self.mismatch.on_policy(batch, logprobs, self.pipeline.options.weighting)

    def _prepared(self, model: nn.Module, packed: bool) -> PreparedModel:
        packed = packed and not self.aux_loss_enabled
        base, autocast = self.accelerator.unwrap_model(model), self.accelerator.autocast
        return PreparedModel(base, temperature=self.temperature, packed=packed, autocast=autocast)

    def _send_telemetry(self) -> None:
        """Disable TRL's telemetry."""
