"""`GRPOEnvTrainer`: TRL's GRPO on whole environment rollouts (`env_trainer.md`, R1 to R3).

A step: rows → rollouts (`rollouts`) → one frozen pass for reference log-probs and step embeddings (`frozen`) →
rewards, advantages and replay (`scoring`) → TRL's loss over the agent's tokens, from one packed forward (`packed`).

TRL's loss is called, not copied. It works on a prompt and a completion; here the prompt is empty ([B, 0]) and the
completion is the whole trajectory, right-padded, with the agent mask as `tool_mask`. So every tensor is [B, T], and
the keys of R2 and of TRL name the same things.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.utils import add_fused_lm_head

from ...envs.agent import Agent
from ..policy.merged import merged_weights
from ..policy.norms import use_fast_norms
from ..policy.packed import add_packed_forward, agrees_with_plain, packed_mode
from ..policy.packing import Packing, pack
from ..rollouts.advantages import Method
from ..rollouts.replay import ReplayBuffer
from ..rollouts.runner import RolloutRunner, Row, parse_row
from ..rollouts.samples import Sample, merge_samples, pad_rows
from ..rollouts.scoring import Scored, Scorer, refill, silence
from .frozen import FrozenPass
from .phases import PhaseClock
from .resumable import ResumableTrainer, StatePart

logger = logging.getLogger(__name__)

Placement = Literal["auto", "main", "sharded"]


def environment_reward(prompts: Sequence[Any], **_: Any) -> list[float]:
    """Stands where TRL wants a reward function; rewards come with the rollouts."""
    raise RuntimeError("rewards come with the environment's rollouts; this is never called")


class GRPOEnvTrainer(ResumableTrainer):
    """GRPO on rollouts of any mix of environments.

    agent: acts in the environments; its `model` is the policy unless `model` is given. tokenizer: handed to
    environments. train_dataset: rows of `env_class_path`, `env_config`, `task_data` (see `rollouts.parse_row`).
    orchestrator: shaped rewards (`rewards.RewardOrchestrator`); None: the environment's own. advantages: see
    `advantages`; `args.scale_rewards` scales them. replay: the buffer of selective sample replay (None: plain GRPO);
    dynamic_rounds: DAPO's dynamic sampling instead, so many rounds at most (0: off). beta_controller: moves `beta`
    (`kl.BetaController`). placement: where rollouts happen with several processes; both give the same result.
    prepare_env: called once for each environment made. packed: use the packed forward where the model allows it.
    """

    def __init__(
        self,
        agent: Agent,
        tokenizer: PreTrainedTokenizerBase,
        *,
        args: GRPOConfig,
        train_dataset: Dataset,
        model: Any = None,
        orchestrator: Any = None,
        advantages: Method = "group",
        replay: ReplayBuffer | None = None,
        min_group_std: float = 0.0,
        dynamic_rounds: int = 0,
        beta_controller: Any = None,
        placement: Placement = "auto",
        prepare_env: Callable[[Any], None] | None = None,
        packed: bool = True,
        **kwargs: Any,
    ) -> None:
        model = model if model is not None else agent.model  # type: ignore[attr-defined]
        needs_copy = args.beta != 0.0 and not is_peft_model(model) and not _sharded_weights(args)
        reference = copy.deepcopy(model) if needs_copy else None
        beta, args.beta = args.beta, 0.0 if needs_copy else args.beta
        super().__init__(
            model=model,
            reward_funcs=[environment_reward],
            args=args,
            train_dataset=train_dataset,
            processing_class=tokenizer,
            **kwargs,
        )
        self.args.beta = self.beta = beta
        self.remove_callback(PrinterCallback)
        if reference is not None:
            self.ref_model = self._frozen_copy(reference)
        self.has_adapters = is_peft_model(model)
        self.agent = agent
        self.tokenizer = tokenizer
        self.env_cache: dict[tuple[str, str], Any] = {}
        self.runner = RolloutRunner(agent, tokenizer, self.num_generations, self.env_cache, prepare_env)
        self.orchestrator = orchestrator
        self.scorer = Scorer(
            self.num_generations,
            orchestrator=orchestrator,
            method=advantages,
            scale=args.scale_rewards,  # type: ignore[arg-type]
            min_group_std=min_group_std,
        )
        self.replay = replay
        self.dynamic_rounds = dynamic_rounds
        self.beta_controller = beta_controller
        self.placement: Placement = placement
        self.phases = PhaseClock(self.accelerator.device)
        self.generated: list[Sample] = []
        """All rollouts of the current step, also those that were filtered out; on the main process."""
        self.step_metrics: dict[str, Any] = {}
        """What the current step measured beyond TRL's own metrics."""
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self._packing: Packing | None = None
        self._loss_inputs: dict[str, Any] | None = None
        self._kl_of_rollouts: float | None = None
        self._in_step = False
        self._step_began: float | None = None
        base = self._base_model()
        self.packed = packed and not self.aux_loss_enabled
        for each in [base] if self.ref_model is None else [base, self.accelerator.unwrap_model(self.ref_model)]:
            use_fast_norms(each)
            add_packed_forward(each, self.temperature, tail=not _sharded_weights(args))
            self.packed = self.packed and agrees_with_plain(each)
        self.frozen = FrozenPass(self)
        if replay is not None:
            self.state_parts.append(StatePart(replay.save, replay.load))
        if beta_controller is not None:
            self.state_parts.append(StatePart(self._save_beta, self._load_beta, everywhere=True))

    # ------------------------------------------------------------------------------------------------- rollouts (R2)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Rollouts of these rows, scored: one row a rollout, in the order of `inputs`.

        inputs: this process's rows, each prompt repeated `num_generations` times. Returns right-padded tensors [B, T]
        under R2's names (prompt_completion_ids, attention_mask, agent_token_mask, advantages, old_per_token_logps,
        ref_per_token_logps) and TRL's (prompt_ids [B, 0], completion_ids, completion_mask, tool_mask,
        num_items_in_batch).
        """
        training = self.model.training
        collected = self._collect(inputs)
        metrics, batch, replayed = {}, collected.samples, 0
        if self.accelerator.is_main_process:
            metrics = dict(collected.metrics)
            self.generated = collected.samples
            if training:
                collected, generated, tried = self._dynamic(collected, len(inputs) * self.accelerator.num_processes)
                self.generated = generated
                metrics["grpo/filtering_rate"] = tried
                batch = collected.samples
                if self.replay is not None:
                    batch, replayed = refill(collected, self.num_generations, self.replay, self.state.global_step)
                metrics["grpo/replay_share"] = replayed / max(len(batch), 1)
                metrics["grpo/effective_batch"] = float(np.mean([bool(np.any(s.advantages)) for s in batch]))
        elif training:
            self._dynamic(collected, len(inputs) * self.accelerator.num_processes)
        local = self._distribute(batch, len(inputs))
        self.step_metrics = metrics
        if self.accelerator.is_main_process:
            self._log_rollouts(self.generated, "train" if training else "eval")
        if self.beta != 0.0:
            self._kl_of_rollouts = self._broadcast(kl_of_rollouts(self.generated))
        return self._tensors(local)

    def _collect(self, inputs: list[dict[str, Any]]) -> Scored:
        """Rollouts of `inputs`, with everything the loss needs. The samples of all processes on the main one; an empty
        result elsewhere."""
        mine = self._rollouts(inputs)
        self._complete(mine)
        everyone = self._gather(mine)
        if not self.accelerator.is_main_process:
            return Scored([], [])
        with self.phases("reward"):
            return self.scorer.score(merge_samples([everyone]))

    def _rollouts(self, inputs: list[dict[str, Any]]) -> list[Sample]:
        """This process's share of the rollouts, by either placement."""
        group, world = self.num_generations, self.accelerator.num_processes
        whole = len(inputs) % group == 0
        if world > 1 and (self.placement == "main" or not whole):
            everyone = gather_object(inputs)
            rows = [parse_row(r, f"row {i}") for i, r in enumerate(everyone[::group])]
            samples = self._run(rows, 0) if self.accelerator.is_main_process else []
            samples = self._broadcast(samples)
            start = self.accelerator.process_index * len(inputs)
            return samples[start : start + len(inputs)]
        rows = [parse_row(r, f"row {i}") for i, r in enumerate(inputs[::group])]
        return self._run(rows, self.accelerator.process_index * len(rows))

    def _run(self, rows: Sequence[Row], first: int) -> list[Sample]:
        seed = self.args.seed * 1_000_003 + self.state.global_step * 31 + self._round
        self.runner.num_rollouts = self.num_generations
        before = vars(self.runner.timings).copy()
        with self._acting(), self.merged():
            samples = self.runner.run(rows, first=first, seed=seed, step=self.state.global_step + 1)
        after = self.runner.timings
        self.phases.add("generate", after.generate - before["generate"])
        self.phases.add("environment", after.environment - before["environment"])
        return samples

    _round = 0

    def _dynamic(self, scored: Scored, size: int) -> tuple[Scored, list[Sample], float]:
        """DAPO's dynamic sampling: replace groups without signal by rollouts of other prompts, for some rounds.

        Every process takes part. Returns the batch (main process), all rollouts that were made, and the share of
        groups that were without signal.
        """
        group, world = self.num_generations, self.accelerator.num_processes
        generated = list(scored.samples)
        silent = scored.signal.count(False)
        groups_made = max(len(scored.signal), 1)
        for round_ in range(1, self.dynamic_rounds + 1):
            missing = self._broadcast(scored.signal.count(False) if self.accelerator.is_main_process else 0)
            if missing == 0:
                break
            self._round = round_
            each = -(-missing // world)
            indices = self._other_rows(each * world, round_)
            mine = indices[self.accelerator.process_index * each :][:each]
            extra = self._collect([self.train_dataset[i] for i in mine for _ in range(group)])  # type: ignore[index]
            if self.accelerator.is_main_process:
                # What equal shares made too many is left out: the batch does not depend on the number of processes.
                extra = Scored(extra.samples[: missing * group], extra.signal[:missing])
                generated += extra.samples
                silent += extra.signal.count(False)
                groups_made += missing
                _replace_silent(scored, extra, group)
        self._round = 0
        if self.dynamic_rounds and self.accelerator.is_main_process:
            rows = [g * group + r for g, signal in enumerate(scored.signal) if not signal for r in range(group)]
            silence(scored.samples, rows)
        return scored, generated, silent / groups_made

    def _other_rows(self, n: int, round_: int) -> list[int]:
        """Rows of the dataset for another round, the same on every process."""
        seed = [self.args.seed, self.state.global_step, round_]
        return np.random.default_rng(seed).integers(0, len(self.train_dataset), n).tolist()  # type: ignore[arg-type]

    @contextlib.contextmanager
    def _acting(self) -> Iterator[None]:
        """The policy as the agent needs it: in eval mode, which also switches gradient checkpointing off."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(training)

    def merged(self, *, gradient: bool = False) -> contextlib.AbstractContextManager[Any]:
        """Adapters that multiply once (`merged`), where weights are whole on this process."""
        if not self.has_adapters or self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return contextlib.nullcontext()
        return merged_weights(self.accelerator.unwrap_model(self.model), gradient=gradient)

    def _complete(self, samples: list[Sample]) -> None:
        """Reference log-probs, step embeddings, and behaviour log-probs where the environment gave none."""
        with self.phases("logprobs"), self._acting():
            if any(s.logprobs is None for s in samples):
                self.frozen.behaviour(samples)
            if self.beta != 0.0 or self._wants_embeddings():
                self.frozen.reference(samples, embeddings=self._wants_embeddings())

    def _wants_embeddings(self) -> bool:
        config = getattr(self.orchestrator, "config", None)
        return config is not None and config.needs_embeddings and self.orchestrator.embedder is None

    # ------------------------------------------------------------------------------------------------- processes

    def _gather(self, samples: list[Sample]) -> list[Sample]:
        return samples if self.accelerator.num_processes == 1 else gather_object(samples)

    def _broadcast(self, value: Any) -> Any:
        if self.accelerator.num_processes == 1:
            return value
        return broadcast_object_list([value])[0]

    def _distribute(self, batch: list[Sample], rows: int) -> list[Sample]:
        """Each process's slice of the batch."""
        if self.accelerator.num_processes == 1:
            return batch
        stripped = [_without_records(s) for s in batch]
        start = self.accelerator.process_index * rows
        return self._broadcast(stripped)[start : start + rows]

    # ------------------------------------------------------------------------------------------------- tensors

    def _tensors(self, samples: list[Sample]) -> dict[str, Any]:
        """This process's samples as the loss wants them, on its device."""
        device = self.accelerator.device
        length = max(len(s) for s in samples)
        pad_id: Any = self._tokenizer.pad_token_id
        ids = pad_rows([s.token_ids for s in samples], length, pad_id, torch.long).to(device)
        attention = pad_rows([np.ones(len(s)) for s in samples], length, 0, torch.long).to(device)
        agent = pad_rows([s.agent_mask for s in samples], length, 0, torch.long).to(device)
        agent[:, 0] = 0  # nothing comes before a first token: it has no log-prob
        output: dict[str, Any] = {
            "prompt_ids": ids[:, :0],
            "prompt_mask": attention[:, :0],
            "completion_ids": ids,
            "completion_mask": attention,
            "tool_mask": agent,
            "prompt_completion_ids": ids,
            "attention_mask": attention,
            "agent_token_mask": agent,
            "advantages": pad_rows([s.advantages for s in samples], length, 0.0, torch.float32).to(device),
            "old_per_token_logps": pad_rows([s.logprobs for s in samples], length, 0.0, torch.float32).to(device),
            "num_items_in_batch": self.accelerator.gather(agent.sum()).sum(),
        }
        if self.beta != 0.0:
            output["ref_per_token_logps"] = pad_rows([s.ref_logprobs for s in samples], length, 0.0, torch.float32).to(
                device
            )
            if self.replay is not None:
                output["fresh"] = torch.tensor([not s.replayed for s in samples], device=device)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """As TRL's, but rows keep their order: groups stay together, so that a micro-batch encodes a prompt once.

        The optimiser step sums over all micro-batches, so their order within it is of no consequence; batches that
        are spread over several optimiser steps are shuffled by whole groups.
        """
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        every = self.args.steps_per_generation * self.num_iterations
        if self._step % every == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            if self.args.steps_per_generation > self.args.gradient_accumulation_steps:
                batch = _shuffle_groups(batch, self.num_generations)
            self._buffered_inputs = _split(batch, self.args.steps_per_generation)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    # ------------------------------------------------------------------------------------------------- loss (R3)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
        """One micro-batch: rollouts when they are due, forward, backward."""
        if self._step_began is None:
            self._step_began = time.perf_counter()
        counted = ("generate", "environment", "reward", "logprobs", "policy", "scoring")
        before, began = sum(self.phases.seconds(p) for p in counted), time.perf_counter()
        self._in_step = True
        try:
            with contextlib.ExitStack() as stack:
                self._stack = stack
                loss = super().training_step(model, inputs, num_items_in_batch)
        finally:
            self._in_step, self._packing = False, None
        self.phases._settle()
        others = sum(self.phases.seconds(p) for p in counted) - before
        self.phases.add("backward", max(time.perf_counter() - began - others, 0.0))
        return loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """TRL's loss over the agent's tokens of whole trajectories; every other token is masked out of each term."""
        base = self._base_model()
        checkpointing = base.is_activation_checkpointing and model.training
        # A packed forward that is checkpointed must still be packed in the backward pass: inside a step it is.
        use_packed = self.packed and (self._in_step or not checkpointing)
        self._loss_inputs = inputs
        with contextlib.ExitStack() as local, self.phases("logprobs"):
            if use_packed:
                self._packing = _packing(inputs)
                whole = self._stack if self._in_step else local
                whole.enter_context(packed_mode(base))
                whole.enter_context(self.merged(gradient=True))
            try:
                loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            finally:
                self._packing = self._loss_inputs = None
        if self.beta != 0.0 and self._kl_of_rollouts is not None:
            self._metrics["train" if self.model.training else "eval"]["kl"] = [self._kl_of_rollouts]
        return loss

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
        if self._packing is not None:
            with self.accelerator.autocast():
                out = model(packing=self._packing, entropy_grad=self._entropy_bonus_enabled)
            logps = self._packing.pad(out.logprobs)
            self._without_kl_of_replayed(logps)
            return logps, self._packing.pad(out.entropy), None
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
            logps = torch.nn.functional.pad(logps, (1, 0))
            entropies = None if entropies is None else torch.nn.functional.pad(entropies, (1, 0))
        self._without_kl_of_replayed(logps)
        return logps, entropies, aux

    def _without_kl_of_replayed(self, logps: Tensor) -> None:
        """Let the reference of replayed rows be the policy itself: no KL and no gradient of it, which TRL takes next.

        The k3 estimate holds for samples of the present policy. Rows are replayed because they were surprising: on a
        token that is improbable by now it is exp(many nats), also when weighted by the ratio, since such rows are
        drawn again and again.
        """
        inputs = self._loss_inputs
        if inputs is not None and "fresh" in inputs:
            inputs["ref_per_token_logps"] = torch.where(
                inputs["fresh"][:, None], inputs["ref_per_token_logps"], logps.detach()
            )

    # ------------------------------------------------------------------------------------------------- metrics

    def _log_rollouts(self, samples: Sequence[Sample], mode: str) -> None:
        """TRL's own metrics, from the rollouts: reward, lengths, token counts."""
        rewards = np.array([s.step_rewards.sum() for s in samples], dtype=np.float64)
        lengths = np.array([int(s.agent_mask.sum()) for s in samples], dtype=np.float64)
        spread = (
            rewards.reshape(-1, self.num_generations).std(1) if len(rewards) % self.num_generations == 0 else rewards
        )
        if mode == "train":
            self.state.num_input_tokens_seen += sum(len(s) for s in samples)
        self._metrics[mode]["num_tokens"] = [float(self.state.num_input_tokens_seen)]
        for name, value in {
            "reward": rewards.mean(),
            "reward_std": rewards.std(),
            "frac_reward_zero_std": float((spread < 1e-8).mean()),
            "environment_reward": np.mean([s.final_reward for s in samples]),
            "completions/mean_length": lengths.mean(),
            "completions/min_length": lengths.min(),
            "completions/max_length": lengths.max(),
        }.items():
            self._metrics[mode][name].append(float(value))
        for sample in samples:
            if sample.trajectory is not None:
                self._logs["prompt"].append(sample.trajectory.prompt)
                self._logs["completion"].append("\n".join(s.text for s in sample.trajectory.steps))
                self._logs["rewards"]["total"].append(float(sample.step_rewards.sum()))
                self._logs["advantages"].append(_mean_advantage(sample))

    def step_seconds(self) -> float:
        """Seconds since the current optimiser step began; the next call counts from the next step."""
        began, self._step_began = self._step_began, None
        return 0.0 if began is None else time.perf_counter() - began

    def forget_time(self, seconds: float) -> None:
        """Time that was spent inside a step and is not the step's: an evaluation, a pause."""
        if self._step_began is not None:
            self._step_began += seconds

    # ------------------------------------------------------------------------------------------------- models

    def _base_model(self) -> Any:
        """The causal language model itself, without DDP and PEFT around it."""
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if self.has_adapters else model

    def _frozen_copy(self, reference: Any) -> Any:
        """A copy of the policy as reference model, with TRL's scoring head."""
        reference.requires_grad_(False).eval()
        add_fused_lm_head(reference, temperature=self.temperature)
        return self.accelerator.prepare_model(reference, evaluation_mode=True)

    def _save_beta(self, folder: Path) -> None:
        (folder / "beta.json").write_text(json.dumps(self.beta_controller.state_dict()))

    def _load_beta(self, folder: Path) -> None:
        self.beta_controller.load_state_dict(json.loads((folder / "beta.json").read_text()))
        self.beta = self.beta_controller.beta

    def _send_telemetry(self) -> None:
        """Training says nothing to anybody."""


def kl_of_rollouts(samples: Sequence[Sample]) -> float:
    """Reverse KL(π ‖ π_ref) in nats per token: the mean of log π − log π_ref (k1) over the agent's tokens.

    This is the KL that is logged and that beta follows, in the place of TRL's, which is k3 over the batch. That batch
    is a selection (groups with signal, replayed rows), where the policy is at its least typical. And where a policy
    has become sure, most of k3 sits in tokens that are hardly ever sampled: it reads low until one of them is, and
    then shows that token alone. k1 over all rollouts has neither fault.
    (Schulman, "Approximating KL divergence", 2020.)
    """
    total, count = 0.0, 0
    for sample in samples:
        if sample.logprobs is not None and sample.ref_logprobs is not None:
            mask = sample.agent_mask.astype(bool).copy()
            mask[:1] = False  # nothing comes before a first token
            total += float((sample.logprobs - sample.ref_logprobs)[mask].sum(dtype=np.float64))
            count += int(mask.sum())
    return total / max(count, 1)


def _sharded_weights(args: GRPOConfig) -> bool:
    """With FSDP or DeepSpeed a reference must be loaded and prepared by TRL."""
    return bool(args.deepspeed) or str(args.distributed_state.distributed_type).endswith(("FSDP", "DEEPSPEED"))  # type: ignore[union-attr]


def _packing(inputs: Mapping[str, Any]) -> Packing:
    if "packing" in inputs:
        return inputs["packing"]
    ids, attention = inputs["completion_ids"], inputs["completion_mask"].bool()
    mask = (inputs["tool_mask"].bool() & attention).cpu().numpy()
    lengths = attention.sum(1).tolist()
    rows = ids.cpu().numpy()
    packing = pack(
        [row[:n] for row, n in zip(rows, lengths, strict=True)],
        [row[:n] for row, n in zip(mask, lengths, strict=True)],
        ids.shape[1],
    )
    return packing.to(ids.device)


def _split(batch: dict[str, Any], parts: int) -> list[dict[str, Any]]:
    """A batch as `parts` equal ones; scalars go into each."""
    rows = batch["completion_ids"].shape[0]
    size = rows // parts
    return [
        {k: v[i * size : (i + 1) * size] if v.ndim else v for k, v in batch.items()} for i in range(parts)
    ]  # fmt: skip


def _shuffle_groups(batch: dict[str, Any], group: int) -> dict[str, Any]:
    rows = batch["completion_ids"].shape[0]
    order = torch.randperm(rows // group)[:, None] * group + torch.arange(group)
    return {k: v[order.flatten().to(v.device)] if v.ndim else v for k, v in batch.items()}


def _replace_silent(scored: Scored, extra: Scored, group: int) -> None:
    """Put the groups of `extra` that have signal where `scored` has groups without."""
    fresh = [g for g, signal in enumerate(extra.signal) if signal]
    for place, signal in enumerate(scored.signal):
        if signal or not fresh:
            continue
        g = fresh.pop(0)
        scored.samples[place * group : (place + 1) * group] = extra.samples[g * group : (g + 1) * group]
        scored.signal[place] = True


def _without_records(sample: Sample) -> Sample:
    """Only what the loss needs, for the way to another process."""
    slim = copy.copy(sample)
    slim.trajectory = slim.breakdown = slim.embeddings = None
    return slim


def _mean_advantage(sample: Sample) -> float:
    if sample.advantages is None or not sample.agent_mask.any():
        return 0.0
    return float(sample.advantages[sample.agent_mask].mean())
