"""The single owner of changes that make a model faster with the same result.

They are applied in this order, and removed in reverse:

| | change | what is replaced | for how long |
|---|---|---|---|
| 0 | number formats (`precision`) | `forward` of the layers that keep sums in float32 | from loading on |
| 1 | fast norms (`norms`) | `forward` of every plain RMSNorm | from preparing to `restore` |
| 2 | packed forward (`packed`) | `forward` of the causal language model | from preparing to `restore` |
| 3 | merged adapters (`merged`) | `forward` of every plain LoRA layer | a block |
| 4 | packed attention, short last layer (`packed`) | the attention's name, `forward` of the last layer | a block |
| 5 | cached attention (`decoding`) | the attention's name | a block, never inside 4 |

Norms come before the packed forward so that its comparison with the padded one sees the model as it will run. Adapters
are merged after selecting one, since the sums hold for the active adapter. Each change is a context manager that
restores what it found (`patches`), so changes nest and preparing a model twice does no harm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from .merged import MergedWeights, merged_weights
from .norms import fast_norms
from .packed import PackedForward
from .packing import Packing, pack
from .padded import AgentForward, padded_forward
from .patches import patched
from .precision import sampling_arithmetic
from .token_scores import turn_embeddings, turn_means
from .unwrap import base_of, device_of
from .vision.inputs import Images


@dataclass(frozen=True)
class TokenScores:
    """Scores of B rows. `logprobs`: float32 [T_i] each, nats, 0 on tokens that were not requested. `embeddings`:
    float32 [S_i, D] each, the last hidden states averaged over each turn's agent tokens (None: not requested)."""

    logprobs: list[np.ndarray]
    embeddings: list[np.ndarray] | None


class PreparedModel:
    """A causal language model with these changes applied.

    temperature: divides the logits. packed: run on packed rows, if that gives the same log-probs. autocast: makes the
    context in which forward passes run.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 1.0,
        packed: bool = True,
        autocast: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self.model = model
        self.base = base_of(model)
        self.temperature = temperature
        self.autocast = autocast
        self.forward = PackedForward(self.base, temperature)
        self.in_packed_pass = False
        self._changes = contextlib.ExitStack()
        self._changes.enter_context(fast_norms(self.base))
        self._changes.enter_context(self.forward.installed())
        self._changes.enter_context(patched(self.base, "prepared", self))
        self.packed = packed and self.forward.agrees()

    @staticmethod
    def of(model: nn.Module) -> PreparedModel | None:
        """Return the owner of this model's changes, or None for an unchanged model."""
        return getattr(base_of(model), "prepared", None)

    def restore(self) -> None:
        self._changes.close()

    @contextlib.contextmanager
    def packed_pass(self) -> Iterator[None]:
        """Prepare a loss on packed rows. With gradient checkpointing, run the backward pass inside as well, since it
        runs the layers again."""
        self.in_packed_pass = True
        try:
            with self.forward.attention(), merged_weights(self.model, gradient=True):
                yield
        finally:
            self.in_packed_pass = False

    @torch.no_grad()
    def score(
        self,
        token_ids: Sequence[np.ndarray],
        agent_mask: Sequence[np.ndarray],
        turn_ids: Sequence[np.ndarray] | None = None,
        images: Sequence[Images] | None = None,
    ) -> TokenScores:
        """Run one forward pass over B rows. Returns the agent tokens' log-probs and, with `turn_ids`, turn embeddings.

        token_ids[i]: int [T_i]; agent_mask[i]: bool [T_i]; turn_ids[i]: int [T_i], -1 in the prompt. images[i]: the
        images in row i, for a model that takes images.
        """
        with merged_weights(self.model), self.autocast():
            if self.packed:
                packing = self.pack(token_ids, agent_mask, images)
                with self.forward.attention():
                    out = self.model(packing=packing)
                padded = packing.pad(out.logprobs).float().cpu().numpy()
                logprobs = [padded[row, : len(ids)].copy() for row, ids in enumerate(token_ids)]
                hidden = None if turn_ids is None else turn_embeddings(out.hidden, packing, turn_ids)
                return TokenScores(logprobs, hidden)
            # The first token has no log-prob.
            scored = [mask.astype(bool) & (np.arange(len(mask)) > 0) for mask in agent_mask]
            out = padded_forward(self.model, token_ids, scored, turn_ids is not None, images)
            target = np.concatenate([ids[mask] for ids, mask in zip(token_ids, scored, strict=True)])
            chosen = torch.as_tensor(target.astype(np.int64), device=out.logits.device)[:, None]
            found = F.log_softmax(out.logits.float() / self.temperature, -1).gather(-1, chosen)[:, 0].cpu().numpy()
            logprobs = [np.zeros(len(ids), np.float32) for ids in token_ids]
            ends = np.cumsum([mask.sum() for mask in scored])[:-1]
            for row, mask, part in zip(logprobs, scored, np.split(found, ends), strict=True):
                row[mask] = part
            if turn_ids is None or out.hidden is None:
                return TokenScores(logprobs, None)
            turns = [turn[mask] for turn, mask in zip(turn_ids, scored, strict=True)]
            return TokenScores(logprobs, [e.cpu().numpy() for e in turn_means(out.hidden, turns)])

    def pack(
        self,
        token_ids: Sequence[np.ndarray],
        agent_mask: Sequence[np.ndarray],
        images: Sequence[Images] | None = None,
        length: int | None = None,
    ) -> Packing:
        """Call `packing.pack`, and move the result to the model's device."""
        vision_model = self.forward.seeing
        seen = None if vision_model is None or images is None else vision_model.batch(token_ids, images)
        return pack(token_ids, agent_mask, length, seen).to(device_of(self.base))


