"""Forward passes without gradient over whole trajectories: one gives reference log-probs and step embeddings.

The reference is what GRPO's KL compares with: a frozen copy of the policy, the LoRA adapters it started from (TRL
keeps them as the adapter `ref`), or the bare base model. Its last hidden states, averaged over a turn's tokens, are
the state embeddings of the shaped rewards, so these cost no pass of their own. `passes` counts forward passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from trl.trainer.utils import use_adapter

from ..policy.packed import packed_mode, turn_embeddings
from ..policy.packing import pack
from ..rollouts.samples import Sample, pad_rows

if TYPE_CHECKING:
    from .env_trainer import GRPOEnvTrainer


class FrozenPass:
    """The trainer's passes under `torch.no_grad`."""

    def __init__(self, trainer: GRPOEnvTrainer) -> None:
        self.trainer = trainer
        self.passes = 0

    def reference(self, samples: Sequence[Sample], embeddings: bool) -> None:
        """Fill `ref_logprobs` and, if asked, `embeddings` of all samples."""
        trainer = self.trainer
        if trainer.ref_model is not None:
            self._run(trainer.ref_model, samples, "ref_logprobs", embeddings)
            return
        with self._reference_adapter():
            self._run(trainer.model, samples, "ref_logprobs", embeddings)

    def behaviour(self, samples: Sequence[Sample]) -> None:
        """Fill `logprobs` of samples that lack them, under the policy as it is now."""
        missing = [s for s in samples if s.logprobs is None]
        self._run(self.trainer.model, missing, "logprobs", embeddings=False)

    @contextlib.contextmanager
    def _reference_adapter(self) -> Iterator[None]:
        """The policy as its own reference; a model that is neither PEFT nor copied has beta 0 and only embeds."""
        model: Any = self.trainer.accelerator.unwrap_model(self.trainer.model)
        if not self.trainer.has_adapters:
            yield
            return
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            yield

    def _run(self, model: Any, samples: Sequence[Sample], field: str, embeddings: bool) -> None:
        size = max(self.trainer.args.per_device_train_batch_size, 1)
        for start in range(0, len(samples), size):
            part = samples[start : start + size]
            self.passes += 1
            run = self._packed if self.trainer.packed else self._plain
            with self.trainer.merged():
                run(model, part, field, embeddings)

    @torch.no_grad()
    def _packed(self, model: Any, samples: Sequence[Sample], field: str, embeddings: bool) -> None:
        trainer = self.trainer
        ids, masks = [s.token_ids for s in samples], [s.agent_mask for s in samples]
        packing = pack(ids, masks).to(trainer.accelerator.device)
        unwrapped = trainer.accelerator.unwrap_model(model)
        base = _base(unwrapped)
        with packed_mode(base), trainer.accelerator.autocast():
            out = unwrapped(packing=packing)
        padded = packing.pad(out.logprobs).float().cpu().numpy()
        for row, sample in enumerate(samples):
            setattr(sample, field, padded[row, : len(sample)].copy())
        if embeddings:
            found = turn_embeddings(out.hidden, packing, [s.turn for s in samples])
            for sample, embedding in zip(samples, found, strict=True):
                sample.embeddings = embedding

    @torch.no_grad()
    def _plain(self, model: Any, samples: Sequence[Sample], field: str, embeddings: bool) -> None:
        """The padded pass, for models that the packed one does not fit; a hook keeps the last hidden states."""
        trainer = self.trainer
        length = max(len(s) for s in samples)
        device = trainer.accelerator.device
        pad_id: Any = trainer._tokenizer.pad_token_id
        ids = pad_rows([s.token_ids for s in samples], length, pad_id, torch.long).to(device)
        attention = pad_rows([np.ones(len(s)) for s in samples], length, 0, torch.long).to(device)
        unwrapped = trainer.accelerator.unwrap_model(model)
        base = _base(unwrapped)
        kept: list[Tensor] = []
        hook = base.base_model.register_forward_hook(lambda _m, _i, output: kept.append(output.last_hidden_state))
        try:
            logps, _, _ = trainer._get_per_token_logps_and_entropies(model, ids, attention, length)
        finally:
            hook.remove()
        values = logps.float().cpu().numpy()
        for row, sample in enumerate(samples):
            setattr(sample, field, np.where(sample.agent_mask, values[row, : len(sample)], 0.0).astype(np.float32))
            if embeddings:
                sample.embeddings = _mean_by_turn(kept[0][row, : len(sample)].float().cpu().numpy(), sample)


def _base(model: Any) -> Any:
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _mean_by_turn(hidden: np.ndarray, sample: Sample) -> np.ndarray:
    out = np.zeros((sample.turns, hidden.shape[1]), np.float32)
    for turn in range(sample.turns):
        where = sample.agent_mask & (sample.turn == turn)
        if where.any():
            out[turn] = hidden[where].mean(0)
    return out
