"""Measures how well a policy still models unrelated texts, since learning from a few requests must not harm its
language.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ...policy.kl import kl_directions
from ...policy.unwrap import base_of, device_of

TEXTS = (
    "The river rises in the hills north of the town and reaches the sea after about two hundred kilometres.",
    "Photosynthesis converts light energy into chemical energy, which plants store in sugars.",
    "She closed the door quietly, put her keys on the table and listened to the rain on the roof.",
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n",
    "Preheat the oven to 180 degrees, mix the flour with the butter and the sugar, and bake the cake for an hour.",
    "In 1969 two astronauts walked on the surface of the Moon while a third remained in orbit around it.",
    "Dear customer, thank you for your message. We will send the replacement part within three working days.",
    "A contract is an agreement between two parties that a court can enforce if one of them does not keep it.",
    "Q: Why is the sky blue?\nA: Air scatters short wavelengths of sunlight more strongly than long ones.",
    "The committee met on Tuesday to discuss the budget, but no decision was reached before the summer break.",
)
"""English prose, code, a recipe, a letter and a dialogue, written for this purpose."""


class TextGuard:
    """Log-likelihood of `TEXTS` (nats per token) under a candidate and under the policy at the start."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        started: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._model = base_of(model)
        self._started = started
        """Puts the weights of the start in place."""
        self._rows = [torch.tensor(tokenizer.encode(t, add_special_tokens=False)) for t in TEXTS]
        self._tokens = sum(len(row) - 1 for row in self._rows)
        with started():
            before = sum(float(self._logprobs(row)[1].sum()) for row in self._rows) / self._tokens
        vocabulary = cast(nn.Linear, self._model.get_output_embeddings()).weight.shape[0]
        self.applies = before > -0.5 * math.log(vocabulary)
        """False for a policy that does not model such texts and so has little to lose."""

    def measure(self) -> Mapping[str, float]:
        """Return `text_before` and `text_now`, the log-likelihood per token at the start and now, and `text_kl`, the
        exact KL(now ‖ start) per token.
        """
        if not self.applies:
            return {}
        before = now = kl = 0.0
        for row in self._rows:
            logits, chosen = self._logprobs(row)
            with self._started():
                old, old_chosen = self._logprobs(row)
            now += float(chosen.sum())
            before += float(old_chosen.sum())
            kl += float(kl_directions(logits, old).reverse.sum())
        n = self._tokens
        return {"text_before": before / n, "text_now": now / n, "text_kl": kl / n}

    @torch.no_grad()
    def _logprobs(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [T - 1, V] and the log-probs [T - 1] of the tokens after the first."""
        ids = row.to(device_of(self._model))[None]
        logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, :-1].float()
        return logits, logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
