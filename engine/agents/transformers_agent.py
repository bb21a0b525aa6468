"""A transformers model as an agent. All live rollouts decode together, with one KV cache over all turns.

Each conversation is encoded only once. Each prompt is prefilled once per group and copied to its rollouts. An
observation is fed when its row acts again. Rows that finish a turn early leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ...envs.agent import AgentTurn
from ..policy.vision.processor import Encoded, VisionProcessor
from .acting_rows import RowsOf, fitting_rows
from .cached_rows import CachedRows
from .chat import ChatBridge
from .chat_agent import ChatAgent
from .chat_session import SessionStart
from .decoder import Decoder, stop_ids_of
from .sampling import AgentSettings
from .session import TransformersSession


class TransformersAgent(ChatAgent):
    """An `Agent` (`envs.agent`) that samples from a causal language model of `transformers`, with or without LoRA.

    The model may be in training: sessions run in eval mode without gradients and restore the mode. The weights must not
    change while a session is open. template_kwargs: for the chat template (`enable_thinking=False` for Qwen3). vision:
    the processor of a model that takes images; without it such a model reads only text. settings: fields of
    `AgentSettings`. Raises `ChatTemplateError` for an unsuitable tokenizer. `start` raises `UnsupportedModelError` for
    an unsuitable model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template_kwargs: Mapping[str, object] | None = None,
        vision: VisionProcessor | None = None,
        native_calls: bool = True,
        **settings: Any,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.decoder = Decoder(model)
        self.sessions: Callable[..., TransformersSession] = TransformersSession
        chat = ChatBridge(tokenizer, stop_ids=stop_ids_of(model), template_kwargs=template_kwargs, vision=vision)
        super().__init__(chat, AgentSettings(**settings), native_calls=native_calls)

    def _open(self, start: SessionStart) -> TransformersSession:
        return self.sessions(self.decoder, start, self._rows_of)

    def next_turn(self, conversation: Encoded) -> AgentTurn:
        """Sample one turn after a conversation that another agent has written."""
        session = self._open(SessionStart(self.chat, self.config, [conversation]))
        try:
            return session.act([0])[0]
        finally:
            session.close()

    @property
    def keeps_rows(self) -> bool:
        """Whether rows of this model can join and leave a running batch (`live_batch`)."""
        return self.chat.vision is None and self._rows_of is CachedRows

    @cached_property
    def _rows_of(self) -> RowsOf:
        """The form of rows, selected at the first session. `vision_check` verifies it for a vision-language model."""
        return fitting_rows(self.decoder) if self.chat.vision is None or self.decoder.others else CachedRows
