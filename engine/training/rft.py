"""`--mode rft`: reinforcement fine-tuning with GRPO (arXiv 2402.03300)."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.grpo_config import GRPOConfig

from ...configs.model_defaults import steps_of
from ...configs.schema import RunConfig
from ...configs.sections.data import holds_tasks
from ...configs.sections.training import TRL_LOSSES
from ...rewards.diagnosis import Diagnosis
from ...rewards.orchestrator import RewardOrchestrator
from ..agents.chat_agent import ChatAgent
from ..policy.activations import bytes_of_token, room, spare_memory
from ..policy.kl import BetaController
from ..policy.memory import micro_batch
from ..policy.models import save_policy
from ..policy.sources import foreign_template
from ..policy.unwrap import base_of, device_of
from ..record.reporters import reported
from ..record.step_recorder import StepRecorder
from ..rollouts.advantages import advantage_method
from ..rollouts.correction import Weighting
from ..rollouts.dataset import load_rows
from ..rollouts.distillation import Distillation
from ..rollouts.judging import make_judge, special_texts
from ..rollouts.prompts import check_tasks, fitting, unread_calls
from ..rollouts.replay import ReplayBuffer
from ..rollouts.runner import RolloutRunner, Row, prepares
from ..runs.control.requests import ControlChannel
from ..runs.write.writer import RecordWriter
from . import TrainingError, checkpoints
from .acting import load_agent, served
from .callbacks import RunCallbacks
from .callbacks.beta import AutomaticBeta
from .callbacks.findings import Findings
from .callbacks.recording import GRPORecording
from .checkpoints import Start
from .env_trainer import GRPOEnvTrainer
from .losses import own_loss
from .pass_rates import draw_by_difficulty
from .pipeline import RolloutOptions
from .processes import take_sharding
from .resumable import StatePart
from .run import begin_at, common_arguments, save_result, trl_arguments
from .sharding import whole
from .teacher import open_teacher

logger = logging.getLogger(__name__)


def run_rft(
    config: RunConfig,
    run_dir: Path,
    writer: RecordWriter,
    control: ControlChannel | None = None,
    start: Start | None = None,
) -> bool:
    """Train, and save the adapters in a folder of the run, linked from `training.output_dir`. Returns False if stopped
    early, else True.

    writer: the run's record. control: requests from users. start: where a resumed run continues. Raises errors whose
    message is one sentence (ModelLoadError, DataError, TrainingError, …).
    """
    start, folder = start or Start(), os.getcwd()
    recorder = StepRecorder(writer, tokens=config.logging.record_tokens)
    recorder.event("phase", "loading the model and the data", name="loading")
    trainer, callbacks = build_trainer(config, run_dir, recorder, control)
    begin_at(start, run_dir, trainer, callbacks, recorder)
    with reported(config, run_dir, recorder, trainer), served(trainer, recorder):
        trainer.train(resume_from_checkpoint=None if start.checkpoint is None else str(start.checkpoint))
    if callbacks.requests.stopped:
        return False
    saved = True
    os.chdir(folder)  # the user's code may have left it, and training.output_dir may be relative
    with whole(trainer.model):
        if trainer.accelerator.is_main_process:
            where, step = config.training.output_dir, trainer.state.global_step
            saved = save_result(partial(write_final, trainer), where, run_dir, recorder, control, step=step)
        trainer.accelerator.wait_for_everyone()
    return saved


def build_trainer(
    config: RunConfig, run_dir: Path, recorder: StepRecorder, control: ControlChannel | None = None
) -> tuple[GRPOEnvTrainer, RunCallbacks]:
    """Build the trainer and its callbacks without starting them."""
    training = config.training
    world = int(os.environ.get("WORLD_SIZE", "1"))
    sharded = take_sharding() and world > 1
    torch.manual_seed(config.seed)
    agent = load_agent(config, run_dir, trainable=True)
    tokenizer = agent.chat.tokenizer
    rows, eval_rows = _tasks(config, agent, tokenizer)
    args = _fitting_arguments(config, run_dir, world, len(rows), base_of(agent.model))
    judge = make_judge(config.environment, [*rows, *eval_rows], special_texts(tokenizer))
    orchestrator = RewardOrchestrator(config=config.rewards, seed=config.seed)
    buffer, replay = None, training.replay
    if replay.mode == "ssr":
        buffer = ReplayBuffer(replay.capacity, replay.alpha, replay.tau, replay.max_age, config.seed)
    trainer = GRPOEnvTrainer(
        agent,
        tokenizer,
        args=args,
        train_dataset=rows,
        orchestrator=orchestrator,
        options=_rollout_options(config, tokenizer, args),
        replay=buffer,
        prepare_env=prepares(config.environment, recorder.writer),
        loss=own_loss(training.loss_type),
        kl_estimator=training.kl_estimator,
    )
    trainer.runner.fresh = training.fresh
    diagnosis = Diagnosis(config.rewards.diagnosis)
    unread = unread_calls(rows, trainer.runner.environment, agent)
    for name, message in (("native_calls", unread), ("other_template", foreign_template(config.model, tokenizer))):
        if message:
            recorder.event("alert", message, detector=name, severity="warning")
            diagnosis.noted(message, 0, {"detector": name})
            logger.warning(message)
    check_tasks(rows, trainer.runner.environment, agent, training.max_trajectory_tokens)
    if judge is not None:
        trainer.runner.judge = replace(judge, state=lambda: trainer.state)
        trainer.state_parts.append(StatePart(judge.save, judge.load, everywhere=True))
    trainer.sharded = sharded
    trainer.keep_checkpoints = training.keep_checkpoints
    trainer.keep_adapters = training.keep_adapters
    save, load = (partial(f, orchestrator) for f in (checkpoints.save_rewards, checkpoints.load_rewards))
    trainer.state_parts.append(StatePart(save, load))
    if config.data.sampler == "difficulty":
        draw_by_difficulty(trainer, rows, config, run_dir, recorder)
    findings = Findings(trainer, recorder, diagnosis, run_dir)
    callbacks = _add_callbacks(findings, config, control, eval_rows)
    recorder.vocabulary(tokenizer)
    return trainer, callbacks


def _tasks(config: RunConfig, agent: ChatAgent, tokenizer: PreTrainedTokenizerBase) -> tuple[list[Row], list[Row]]:
    """Return the training and the held-out tasks, without prompts of a dataset that leave no room for an answer."""
    data = config.data
    rows, eval_rows = (
        load_rows(config.environment, split, config.seed, tokenizer, data) for split in ("train", "eval")
    )
    if data.source is not None and not holds_tasks(data.source):
        environment_of = RolloutRunner(agent, tokenizer, config.training.num_generations).environment
        rows, eval_rows = (
            fitting(r, agent, environment_of, config.training, data.long_prompts) for r in (rows, eval_rows)
        )
    return rows, eval_rows


def _fitting_arguments(
    config: RunConfig, run_dir: Path, world: int, num_rows: int, base: PreTrainedModel
) -> GRPOConfig:
    """Return TRL's arguments with micro-batches that fit in memory, and apply `model.gradient_checkpointing`."""
    tokens, checkpointing = config.training.max_trajectory_tokens, config.model.gradient_checkpointing
    limit = room(device_of(base).type) // (bytes_of_token(base) * tokens) if checkpointing == "auto" else None
    args = grpo_config(config, run_dir, world, num_rows, limit)
    spare_memory(base, checkpointing, args.per_device_train_batch_size * tokens)
    return args


