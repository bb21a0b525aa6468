"""`--mode sft`: supervised fine-tuning of adapters on demonstrations, with the loss on the agent's tokens only.

TRL's `SFTTrainer` does the training; the demonstrations come to it as tokens and labels, so it prepares nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, set_seed
from trl.trainer.sft_config import SFTConfig as TRLConfig
from trl.trainer.sft_trainer import SFTTrainer

from ...configs.schema import RunConfig
from ..agents.transformers_agent import TransformersAgent
from . import checkpoints
from .data import load_rows
from .demonstrations import Demonstration, always, play_demonstrations, read_conversations
from .evaluate import evaluate
from .models import load_policy, save_adapters
from .recording import StepRecorder
from .resumable import Resumable
from .rollouts import RolloutRunner, Row
from .sft_progress import SFTProgress

logger = logging.getLogger(__name__)


class ResumableSFTTrainer(Resumable, SFTTrainer):
    """TRL's trainer with this project's checkpoints."""


def run_sft(config: RunConfig, run_dir: Path, writer: Any, control: Any, resume: bool = False) -> bool:
    """Train adapters as `config.sft` says and save them to `config.sft.output_dir`.

    writer: the run's record (`RunWriter`; on other ranks `NullWriter`). control: a `ControlChannel`. With `resume` the
    newest checkpoint of the run is continued. Returns False when a request ended the training early; what was learned
    by then is in a checkpoint and in the adapters.

    Raises ModelLoadError, DataError, DemonstrationError, CheckpointError.
    """
    sft, run_dir = config.sft, Path(run_dir)
    set_seed(config.seed)
    writer.event("phase", "loading the model and the demonstrations", name="loading")
    model, tokenizer = load_policy(config.model, adapters=None, trainable=True)
    demonstrations = collect(config, tokenizer)
    features = [d.to_features() for d in demonstrations]
    recorder = StepRecorder(writer, tokens=config.logging.record_tokens)
    recorder.vocabulary(tokenizer)
    progress = SFTProgress(recorder, control)
    micro = sft.micro_batch_size or sft.batch_size
    trainer = ResumableSFTTrainer(
        model=model,
        args=_arguments(config, run_dir, micro),
        train_dataset=Dataset.from_list(features),
        processing_class=tokenizer,
        callbacks=[progress],
    )
    trainer.before_commit = lambda: writer.flush(timeout=30.0)
    trainer.on_save_failed = lambda message: recorder.event("record", message, step=trainer.state.global_step)
    start = checkpoints.latest(checkpoints.checkpoint_folder(run_dir)) if resume else None

    check = _Evaluation(config, trainer, tokenizer, recorder)
    if start is None:
        check.measure(0)
    writer.event("phase", f"learning from {len(demonstrations)} demonstrations", name="sft")
    trainer.train(resume_from_checkpoint=str(start[1]) if start else None)
    step = trainer.state.global_step
    if trainer.last_checkpoint is None or not trainer.last_checkpoint.name.endswith(f"-{step}"):
        trainer._save_checkpoint(trainer.model, None)

    if not progress.stopped:
        check.measure(step)
    if trainer.accelerator.is_main_process:
        folder = save_adapters(trainer.accelerator.unwrap_model(trainer.model), sft.output_dir)
        recorder.event("checkpoint", f"saved the adapters to {folder}", step=step, path=str(folder))
    trainer.accelerator.wait_for_everyone()
    return not progress.stopped


def collect(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> list[Demonstration]:
    """The demonstrations that `config` asks for: a file of conversations, or played in the environments of the rows.

    Raises DataError or DemonstrationError.
    """
    sft = config.sft
    if sft.data is not None:
        return read_conversations(sft.data, tokenizer, max_tokens=sft.max_tokens)
    environment = config.environment.model_copy(update={"train_tasks": sft.demonstrations})
    rows = load_rows(environment, "train", config.seed, tokenizer)[: sft.demonstrations]
    runner = RolloutRunner(agent=None, tokenizer=tokenizer, num_rollouts=1)  # type: ignore[arg-type]
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    found: list[Demonstration] = []
    for group in groups.values():
        found += play_demonstrations(
            runner.environment(group[0]),
            [row.task_data for row in group],
            tokenizer,
            choose=always(sft.route),
            seed=config.seed,
            max_tokens=sft.max_tokens,
        )
    return found


def _arguments(config: RunConfig, run_dir: Path, micro: int) -> TRLConfig:
    sft, cpu = config.sft, config.model.device == "cpu"
    return TRLConfig(
        output_dir=str(checkpoints.checkpoint_folder(run_dir)),
        num_train_epochs=sft.epochs,
        max_steps=sft.max_steps or -1,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=max(1, sft.batch_size // micro),
        learning_rate=sft.learning_rate,
        lr_scheduler_type=sft.lr_scheduler,
        warmup_steps=sft.warmup_steps,
        weight_decay=sft.weight_decay,
        max_grad_norm=sft.max_grad_norm,
        gradient_checkpointing=config.model.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=False,  # the model's own dtype decides; mixing in another would change what is measured
        use_cpu=cpu,
        seed=config.seed,
        logging_steps=1,
        logging_strategy="steps",
        save_strategy="steps" if sft.save_every else "no",
        save_steps=sft.save_every or 1,
        report_to=[],
        disable_tqdm=True,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        dataloader_num_workers=0,
    )


class _Evaluation:
    """Success on held-out tasks, greedy and at temperature 1, where the environment has such tasks."""

    def __init__(
        self, config: RunConfig, trainer: SFTTrainer, tokenizer: PreTrainedTokenizerBase, recorder: StepRecorder
    ):
        self.config = config
        self.trainer = trainer
        self.tokenizer = tokenizer
        self.recorder = recorder
        n = config.sft.eval_tasks
        environment = config.environment.model_copy(update={"eval_tasks": n})
        self.rows = load_rows(environment, "eval", config.seed, tokenizer)[:n] if n and config.sft.data is None else []

    def measure(self, step: int) -> None:
        """Measure and record."""
        if not self.rows:
            return
        accelerator, training = self.trainer.accelerator, self.config.training
        agent = TransformersAgent(
            accelerator.unwrap_model(self.trainer.model),
            self.tokenizer,
            max_turn_tokens=training.max_turn_tokens,
            max_trajectory_tokens=training.max_trajectory_tokens,
        )
        runner = RolloutRunner(agent=agent, tokenizer=self.tokenizer, num_rollouts=1)
        values: dict[str, float] = {}
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            result = evaluate(runner, self.rows, temperature=temperature, seed=self.config.seed, step=step)
            values[name] = result.success
            self.recorder.trajectories(step, result.samples, "eval")
        self.recorder.values(step, {f"success/eval_{name}": value for name, value in values.items()})
        self.recorder.event(
            "eval",
            f"held-out success at step {step}: {values['greedy']:.2f} greedy, {values['sampled']:.2f} at temperature 1",
            step=step,
            split="eval",
            n=len(self.rows),
            **values,
        )
