"""`GRPOEnvTrainer`: TRL's GRPO on whole environment rollouts; see "Training" in docs/ARCHITECTURE.md.

A thin adapter: where TRL asks for completions it gets the rollouts of `pipeline` as the tensors of `batch`, and where
TRL's loss asks for log-probs it gets those of one packed forward pass. TRL's loss is called, not copied.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object, is_peft_model
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.utils import add_fused_lm_head

from ...envs.agent import Agent
from ...envs.base import Env
from ...rewards.orchestrator import RewardOrchestrator
from ..policy.kl import BetaController
from ..policy.packing import Packing
from ..policy.prepared import PreparedModel
from ..rollouts.advantages import advantage_method
from ..rollouts.advantages.base import AdvantageMethod
from ..rollouts.replay import ReplayBuffer
from ..rollouts.rollout import Rollout
from ..rollouts.runner import RolloutRunner
from ..rollouts.scoring import Metrics, Scorer
from ..runs.types import LossTerms
from .batch import Batch, make_batch, micro_batches, packing_of, with_trl_names
from .frozen import FrozenPass
from .losses.base import Loss, LossInputs, kl_k3
from .losses.terms import Clipping, loss_terms
from .phases import PhaseClock, StepClock
from .pipeline import Placement, Request, RolloutPipeline, StepRollouts
from .processes import Processes
from .resumable import ResumableTrainer, StatePart
from .trl_logs import completion_logs, completion_metrics


def environment_reward(prompts: Sequence[Any], **_: Any) -> list[float]:
    """Stands where TRL wants a reward function; rewards come with the rollouts."""
    raise RuntimeError("rewards come with the environment's rollouts; this is never called")


class GRPOEnvTrainer(ResumableTrainer):
    """GRPO on rollouts of any mix of environments.

    agent: acts in the environments; its `model` is the policy unless `model` is given. tokenizer: handed to
    environments. train_dataset: rows of `env_class_path`, `env_config`, `task_data` (see `runner.parse_row`).
    orchestrator: shaped rewards; None: the environment's own. advantages: see `rollouts.advantages`;
    `args.scale_rewards` scales them. replay, dynamic_rounds: see `RolloutPipeline`. beta_controller: moves `beta`.
    placement: where rollouts happen with several processes; both give the same result. prepare_env: called once for
    each environment made. packed: use the packed forward where the model allows it. loss: minimised in the place of
    TRL's `args.loss_type` (see `losses`).
    """

    def __init__(
        self,
        agent: Agent,
        tokenizer: PreTrainedTokenizerBase,
        *,
        args: GRPOConfig,
        train_dataset: Dataset,
        model: nn.Module | None = None,
        orchestrator: RewardOrchestrator | None = None,
        advantages: str | AdvantageMethod = "group",
        replay: ReplayBuffer | None = None,
        min_group_std: float = 0.0,
        dynamic_rounds: int = 0,
        beta_controller: BetaController | None = None,
        placement: Placement = "auto",
        prepare_env: Callable[[Env], None] | None = None,
        packed: bool = True,
        loss: Loss | None = None,
        **kwargs: Any,
    ) -> None:
        model = model if model is not None else agent.model  # type: ignore[attr-defined]
        reference = copy.deepcopy(model) if args.beta != 0.0 and not is_peft_model(model) else None
        if args.ddp_find_unused_parameters is None:  # every adapter is used in every pass: no search for others
            args.ddp_find_unused_parameters = False
        beta, args.beta = args.beta, 0.0 if reference is not None else args.beta
        super().__init__(
            model=model,  # type: ignore[arg-type]
            reward_funcs=[environment_reward],
            args=args,
            train_dataset=train_dataset,
            processing_class=tokenizer,
            **kwargs,
        )
        self.args.beta = self.beta = beta
        self.remove_callback(PrinterCallback)
        self.agent = agent
        self.tokenizer = tokenizer
        self.orchestrator = orchestrator
        self.beta_controller = beta_controller
        self.replay = replay
        self.loss = loss
        self.phases = PhaseClock(self.accelerator.device)
        self.clock = StepClock()
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self.policy = self._prepared(self.model, packed)
        if reference is not None:
            self.ref_model = self._frozen_copy(reference)
        copied = None if self.ref_model is None else self._prepared(self.ref_model, packed)
        self.packed = self.policy.packed and (copied is None or copied.packed)
        self.frozen = FrozenPass(self.policy, copied, max(args.per_device_train_batch_size, 1))
        self.env_cache: dict[tuple[str, str], Env] = {}
        self.runner = RolloutRunner(agent, tokenizer, self.num_generations, self.env_cache, prepare_env)
        self.scorer = Scorer(
            self.num_generations,
            orchestrator,
            advantages if isinstance(advantages, AdvantageMethod) else advantage_method(advantages),
            args.scale_rewards,  # type: ignore[arg-type]
            min_group_std,
        )
        self.pipeline = RolloutPipeline(
            self.policy,
            self.runner,
            self.frozen,
            self.scorer,
            Processes(self.accelerator),
            self.phases,
            train_dataset,
            replay=replay,
            dynamic_rounds=dynamic_rounds,
            placement=placement,
            seed=args.seed,
        )
        self.rollouts = StepRollouts()
        """Those of the current step."""
        self._loss_packing: Packing | None = None
        self._loss_batch: Batch | None = None
        self._loss_terms: dict[str, LossTerms] = {}
        if replay is not None:
            self.state_parts.append(StatePart(replay.save, replay.load))
        if beta_controller is not None:
            self.state_parts.append(StatePart(self._save_beta, self._load_beta, everywhere=True))

    # ------------------------------------------------------------------------------------------------- rollouts

    @property
    def generated(self) -> list[Rollout]:
        """All rollouts of the current step, also those that were filtered out; on the main process."""
        return self.rollouts.generated

    @property
    def step_metrics(self) -> Metrics:
        """What the current step measured beyond TRL's own metrics."""
        return self.rollouts.metrics

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Rollouts of these rows, scored: one row a rollout, in the order of `inputs`.

        inputs: this process's rows, each prompt repeated `num_generations` times. Returns the tensors [B, T] of
        `make_batch`, with TRL's names for them, too.
        """
        training = self.model.training
        request = Request(inputs, self.state.global_step, reference=self.beta != 0.0)
        self.rollouts = self.pipeline.train(request) if training else self.pipeline.evaluate(request)
        if self.accelerator.is_main_process:
            self._log_rollouts("train" if training else "eval")
        batch = make_batch(
            self.rollouts.batch,
            pad_token_id=self._tokenizer.pad_token_id,  # type: ignore[arg-type]
            device=self.accelerator.device,
            reference=self.beta != 0.0,
        )
        tokens = self.accelerator.gather(batch["agent_token_mask"].sum()).sum()  # type: ignore[union-attr]
        return with_trl_names({**batch, "num_items_in_batch": tokens})

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """As TRL's, but rows keep their order: groups stay together, so that a micro-batch encodes a prompt once.

        The optimiser step sums over all micro-batches, so their order within it is of no consequence; batches that
        are spread over several optimiser steps are shuffled by whole groups. What is prepared stays as it is.
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
        return self._buffered_inputs[self._step % parts]

    # ------------------------------------------------------------------------------------------------- loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
        """One micro-batch: rollouts when they are due, forward, backward."""
        self.clock.begin()
        inputs = self._prepare_inputs(inputs)
        with self.phases("backward", without="logprobs"), self._packed_pass(self.packed):
            return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """TRL's loss over the agent's tokens of whole trajectories; every other token is masked out of each term.

        inputs: what `_generate_and_score_completions` returned, or the contract's tensors alone.
        """
        batch = with_trl_names(inputs)
        # A packed forward that is checkpointed must still be packed in the backward pass: inside a step it is.
        checkpointing = self.policy.base.is_activation_checkpointing and model.training
        packed = self.packed and (self.policy.in_packed_pass or not checkpointing)
        self._loss_batch, self._loss_packing = batch, packing_of(batch) if packed else None
        try:
            with self.phases("logprobs"), self._packed_pass(packed):
                if self.loss is None:
                    loss = super().compute_loss(model, batch, return_outputs, num_items_in_batch)
                else:
                    loss = self._own_loss(self.loss, model, batch)
        finally:
            self._loss_batch = self._loss_packing = None
        if self.rollouts.kl is not None and self.beta != 0.0:
            self._metrics["train" if self.model.training else "eval"]["kl"] = [self.rollouts.kl]
        return loss

    def _own_loss(self, loss: Loss, model: Any, batch: Batch) -> Tensor:
        """The mean of a loss (and of beta times the KL) over the agent's tokens of the whole optimiser step."""
        ids, attention = batch["completion_ids"], batch["completion_mask"]
        found = self._get_per_token_logps_and_entropies(model, ids, attention, ids.shape[1], compute_entropy=True)
        logps, entropy = found[0], found[1]
        assert entropy is not None
        mask = (attention * batch["tool_mask"]).float()
        old = batch.get("old_per_token_logps", logps.detach())
        inputs = LossInputs(logps, old, batch["advantages"], entropy, mask)
        per_token = loss(inputs)
        if self.beta != 0.0:
            per_token = per_token + self.beta * inputs.ratio * kl_k3(logps, batch["ref_per_token_logps"])
        tokens = batch["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if self.model.training:
            tokens = tokens * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        mode = "train" if self.model.training else "eval"
        mean = (entropy.detach() * mask).sum() / mask.sum().clamp(min=1.0)
        self._metrics[mode]["entropy"].append(self.accelerator.gather(mean).mean().item())  # type: ignore[union-attr]
        return per_token.masked_fill(mask == 0, 0.0).sum() / tokens

    def _packed_pass(self, packed: bool) -> contextlib.AbstractContextManager[None]:
        return self.policy.packed_pass() if packed and not self.policy.in_packed_pass else contextlib.nullcontext()

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probs and entropies of every token, [B, logits_to_keep]; 0 for a first token, which has none.

        With a packing (in the loss), only the agent's tokens are scored and the others are 0: they are masked anyway.
        """
        if self._loss_packing is not None:
            with self.accelerator.autocast():
                out = model(packing=self._loss_packing, entropy_grad=self._entropy_bonus_enabled)
            logps, entropy = self._loss_packing.pad(out.logprobs), self._loss_packing.pad(out.entropy)
            self._without_kl_of_replayed(logps)
            self._note_loss(logps, entropy)
            return logps, entropy, None
        whole = logits_to_keep == input_ids.shape[1]
        logps, entropies, aux = super()._get_per_token_logps_and_entropies(
            model,
            input_ids,
            attention_mask,
            logits_to_keep - whole,
            batch_size=batch_size,
            compute_entropy=compute_entropy,
            **kwargs,
        )
        if whole:
            logps = nn.functional.pad(logps, (1, 0))
            entropies = None if entropies is None else nn.functional.pad(entropies, (1, 0))
        self._without_kl_of_replayed(logps)
        self._note_loss(logps, entropies)
        return logps, entropies, aux

    def _without_kl_of_replayed(self, logps: Tensor) -> None:
        """Let the reference of replayed rows be the policy itself: no KL and no gradient of it, which TRL takes next.

        The k3 estimate holds for samples of the present policy. Rows are replayed because they were surprising: on a
        token that is improbable by now it is exp(many nats), also when weighted by the ratio, since such rows are
        drawn again and again.
        """
        batch = self._loss_batch
        if batch is not None and "replayed" in batch and "ref_per_token_logps" in batch:
            reference = batch["ref_per_token_logps"]
            batch["ref_per_token_logps"] = torch.where(batch["replayed"][:, None], logps.detach(), reference)

    def _note_loss(self, logps: Tensor, entropies: Tensor | None) -> None:
        """Keep what each rollout of this micro-batch puts into the loss, for the record."""
        batch = self._loss_batch
        if batch is None or "rollouts" not in batch or entropies is None or not self.model.training:
            return
        how = Clipping(
            "" if self.loss is not None else self.loss_type,
            self.epsilon_low,
            self.epsilon_high,
            self.importance_sampling_level == "sequence",
            self.args.use_bias_correction_kl or self.loss is not None,
        )
        self._loss_terms.update(loss_terms(batch, batch["rollouts"], logps.detach(), entropies.detach(), how))

    def take_loss_terms(self) -> dict[str, LossTerms]:
        """What each rollout put into the loss of the last optimiser step, by its key, of all processes."""
        terms, self._loss_terms = self._loss_terms, {}
        if self.accelerator.num_processes > 1:
            terms = {k: v for part in gather_object([terms]) for k, v in part.items()}
        return terms

    # ------------------------------------------------------------------------------------------------- the rest

    def _log_rollouts(self, mode: str) -> None:
        """TRL's own metrics and tables, which it fills where it generates itself."""
        if mode == "train":
            self.state.num_input_tokens_seen += sum(len(r) for r in self.generated)
        self._metrics[mode]["num_tokens"] = [float(self.state.num_input_tokens_seen)]
        for name, value in completion_metrics(self.generated, self.num_generations).items():
            self._metrics[mode][name].append(value)
        for rollout in self.generated:
            completion_logs(rollout, self._logs)

    def _prepared(self, model: Any, packed: bool) -> PreparedModel:
        unwrapped = self.accelerator.unwrap_model(model)
        packed = packed and not self.aux_loss_enabled
        autocast = self.accelerator.autocast
        return PreparedModel(unwrapped, temperature=self.temperature, packed=packed, autocast=autocast)

    def _frozen_copy(self, reference: Any) -> Any:
        """A copy of the policy as reference model, with TRL's scoring head."""
        reference.requires_grad_(False).eval()
        add_fused_lm_head(reference, temperature=self.temperature)
        return self.accelerator.prepare_model(reference, evaluation_mode=True)

    def _save_beta(self, folder: Path) -> None:
        assert self.beta_controller is not None
        (folder / "beta.json").write_text(json.dumps(self.beta_controller.state_dict()))

    def _load_beta(self, folder: Path) -> None:
        assert self.beta_controller is not None
        self.beta_controller.load_state_dict(json.loads((folder / "beta.json").read_text()))
        self.beta = self.beta_controller.beta

    def _send_telemetry(self) -> None:
        """Training says nothing to anybody."""