def forward_agent_tokens(
    model: nn.Module,
    token_ids: Sequence[np.ndarray],
    agent_mask: Sequence[np.ndarray],
    *,
    keep_hidden: bool = False,
    images: Sequence[Images] | None = None,
) -> AgentForward:
    """Return the logits at the position before each agent token.

    token_ids[i]: int [T_i]. agent_mask[i]: bool [T_i], False at the first token. images[i]: the images of row i, for a
    vision-language model. Only positions that predict an agent token go through the output layer, which dominates the
    cost for a large vocabulary.
    """
    prepared = PreparedModel.of(model)
    if prepared is None or not prepared.packed or not any(mask.any() for mask in agent_mask):
        return padded_forward(model, token_ids, agent_mask, keep_hidden, images)
    packing = prepared.pack(token_ids, agent_mask, images)
    with prepared.forward.attention(), merged_weights(model, gradient=torch.is_grad_enabled()):
        states = prepared.forward.states(packing)
        head = base_of(model).get_output_embeddings()
        logits = head(states.index_select(0, packing.before))  # type: ignore[misc]
    return AgentForward(logits, states.index_select(0, packing.itself) if keep_hidden else None)


@contextlib.contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Use eval mode without gradients in the block. Eval mode also switches gradient checkpointing off."""
    training = model.training
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if training:
            model.train()


@contextlib.contextmanager
def acting(model: nn.Module, merged: MergedWeights | None = None) -> Iterator[None]:
    """Prepare `model` for rollouts and evaluation: `inference`, with adapters that multiply once.

    merged: the sums of its current adapters, if already computed.

    `acting_block` of the base model is unique to this block: copies of weights are valid only within it.
    """
    block = patched(base_of(model), "acting_block", object())
    sums = merged_weights(model) if merged is None else merged.in_place()
    with inference(model), sampling_arithmetic(model), sums, block:
        yield


@contextlib.contextmanager
def decoding(model: nn.Module, attention: str | None) -> Iterator[None]:
    """Prepare `model` for decoding: eval mode, inference mode, and `attention` (None: the model's own)."""
    config: Any = base_of(model).config.get_text_config(decoder=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(inference(model))
        if attention is not None:
            stack.enter_context(patched(config, "_attn_implementation", attention))
        stack.enter_context(torch.inference_mode())
        yield
