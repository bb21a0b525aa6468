"""`--mode sft`: supervised fine-tuning of adapters on demonstrations, with the loss on the agent's tokens only.

TRL's `SFTTrainer` does the training. It gets demonstrations as tokens and labels, so it prepares nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerBase, PrinterCallback, set_seed
from trl.trainer.sft_config import SFTConfig as TRLConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from ...configs.errors import count
from ...configs.schema import RunConfig
from ...envs.base import Env
from ..agents.transformers_agent import TransformersAgent
from ..policy.activations import spare_memory
from ..policy.models import load_policy, load_vision, save_policy
from ..policy.unwrap import base_of
from ..policy.vision.inputs import Images, VisionModel
from ..policy.vision.processor import VisionProcessor
from ..record.reporters import reported
from ..record.step_recorder import StepRecorder
from ..rollouts.dataset import load_rows
from ..rollouts.runner import RolloutRunner, Row
from ..runs.control.requests import ControlChannel
from ..runs.write.writer import RecordWriter
from .callbacks import RunCallbacks
from .callbacks.recording import SFTRecording
from .checkpoints import Start
from .demonstrations import Demonstration, always, play_demonstrations, read_conversations
from .resumable import Resumable
from .run import begin_at, common_arguments, save_result, trl_arguments


class ResumableSFTTrainer(Resumable, SFTTrainer):
    """TRL's trainer with this project's checkpoints, which also takes conversations with images."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *more: Any, **options: Any) -> Any:
        """Encode the images inside the loss, because the vision tower may be trained."""
        images = inputs.pop("images", None)
        if (
            images is not None
            and (vision_model := VisionModel.of(base_of(self.accelerator.unwrap_model(model)))) is not None
        ):
            inputs |= vision_model.padded(inputs["input_ids"], images)
        return super().compute_loss(model, inputs, *more, **options)


def with_images(
    padded: DataCollatorForLanguageModeling, images: Sequence[Images], examples: list[dict[str, Any]]
) -> dict[str, object]:
    """Right-pad rows of `Demonstration.to_features`, each with its `number`, and add `images` [B] if there are any.

    images: the images of each conversation.
    """
    shown = [images[example.pop("number")] for example in examples]
    return {**padded(examples), **({"images": shown} if any(shown) else {})}


def run_sft(
    config: RunConfig,
    run_dir: Path,
    writer: RecordWriter,
    control: ControlChannel | None = None,
    start: Start | None = None,
) -> bool:
    """Train adapters by `config.sft` and save them to a folder of the run, linked from `sft.output_dir`; see `run_rft`.

    Returns False if a request ended the training early; a checkpoint and the adapters then hold the state.
    """
    sft, run_dir, start = config.sft, Path(run_dir), start or Start()
    set_seed(config.seed)
    recorder = StepRecorder(writer, tokens=config.logging.record_tokens)
    recorder.event("phase", "loading the model and the demonstrations", name="loading")
    model, tokenizer = load_policy(config.model, adapters=None, trainable=True)
    args = _arguments(config, run_dir)
    spare_memory(base_of(model), config.model.gradient_checkpointing, args.per_device_train_batch_size * sft.max_tokens)
    vision = load_vision(config.model, model, tokenizer)
    recorder.vocabulary(tokenizer)
    agent = TransformersAgent(
        model,
        tokenizer,
        vision=vision,
        max_turn_tokens=config.training.max_turn_tokens,
        max_trajectory_tokens=config.training.max_trajectory_tokens,
        template_kwargs=config.model.chat_template_kwargs,
        native_calls=False,  # demonstrations are written in JSON
    )
    demonstrations = collect(config, tokenizer, agent.knows, vision)
    recorder.event("phase", f"learning from {count(len(demonstrations), 'demonstration')}", name="sft")
    assert isinstance(tokenizer.pad_token_id, int)  # set for every loaded tokenizer
    padded = DataCollatorForLanguageModeling(tokenizer.pad_token_id)
    trainer = ResumableSFTTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list([{**d.to_features(), "number": i} for i, d in enumerate(demonstrations)]),
        data_collator=None if vision is None else partial(with_images, padded, [d.images for d in demonstrations]),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)  # the recording writes its own lines
    callbacks = RunCallbacks(
        SFTRecording(trainer, recorder),
        RolloutRunner(agent=agent, tokenizer=tokenizer, num_rollouts=1),
        eval_rows=_held_out(config, tokenizer),
        save_every=sft.save_every,
        save_minutes=sft.save_minutes,
        channel=control,
        seed=config.seed,
    )
    begin_at(start, run_dir, trainer, callbacks, recorder)
    with reported(config, run_dir, recorder, trainer):
        trainer.train(resume_from_checkpoint=None if start.checkpoint is None else str(start.checkpoint))
    saved, finished = True, not callbacks.requests.stopped
    if trainer.accelerator.is_main_process:
        write = partial(save_policy, trainer.accelerator.unwrap_model(trainer.model), tokenizer)
        step = trainer.state.global_step
        saved = save_result(write, sft.output_dir, run_dir, recorder, control, step=step, finished=finished)
    trainer.accelerator.wait_for_everyone()
    return saved and finished


def collect(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    knows: Callable[[str], bool],
    vision: VisionProcessor | None = None,
) -> list[Demonstration]:
    """Read demonstrations from a file of conversations, or play them in the environments of the rows. Raises DataError
    or TrainingError. knows, vision: see `play_demonstrations`."""
    sft = config.sft
    if sft.data is not None:
        return read_conversations(
            sft.data,
            tokenizer,
            max_tokens=sft.max_tokens,
            template_kwargs=config.model.chat_template_kwargs,
            vision=vision,
        )
    environment = config.environment.model_copy(update={"train_tasks": sft.demonstrations})
    rows = load_rows(environment, "train", config.seed, tokenizer, config.data)[: sft.demonstrations]
    runner = RolloutRunner(agent=None, tokenizer=tokenizer, num_rollouts=1)  # type: ignore[arg-type]
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    found: list[Demonstration] = []
    for group in groups.values():
        found += play_demonstrations(
            cast(Env, runner.environment(group[0])),
            [row.task_data for row in group],
            tokenizer,
            choose=always(sft.route),
            seed=config.seed,
            max_tokens=sft.max_tokens,
            knows=knows,
            template_kwargs=config.model.chat_template_kwargs,
            vision=vision,
        )
    return found


def _arguments(config: RunConfig, run_dir: Path) -> TRLConfig:
    sft = config.sft
    micro = sft.micro_batch_size or sft.batch_size
    return trl_arguments(
        TRLConfig,
        "sft.trl",
        sft.trl,
        **common_arguments(config, run_dir),
        num_train_epochs=sft.epochs,
        max_steps=sft.max_steps or -1,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=max(1, sft.batch_size // micro),
        learning_rate=sft.learning_rate,
        bf16=False,  # the model computes in its loaded format (`policy.precision`)
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )


def _held_out(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """Return the tasks on which to measure success. A file of conversations names no environment, so its tasks count
    only if the configuration asks for some."""
    n = config.sft.eval_tasks
    n = (64 if config.sft.data is None else 0) if n is None else n
    environment = config.environment.model_copy(update={"eval_tasks": n})
    return load_rows(environment, "eval", config.seed, tokenizer, config.data)[:n]
