"""The one place that turns rollouts into padded tensors [B, T] and adds TRL's names for them.

The dictionary uses the names of the contract (`prompt_completion_ids`, `attention_mask`, `agent_token_mask`,
`advantages`, `old_per_token_logps`, `ref_per_token_logps`). TRL expects a prompt and a completion. Here the prompt is
empty ([B, 0]) and the completion is the whole trajectory with the agent mask as `tool_mask`, so TRL's names are
aliases of the same tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..policy.packing import Packing
from ..policy.padded import transforms_before_head
from ..policy.prepared import PreparedModel
from ..rollouts.rollout import Rollout

Batch = dict[str, Any]
"""Tensors by name. `rollouts`, if present, are the ragged rows that the tensors were made from."""


def make_batch(
    rollouts: Sequence[Rollout], *, pad_token_id: int, device: torch.device, reference: bool = False
) -> dict[str, Tensor]:
    """Return right-padded tensors [B, T] of B rollouts, T the longest. Ids and masks are int64, the rest float32.

    reference: add `ref_per_token_logps`, and `replayed` (bool [B]) if any rollouts come from the replay buffer.
    """
    length = max(len(r) for r in rollouts)

    def padded(rows: Sequence[np.ndarray | None], value: float, dtype: torch.dtype) -> Tensor:
        out = torch.full((len(rows), length), value, dtype=dtype)
        for i, row in enumerate(rows):
            if row is not None and len(row):
                out[i, : len(row)] = torch.from_numpy(np.ascontiguousarray(row)).to(dtype)
        return out.to(device)

    agent = padded([r.agent_mask & (not r.masked) for r in rollouts], 0, torch.long)
    agent[:, 0] = 0  # the first token has no context, so it has no log-prob
    batch = {
        "prompt_completion_ids": padded([r.token_ids for r in rollouts], pad_token_id, torch.long),
        "attention_mask": padded([np.ones(len(r)) for r in rollouts], 0, torch.long),
        "agent_token_mask": agent,
        "advantages": padded([r.weighted_advantages for r in rollouts], 0.0, torch.float32),
        "old_per_token_logps": padded([r.logprobs for r in rollouts], 0.0, torch.float32),
    }
    if reference:
        batch["ref_per_token_logps"] = padded([r.ref_logprobs for r in rollouts], 0.0, torch.float32)
        if any(r.replayed for r in rollouts):
            batch["replayed"] = torch.tensor([r.replayed for r in rollouts], device=device)
    return batch


def with_trl_names(batch: Mapping[str, Any]) -> Batch:
    """Add TRL's names for the tensors."""
    ids, attention = batch["prompt_completion_ids"], batch["attention_mask"]
    agent = batch["agent_token_mask"]
    return {
        **batch,
        "prompt_ids": ids[:, :0],
        "prompt_mask": attention[:, :0],
        "completion_ids": ids,
        "completion_mask": attention,
        "tool_mask": agent,
        "num_items_in_batch": batch.get("num_items_in_batch", (agent * attention).sum()),
    }


def micro_batches(
    batch: Mapping[str, Tensor], rollouts: Sequence[Rollout], parts: int, shuffled: int = 0
) -> list[Batch]:
    """Split a batch into `parts` equal ones, each with its `rollouts` and all scalars.

    shuffled: shuffle the rows first, as whole groups of this size (0: keep their order).
    """
    rows = len(rollouts)
    order = torch.arange(rows)
    if shuffled:
        order = (torch.randperm(rows // shuffled)[:, None] * shuffled + torch.arange(shuffled)).flatten()
        batch = {k: v[order.to(v.device)] if v.ndim else v for k, v in batch.items()}
    size = rows // parts
    return [
        {
            **{k: v[start : start + size] if v.ndim else v for k, v in batch.items()},
            "rollouts": [rollouts[i] for i in order[start : start + size].tolist()],
        }
        for start in range(0, size * parts, size)
    ]


def needs_logits(batch: Batch, base: PreTrainedModel) -> bool:
    """Return whether the rows need the model's own pass on padded rows: TRL's multiplies hidden states by the head."""
    rollouts = batch.get("rollouts", ())
    return any(r.images for r in rollouts) or bool(rollouts and transforms_before_head(base))


def packing_of(batch: Mapping[str, Any], model: PreparedModel) -> Packing:
    """Pack the rows of a batch, from its `rollouts` if present, else from its tensors."""
    ids, attention = batch["prompt_completion_ids"], batch["attention_mask"].bool()
    images = None
    if "rollouts" in batch:
        rows, masks = [r.token_ids for r in batch["rollouts"]], [r.agent_mask for r in batch["rollouts"]]
        images = [r.images for r in batch["rollouts"]]
    else:
        lengths = attention.sum(1).tolist()
        agent = (batch["agent_token_mask"].bool() & attention).cpu().numpy()
        rows = [row[:n] for row, n in zip(ids.cpu().numpy(), lengths, strict=True)]
        masks = [row[:n] for row, n in zip(agent, lengths, strict=True)]
    return model.pack(rows, masks, images, ids.shape[1])


def without_kl_of_replayed(batch: Batch, logprobs: Tensor) -> None:
    """Use the policy as the reference of replayed rows ([B, T], nats), so that they add no KL and no KL gradient.

    The k3 estimate holds for samples of the current policy. Rows are replayed because they were surprising: on a token
    that has become improbable, k3 is exp(many nats), even when weighted by the ratio, since such rows are drawn again
    and again. TRL's loss reads the reference from the batch after computing the policy's log-probs, so it is replaced.
    """
    if "replayed" in batch and "ref_per_token_logps" in batch:
        reference = batch["ref_per_token_logps"]
        batch["ref_per_token_logps"] = torch.where(batch["replayed"][:, None], logprobs, reference)