def _add_callbacks(
    findings: Findings, config: RunConfig, control: ControlChannel | None, eval_rows: Sequence[Row]
) -> RunCallbacks:
    """Add the run's callbacks to the trainer of `findings`, which observe each step and each evaluation."""
    trainer, recorder, training = findings.trainer, findings.recorder, config.training
    controller = beta = None
    if training.beta_mode == "auto":
        controller = BetaController("auto", training.beta, training.target_kl, training.kl_tolerance)
        beta = AutomaticBeta(trainer, recorder, controller)
    recording = GRPORecording(trainer, recorder, controller)
    recording.observers.append(findings)
    trainer.add_callback(findings)
    callbacks = RunCallbacks(
        recording,
        trainer.runner,
        eval_rows=eval_rows,
        eval_every=training.eval_every,
        save_every=training.save_every,
        save_minutes=training.save_minutes,
        channel=control,
        seed=config.seed,
        beta=beta,
    )
    callbacks.evaluation.observers.append(findings.evaluated)
    trainer.phases.on_begin = callbacks.progress.phase
    trainer.frozen.on_progress = callbacks.progress.scored
    return callbacks


def _rollout_options(config: RunConfig, tokenizer: PreTrainedTokenizerBase, args: GRPOConfig) -> RolloutOptions:
    training, rollouts, replay = config.training, config.rollouts, config.training.replay
    taught = training.distillation
    return RolloutOptions(
        advantages=advantage_method(training.advantages, training.compare_shaping),
        min_group_std=replay.min_group_std if replay.mode != "off" else 0.0,
        signal=replay.signal if replay.mode != "off" else "reward",
        dynamic_rounds=replay.max_rounds if replay.mode == "dapo" else 0,
        mask_truncated=args.mask_truncated_completions,
        placement=training.placement,
        servers=rollouts,
        weighting=Weighting(rollouts.correction, rollouts.correction_floor, rollouts.correction_cap),
        teacher=open_teacher(config, tokenizer, args.per_device_train_batch_size),
        distillation=None if taught.teacher is None else Distillation(taught.weight, taught.with_reward),
    )


def grpo_config(config: RunConfig, run_dir: Path, world: int, num_rows: int, limit: int | None = None) -> GRPOConfig:
    """Return TRL's arguments for a run. limit: see `micro_batch`. Raises TrainingError if the processes cannot share
    the batch."""
    training = config.training
    rows = training.prompts_per_step * training.num_generations
    if rows % world:
        raise TrainingError(
            f"training.prompts_per_step * training.num_generations is {rows}, which {world} processes cannot share "
            "equally; make prompts_per_step a multiple of the number of processes"
        )
    micro = micro_batch(rows // world, training, limit)
    beta = max(training.beta, BetaController.min_beta) if training.beta_mode == "auto" else training.beta
    return trl_arguments(
        GRPOConfig,
        "training.trl",
        # A process waits a day for the rollouts of the others. If one dies, the launcher ends them all.
        {"ddp_timeout": 86_400, **training.trl},
        **common_arguments(config, run_dir),
        max_steps=steps_of(training, num_rows),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rows // world // micro,
        num_generations=training.num_generations,
        max_completion_length=training.max_trajectory_tokens,
        learning_rate=training.learning_rate,
        loss_type=training.loss_type if training.loss_type in TRL_LOSSES else TRL_LOSSES[0],
        beta=beta,
        scale_rewards=training.scale_advantages,
        temperature=training.temperature,
        bf16=config.model.quantization is not None and config.model.compute == "bfloat16",
    )


def write_final(trainer: GRPOEnvTrainer, folder: Path) -> None:
    """Save the trained adapters (or the model) for plain `from_pretrained`."""
    save_policy(trainer.accelerator.unwrap_model(trainer.model), trainer.tokenizer, folder)
    if trainer.orchestrator is not None:  # online learning continues with the same statistics
        checkpoints.save_rewards(trainer.orchestrator, folder)
