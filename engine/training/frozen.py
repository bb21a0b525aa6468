"""Forward passes without gradient over whole rollouts. One pass gives reference log-probs and embeddings of turns.

GRPO's KL compares the policy with the reference: a frozen copy of the policy, the LoRA adapters it started from (TRL
keeps them as the adapter `ref`), or the bare base model. The state embeddings of the shaped rewards are its last hidden
states, averaged over a turn's tokens, so they need no extra pass.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from accelerate.utils import is_peft_model
from peft import PeftModel
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import PreTrainedModel
from trl.trainer import utils
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.utils import use_adapter

from ..policy.prepared import PreparedModel, TokenScores
from ..rollouts.rollout import Rollout
from .resumable import ResumableTrainer, StatePart


def copy_of_policy(model: nn.Module, beta: float) -> nn.Module | None:
    """Copy the policy as a reference for full fine-tuning. Returns None if there is no KL, or if adapters are trained:
    the model without its adapters is then the reference."""
    return copy.deepcopy(model) if beta != 0.0 and not is_peft_model(model) else None


def add_reference(trainer: ResumableTrainer, reference: nn.Module, synced: bool) -> None:
    """Make a copy of the policy the trainer's reference, with the scoring head that TRL's loss expects since 1.15.

    synced: the reference follows the policy, so checkpoints store it.
    """
    reference.requires_grad_(False).eval()
    if hasattr(utils, "add_fused_lm_head"):
        utils.add_fused_lm_head(cast("PreTrainedModel", reference), temperature=trainer.temperature)
    trainer.ref_model = trainer.accelerator.prepare_model(reference, evaluation_mode=True)
    if synced:
        trainer.add_callback(SyncRefModelCallback(reference, trainer.accelerator))
        file, device = "reference.safetensors", str(next(reference.parameters()).device)
        part = StatePart(
            lambda folder: save_model(reference, str(folder / file)),
            lambda folder: load_model(reference, folder / file, device=device),
            everywhere=True,
        )
        trainer.state_parts.append(part)


class FrozenPass:
    """Passes of the policy and of its reference under `torch.no_grad`.

    reference: a frozen copy of the policy; None: the policy's own adapters, switched to those it started from.
    batch_size: rows scored at a time.
    """

    def __init__(self, policy: PreparedModel, reference: PreparedModel | None, batch_size: int) -> None:
        self.policy = policy
        self.reference_copy = reference
        self.batch_size = batch_size
        if "ref" in getattr(policy.model, "peft_config", ()):
            # TRL leaves out parameters without a module of their own: of LoRA on embeddings, trained tokens, IA3, LoHa.
            for name, parameter in policy.model.named_parameters():
                if name.endswith(".default"):
                    policy.model.get_parameter(name.removesuffix("default") + "ref").data.copy_(parameter.data)
        self.on_progress: Callable[[int, int], None] | None = None
        """Called with the number of rollouts scored so far, and the total."""

    def behaviour(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Add `logprobs` of the current policy to rollouts that have none."""
        missing = [i for i, r in enumerate(rollouts) if r.logprobs is None]
        scores = self._score(self.policy, [rollouts[i] for i in missing])
        done = list(rollouts)
        for i, logprobs in zip(missing, scores.logprobs, strict=True):
            done[i] = replace(done[i], logprobs=logprobs)
        return done

    def trained(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Add `trained_logprobs` to rollouts outside the trained pass."""
        scores = self._score(self.policy, rollouts)
        return [replace(r, trained_logprobs=p) for r, p in zip(rollouts, scores.logprobs, strict=True)]

    def reference(self, rollouts: Sequence[Rollout], *, embeddings: bool) -> list[Rollout]:
        """Add `ref_logprobs` and, if asked, `embeddings`."""
        reference = self.policy if self.reference_copy is None else self.reference_copy
        model, adapters = reference.model, contextlib.nullcontext()
        if self.reference_copy is None and isinstance(model, PeftModel):  # else beta is 0, and the model only embeds
            adapters = use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None)
        with adapters:
            scores = self._score(reference, rollouts, embeddings)
        done = [replace(r, ref_logprobs=p) for r, p in zip(rollouts, scores.logprobs, strict=True)]
        if scores.embeddings is None:
            return done
        return [replace(r, embeddings=e) for r, e in zip(done, scores.embeddings, strict=True)]

    def _score(self, model: PreparedModel, rollouts: Sequence[Rollout], embeddings: bool = False) -> TokenScores:
        logprobs, found = [], []
        for start in range(0, len(rollouts), self.batch_size):
            if self.on_progress is not None:
                self.on_progress(start, len(rollouts))
            part = rollouts[start : start + self.batch_size]
            turn_ids = [r.turn_ids for r in part] if embeddings else None
            images = [r.images for r in part]
            scores = model.score([r.token_ids for r in part], [r.agent_mask for r in part], turn_ids, images)
            logprobs += scores.logprobs
            found += scores.embeddings or []
        return TokenScores(logprobs, found if embeddings else None)
