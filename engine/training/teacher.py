"""The teacher of on-policy distillation: a model in this process, or one on a vLLM server."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...configs.schema import RunConfig
from ..agents.remote.client import MissingHTTPClient, ServerClient
from ..agents.remote.protocol import GenerateRequest, ServerRefusal, ServerTrouble
from ..policy.models import load_policy
from ..policy.prepared import PreparedModel, inference
from ..policy.sources import ModelLoadError
from ..rollouts.distillation import Teacher
from ..rollouts.rollout import Rollout
from . import TrainingError
from .frozen import FrozenPass

PATIENCE_S = 300.0
"""How long to retry a busy server."""
TRIES = 5
TOGETHER = 16
"""Concurrent requests to a server."""


def open_teacher(config: RunConfig, tokenizer: PreTrainedTokenizerBase, batch_size: int) -> Teacher | None:
    """Load or connect to the teacher of `training.distillation`; None without one. Raises ModelLoadError.

    batch_size: rows per forward pass of a teacher in this process.
    """
    chosen = config.training.distillation.teacher
    if chosen is None:
        return None
    if chosen.startswith(("http://", "https://")):
        return ServerTeacher(chosen, os.environ.get(config.rollouts.api_key_env), config.rollouts.request_timeout_s)
    model_config, adapters = config.model, None
    if chosen.startswith("builtin:") or (Path(chosen).expanduser() / "adapter_config.json").is_file():
        adapters = chosen
    else:
        model_config = model_config.model_copy(update={"base": chosen, "revision": None, "chat_template": None})
    model, teacher_tokenizer = load_policy(model_config, adapters=adapters, trainable=False)
    if teacher_tokenizer.get_vocab() != tokenizer.get_vocab():
        raise ModelLoadError(
            f"training.distillation.teacher: {chosen} has another vocabulary than {config.model.base}, so it cannot "
            "score the policy's tokens; choose a model of the same family"
        )
    scored = FrozenPass(PreparedModel(model, temperature=config.training.temperature), None, max(batch_size, 1))

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        with inference(model):
            found = scored.behaviour([replace(r, logprobs=None) for r in rollouts])
        return [replace(r, teacher_logprobs=f.logprobs) for r, f in zip(rollouts, found, strict=True)]

    return score


class ServerTeacher:
    """A model on a vLLM server that returns the log-probs of each rollout's tokens."""

    def __init__(self, address: str, key: str | None, timeout_s: float) -> None:
        self.url, _, self.model = address.partition("#")
        self._key = key
        self._timeout_s = timeout_s

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Return the rollouts with `teacher_logprobs`. Raises TrainingError if the server does not return them."""
        if any(r.images for r in rollouts):
            raise TrainingError(
                "training.distillation.teacher: a server gets text only, and these rollouts have images; name a model "
                "or adapters"
            )
        try:
            found = asyncio.run(self._score([r.token_ids.tolist() for r in rollouts]))
        except (ServerTrouble, ServerRefusal) as trouble:
            raise TrainingError(f"training.distillation.teacher: the server {self.url} fails: {trouble}") from trouble
        return [replace(r, teacher_logprobs=f) for r, f in zip(rollouts, found, strict=True)]

    async def _score(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        try:
            import httpx
        except ImportError:
            raise MissingHTTPClient("a teacher on a server needs httpx; pip install 'grpo-tui[vllm]'") from None
        gate = asyncio.Semaphore(TOGETHER)
        async with httpx.AsyncClient(timeout=self._timeout_s) as http:
            client = ServerClient(self.url, http, self._key)
            served = await client.patiently(client.models, PATIENCE_S)
            model = self.model or next(iter(served), "")
            if model not in served:
                raise ServerRefusal(f"it serves no model {model!r}, but {', '.join(served) or 'none'}")

            async def one(ids: Sequence[int], number: int) -> np.ndarray:
                request = GenerateRequest(
                    model, ids, max_tokens=1, request_id=f"teacher-{os.urandom(4).hex()}-{number}", prompt_logprobs=True
                )
                for tried in itertools.count(1):
                    try:
                        async with gate:
                            answer = await client.patiently(
                                lambda: client.generate(request, self._timeout_s), PATIENCE_S
                            )
                        return np.array([0.0, *answer.prompt_logprobs], np.float32)
                    except ServerTrouble:
                        if tried == TRIES:
                            raise
                        await asyncio.sleep(tried)
                raise AssertionError

            return list(await asyncio.gather(*(one(ids, i) for i, ids in enumerate(rows))))
