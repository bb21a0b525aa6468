"""The text between two turns of an agent, from the tokenizer's own chat template.

The template is rendered once with sentinels for the agent's text and the observation, and cut at them. So any chat
model works, and the agent's text is never tokenised again: the bridge is appended to it as tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...configs.errors import GrpoTuiError
from ...envs.agent import Message
from ...envs.content import Block, Content, ImageBlock, Picture, TextBlock, pictures_of, text_of, with_text_before
from ..policy.vision.processor import Encoded, VisionError, VisionProcessor

AGENT, OBSERVATION = "SENTINELAGENTTURN", "SENTINELOBSERVATION"
KEPT = 1000
"""The longest observation, in characters, whose tokens are cached. Longer ones rarely recur and take much memory."""
NO_PICTURE = Picture("none", lambda: np.zeros((1, 1, 3), np.uint8))
"""A placeholder for when only the text around a picture is needed."""


class ChatTemplateError(GrpoTuiError, ValueError):
    """The tokenizer's chat template does not support conversations of several turns."""


class ChatBridge:
    """Prompts and bridges of one tokenizer, as token ids.

    stop_ids: the ids that end an agent's turn. end_of_turn: the id that the template itself writes there, None if its
    closing text does not begin with one. vision: for a model that takes images; the template is then its processor's.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop_ids: Sequence[int] = (),
        observation_role: str = "user",
        template_kwargs: Mapping[str, object] | None = None,
        vision: VisionProcessor | None = None,
    ):
        self.observation_role = observation_role
        template = tokenizer if vision is None else vision.processor
        if not getattr(template, "chat_template", None):
            raise ChatTemplateError(
                f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template. Use a chat "
                "(instruct) model, or set model.chat_template: chatml"
            )
        self.tokenizer = tokenizer
        self.vision = vision
        self.template_kwargs = dict(template_kwargs or {})
        self._around = cache(lambda images: self._cut(observation_role, images))
        close = self.encode(self._around(0)[0])
        ends = set(stop_ids)
        if tokenizer.eos_token_id is not None:
            ends.add(cast(int, tokenizer.eos_token_id))
        special = set(tokenizer.all_special_ids) | ends
        first = next((i for i, token in enumerate(close) if token in special), None)
        # Some templates put white space before the end-of-turn token. Agents end their turn without it.
        found = first is not None and not tokenizer.decode(close[:first]).strip()  # type: ignore[union-attr]
        self.end_of_turn: int | None = close[first] if first is not None and found else None
        if self.end_of_turn is not None:
            ends.add(self.end_of_turn)
        if not ends:
            raise ChatTemplateError("neither the tokenizer nor the model defines an end-of-turn token (`eos_token`)")
        self.stop_ids: tuple[int, ...] = tuple(sorted(ends))
        self.bridge = lru_cache(maxsize=4096)(self._bridge)

    def answering_tools(self) -> ChatBridge:
        """Return a bridge that presents observations as tool answers, or this one if the template does not support them
        (or images in them)."""
        try:
            bridge = ChatBridge(
                self.tokenizer,
                stop_ids=self.stop_ids,
                observation_role="tool",
                template_kwargs=self.template_kwargs,
                vision=self.vision,
            )
            return bridge if self.vision is None or "".join(bridge._around(1)).count(self.vision.sign) == 1 else self
        except ChatTemplateError:
            return self

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] | None = None) -> list[int]:
        """Return the token ids of the opening messages, up to the start of the agent's turn."""
        return self.seen(messages, tools).ids

    def seen(self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] | None = None) -> Encoded:
        """Return the prompt with its images. Raises VisionError if one cannot be shown."""
        text = self.prompt_text(messages, tools)
        if self.vision is None:
            return Encoded(self.encode(text), ())
        return self.vision.encode(text, pictures_of(messages))

    def begun(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] | None = None
    ) -> Encoded | VisionError:
        """Return the prompt with its images, or the reason why the conversation cannot begin."""
        try:
            encoded = self.seen(messages, tools)
        except VisionError as problem:
            return problem
        limit = None if self.vision is None else self.vision.max_images
        if limit is not None and len(encoded.images) > limit:
            return VisionError(f"the prompt shows {len(encoded.images)} images, but model.max_images is {limit}")
        return encoded

    def answer_seen(self, last_token: int | None, observation: str, pictures: Sequence[Picture]) -> Encoded:
        """Return the token ids and images between two turns, for an observation with `pictures`. Raises VisionError."""
        if self.vision is None or not pictures:
            bridge = self.bridge if len(observation) <= KEPT else self._bridge
            tokens = bridge(last_token, observation)
            return Encoded(list(tokens), ()) if self.vision is None else self.vision.agreed(tokens, ())
        close, opening = self._around(len(pictures))
        tokens, images = self.vision.encode(close + observation + opening, pictures)
        return Encoded(self._after_own_end(tokens, last_token), images)

    def after(
        self,
        last_token: int,
        messages: Sequence[Message],
        index: int,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> list[int]:
        """Return the token ids from the end of the agent's turn `messages[index]`, which ended with `last_token`, to
        its next turn. Raises ChatTemplateError."""
        marked: list[Message] = [*messages[:index], {"role": "assistant", "content": AGENT}, *messages[index + 1 :]]
        before, agent, rest = self.prompt_text(marked, tools).partition(AGENT)
        if not (before and agent and rest) or AGENT in rest:
            raise ChatTemplateError("the chat template does not show an assistant turn exactly once")
        return self._after_own_end(self.encode(rest), last_token)

    def prompt_text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] | None = None, *, opened: bool = True
    ) -> str:
        """Return the prompt as text. If the template has no system role, the system message joins the first user
        message.

        opened: with the opening of the agent's next turn.
        """
        options: dict[str, Any] = {"add_generation_prompt": opened, "tools": list(tools) if tools else None}
        try:
            return self._render(list(messages), **options)
        except ChatTemplateError:
            if len(messages) < 2 or messages[0].get("role") != "system":
                raise
            system, first, *rest = messages
            content = with_text_before(text_of(system.get("content", "")), first.get("content", ""))
            joined: Message = {**first, "content": content}
            return self._render([joined, *rest], **options)

    def _bridge(self, last_token: int | None, observation: str) -> tuple[int, ...]:
        """Return the token ids between a turn that ended with `last_token` and the agent's next turn.

        They close a turn that a limit cut, and do not close a turn again that the agent ended.
        """
        close, opening = self._around(0)
        return tuple(self._after_own_end(self.encode(close + observation + opening), last_token))

    def _after_own_end(self, tokens: list[int], last_token: int | None) -> list[int]:
        if self.end_of_turn is not None and last_token == self.end_of_turn:
            return tokens[tokens.index(self.end_of_turn) + 1 :]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the agent's text without the token that ended the turn."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.stop_ids else tokens
        return str(self.tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _cut(self, role: str, images: int) -> tuple[str, str]:
        """Return the text between the agent's text and an observation (with placeholders for the images), and the text
        after it."""
        opening: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": AGENT}]
        shown: list[Block] = [ImageBlock(type="image", image=NO_PICTURE)] * images
        content: Content = [*shown, TextBlock(type="text", text=OBSERVATION)] if images else OBSERVATION
        text = self._render([*opening, {"role": role, "content": content}], add_generation_prompt=True)
        before, agent, rest = text.partition(AGENT)
        close, observation, answer = rest.partition(OBSERVATION)
        if not (before and agent and observation) or AGENT in rest or OBSERVATION in answer:
            raise ChatTemplateError(
                f"the chat template does not show an assistant turn followed by a {role!r} turn exactly once; set "
                "another model.chat_template, such as chatml"
            )
        return close, answer

    def _render(self, messages: list[Message], **kwargs: Any) -> str:
        kwargs |= self.template_kwargs
        try:
            if self.vision is not None:
                return self.vision.render(messages, **kwargs)
            plain = [{**m, "content": text_of(m.get("content", ""))} for m in messages]
            text = self.tokenizer.apply_chat_template(plain, tokenize=False, **kwargs)
        except Exception as error:  # templates may raise anything (jinja's raise_exception)
            raise ChatTemplateError(
                f"the chat template rejected the conversation ({error}); set another model.chat_template"
            ) from error
        return str(text)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))
