"""Record the arithmetic of a TRL trainer's updates for `grpo-tui check --recompute`.

For each micro-batch, `LossTap` reads the inputs of the loss, the loss, and its gradient with respect to each token's
log-prob. It wraps two methods of the trainer and adds hooks that return nothing, so training is identical to the bit.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, SupportsFloat

import numpy as np
from torch import Tensor

from grpo_tui.engine.runs.updates import Block, UpdateLog

LOSS = "_compute_loss"
LOG_PROBS = "_get_per_token_logps_and_entropies"
SETTINGS = (
    "loss_type", "beta", "epsilon", "epsilon_high", "delta", "importance_sampling_level", "scale_rewards",
    "multi_objective_aggregation", "reward_weights", "num_generations", "gradient_accumulation_steps",
    "steps_per_generation", "num_iterations", "max_completion_length", "mask_truncated_completions",
    "top_entropy_quantile", "use_bias_correction_kl", "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos",
    "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg", "off_policy_mask_threshold", "entropy_coef",
    "use_adaptive_entropy", "use_vllm", "vllm_importance_sampling_correction", "sync_ref_model", "use_liger_kernel",
    "bf16", "fp16", "max_steps",
)  # fmt: skip
"""`GRPOConfig` settings that the arithmetic depends on."""
LOGPS = ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio")
BATCH = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages")
METHODS = ("_generate_and_score_completions", "_prepare_inputs", LOSS, LOG_PROBS, "training_step", "log")


@dataclass
class MicroBatch:
    """A micro-batch between its loss and the end of its backward pass. step: the optimiser step."""

    step: int
    loss: Tensor
    logps: Tensor
    entropies: Tensor | None
    inputs: Mapping[str, Any]
    metrics: Mapping[str, float]
    accumulated: int
    gradient: Tensor | None = None
    scale: list[Tensor] = field(default_factory=list)
    """The gradient with respect to the loss itself: 1, or the factor of a loss scaler."""


class LossTap:
    """Reads the updates of one trainer. attached: its `grpo_tui.trl.Attached`."""

    def __init__(self, trainer: Any, attached: Any) -> None:
        self.trainer = trainer
        self.attached = attached
        self._log: UpdateLog | None = None
        self._inside = False
        self._captured: tuple[Tensor, Tensor | None] | None = None
        self._pending: MicroBatch | None = None
        self._known: dict[bytes, list[tuple[str, float]]] = {}
        """Maps prompt and completion of a rollout of the last generation to its (id, advantage) pairs."""
        self._tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self._pad = -1 if self._tokenizer.pad_token_id is None else int(self._tokenizer.pad_token_id)
        if callable(getattr(trainer, LOSS, None)) and callable(getattr(trainer, LOG_PROBS, None)):
            setattr(trainer, LOSS, self._loss(getattr(trainer, LOSS)))
            setattr(trainer, LOG_PROBS, self._log_probs(getattr(trainer, LOG_PROBS)))

    def generated(self, step: int, ids: Sequence[str], batch: Mapping[str, Any], before: Mapping[str, int]) -> None:
        """Record the rollouts that this process sampled and scored as one batch. ids: in batch order. before: the
        `counts` before sampling."""
        self._guarded(lambda: self._generated(step, ids, batch, before))

    def _generated(self, step: int, ids: Sequence[str], batch: Mapping[str, Any], before: Mapping[str, int]) -> None:
        self.flush()
        recorder = self.attached.recorder
        if self._log is None:
            rank = self.attached.rank
            self._log = UpdateLog(recorder.run_dir, "training" if rank == 0 else f"rank{rank}")
            settings = Block("settings", step, settings_of(self.trainer))
            recorder.later(lambda: self._write(settings))
        metrics = self._new_metrics(before)
        tensors = {name: _cpu(batch[name]) for name in BATCH if name in batch}
        items = _number(batch.get("num_items_in_batch"))
        recorder.later(lambda: self._write_generation(step, ids, tensors, items, metrics))

    def flush(self) -> None:
        """Record the last micro-batch. Its backward pass must have ended."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        inputs = {name: _cpu(pending.inputs[name]) for name in (*BATCH, *LOGPS) if name in pending.inputs}
        read = {"logps": pending.logps, "entropies": pending.entropies, "gradient": pending.gradient}
        found = {name: _cpu(value) for name, value in read.items() if value is not None}
        numbers = {
            "loss": _number(pending.loss),
            "scale": _number(pending.scale[0]) if pending.scale else None,
            "items": _number(pending.inputs.get("num_items_in_batch")),
            "accumulated": pending.accumulated,
            "dtype": str(pending.logps.dtype).removeprefix("torch."),
            "metrics": dict(pending.metrics),
        }
        self.attached.recorder.later(lambda: self._write_loss(pending.step, inputs, found, numbers))

    def logged(self, step: int, logs: Mapping[str, object]) -> None:
        """Record the metrics that the trainer logs."""
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        self.attached.recorder.later(lambda: self._write(Block("log", step, {"metrics": numbers})))

    def close(self) -> None:
        """Record the rest. If this trainer trains again, that training gets its own file."""
        self.flush()
        self.attached.recorder.later(self._end_log)  # after the queued blocks

    def _end_log(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def _loss(self, compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(compute)
        def compute_and_note(model: object, inputs: Mapping[str, Any], *more: object, **options: object) -> Tensor:
            if not self.trainer.model.training:
                return compute(model, inputs, *more, **options)
            self._guarded(self.flush)
            before, self._inside, self._captured = self.counts(), True, None
            try:
                loss = compute(model, inputs, *more, **options)
            finally:
                self._inside = False
            self._guarded(lambda: self._note(loss, inputs, before))
            return loss

        return compute_and_note

    def _log_probs(self, compute: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(compute)
        def compute_and_keep(*given: object, **options: object) -> object:
            result = compute(*given, **options)
            if self._inside and self._captured is None and isinstance(result, tuple) and result[0].requires_grad:
                self._captured = result[0], result[1]
            return result

        return compute_and_keep

    def _note(self, loss: Tensor, inputs: Mapping[str, Any], before: Mapping[str, int]) -> None:
        captured, self._captured = self._captured, None
        if captured is None or not loss.requires_grad:
            return
        logps, entropies = captured
        noted = self._pending = MicroBatch(
            step=int(self.trainer.state.global_step) + 1,
            loss=loss.detach(),
            logps=logps.detach(),
            entropies=None if entropies is None else entropies.detach(),
            inputs=inputs,
            metrics=self._new_metrics(before),
            accumulated=int(getattr(self.trainer, "current_gradient_accumulation_steps", 1)),
        )
        logps.register_hook(lambda gradient: setattr(noted, "gradient", gradient.detach().clone()))
        loss.register_hook(lambda gradient: noted.scale.append(gradient.detach().clone()))

    def counts(self) -> dict[str, int]:
        """Return the number of values of each metric since the last log."""
        return {name: len(values) for name, values in _lists(self.trainer).items()}

    def _new_metrics(self, before: Mapping[str, int]) -> dict[str, float]:
        """Return the metrics added since `before`, by name."""
        lists = _lists(self.trainer)
        return {name: float(values[-1]) for name, values in lists.items() if len(values) > before.get(name, 0)}

    def _guarded(self, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        try:
            work()
        except Exception as error:
            self.attached.recorder.failed(error)
        self.attached.seconds += time.perf_counter() - started

    def _write(self, block: Block) -> None:
        if self._log is not None:
            self._log.write(block)

    def _write_generation(
        self,
        step: int,
        ids: Sequence[str],
        tensors: Mapping[str, np.ndarray],
        items: float | None,
        metrics: Mapping[str, float],
    ) -> None:
        pad, eos = self._pad, {*getattr(self.trainer, "eos_token_ids", [self._tokenizer.eos_token_id])}
        self._known = {}
        lengths, ended = [], []
        mask = tensors["completion_mask"]
        trained = mask * tensors.get("tool_mask", 1)
        for i, id_ in enumerate(ids):
            completion = tensors["completion_ids"][i]
            length = _length(completion, pad)
            last = completion[length : length + 1] if pad in eos else completion[max(length - 1, 0) : length]
            lengths.append(length)
            ended.append(bool(last.size) and int(last[0]) in {*eos, pad})
            self._known.setdefault(_key(tensors, i, pad), []).append((id_, float(np.mean(tensors["advantages"][i]))))
        data = {
            "ids": list(ids), "lengths": lengths, "in_mask": mask.sum(-1).tolist(), "in_loss": trained.sum(-1).tolist(),
            "ended": ended, "items": items, "metrics": dict(metrics), "pad_is_eos": pad in eos,
            "tools": "tool_mask" in tensors,
        }  # fmt: skip
        self._write(Block("generation", step, data))

    def _write_loss(
        self,
        step: int,
        inputs: Mapping[str, np.ndarray],
        found: Mapping[str, np.ndarray],
        numbers: Mapping[str, object],
    ) -> None:
        """Record the rows of a micro-batch, each with the unmasked tokens of its completion."""
        rows, valid = [], inputs["completion_mask"].astype(bool)
        advantages, entropies = inputs["advantages"], found.get("entropies")
        gradient = found.get("gradient", np.zeros(valid.shape, np.float32))
        counted = valid * inputs.get("tool_mask", 1)
        taken: set[str] = set()
        for i in range(len(valid)):
            advantage = float(np.mean(advantages[i]))
            candidates = self._known.get(_key(inputs, i, self._pad), [])
            free = [c for c in candidates if c[0] not in taken] or candidates
            id_ = min(free, key=lambda c: abs(c[1] - advantage), default=("", 0.0))[0]
            taken.add(id_)
            outside = float(np.abs(gradient[i][~valid[i]]).sum())
            entropy = None if entropies is None else float((entropies[i] * counted[i]).sum(dtype=np.float64))
            tokens = int(valid[i].sum())
            rows.append({"id": id_, "advantage": advantage, "tokens": tokens, "outside": outside, "entropy": entropy})
        arrays: dict[str, Any] = {"logps": found["logps"][valid], "gradient": gradient[valid]}
        if entropies is not None and float(getattr(self.trainer.args, "top_entropy_quantile", 1.0)) < 1.0:
            arrays["entropies"] = entropies[valid]
        if "tool_mask" in inputs:
            arrays["mask"] = inputs["tool_mask"][valid].astype(np.float32)
        for name in LOGPS:
            if name in inputs:
                values = inputs[name]
                values = np.broadcast_to(values, valid.shape) if values.ndim == 2 else values
                arrays[name] = values[valid]
        data = {**numbers, "rows": rows, "by_token": advantages.ndim > 1}
        self._write(Block("loss", step, data, {k: v.astype(np.float32) for k, v in arrays.items()}))


def settings_of(trainer: Any) -> dict[str, object]:
    """Return the declared settings, TRL's version, and the methods that a subclass overrides."""
    args = trainer.args
    found = {name: _plain(getattr(args, name)) for name in SETTINGS if hasattr(args, name)}
    subclasses = itertools.takewhile(lambda c: c.__module__.split(".")[0] != "trl", type(trainer).__mro__)
    replaced = sorted({name for c in subclasses for name in METHODS if name in vars(c)})
    dropout = any(getattr(m, "p", 0.0) for m in trainer.model.modules() if type(m).__name__ == "Dropout")
    facts = {
        "trl": metadata.version("trl"),
        "trainer": type(trainer).__name__,
        "replaced": replaced,
        "rewards": [float(w) for w in trainer.reward_weights],
        "names": list(trainer.reward_func_names),
        "processes": int(trainer.accelerator.num_processes),
        "dtype": str(trainer.model.dtype).removeprefix("torch."),
        "dropout": bool(dropout or getattr(trainer.model.config, "attention_dropout", 0.0)),
        "scaled": bool(args.fp16 or getattr(trainer, "is_deepspeed_enabled", False)),
        "environments": getattr(trainer, "environments", None) is not None,
        "aux_loss": bool(getattr(trainer, "aux_loss_enabled", False)),
    }
    return {**found, **facts}


def _lists(trainer: Any) -> Mapping[str, Sequence[float]]:
    """Return the trainer's metrics since the last log, by name."""
    found = trainer._metrics
    return found.get("train", {}) if isinstance(found, Mapping) else {}


def _plain(value: Any) -> bool | float | str | list[float] | None:
    return value if isinstance(value, bool | int | float | str | None) else [float(v) for v in value]


def _cpu(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a NumPy array. Floats become float32, because NumPy lacks bfloat16."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()


def _number(value: SupportsFloat | None) -> float | None:
    return None if value is None else float(value)


def _length(completion: np.ndarray, pad: int) -> int:
    """Return the length of a completion without trailing padding."""
    written = np.flatnonzero(completion != pad)
    return int(written[-1]) + 1 if written.size else 0


def _key(tensors: Mapping[str, np.ndarray], i: int, pad: int) -> bytes:
    """Return the prompt and completion of row `i` as bytes."""
    prompt = tensors["prompt_ids"][i][tensors["prompt_mask"][i].astype(bool)]
    completion = tensors["completion_ids"][i]
    return prompt.tobytes() + b"|" + completion[: _length(completion, pad)].tobytes()
