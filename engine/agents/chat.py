"""What stands between an agent's turn and its next one, taken from the tokenizer's own chat template.

The template is rendered once with sentinels for the agent's text and the observation, and cut at them:

    ...assistant\\n A <|im_end|>\\n<|im_start|>user\\n O <|im_end|>\\n<|im_start|>assistant\\n
                   |------- close and open --------|   |---------- answer_open ----------|

So any chat model works, and what the agent wrote is never tokenised again: the bridge is appended to it as tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from ...configs.errors import GrpoTuiError
from ...envs.agent import Message

AGENT, OBSERVATION = "SENTINELAGENTTURN", "SENTINELOBSERVATION"


class ChatTemplateError(GrpoTuiError, ValueError):
    """The tokenizer's chat template cannot carry a conversation of several turns."""


class ChatBridge:
    """Prompts and bridges of one tokenizer, as token ids.

    `stop_ids`: the ids that end an agent's turn. `end_of_turn`: the one that the template itself writes there, or None
    when its closing text does not begin with an end-of-turn token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop_ids: Sequence[int] = (),
        observation_role: str = "user",
        template_kwargs: Mapping[str, Any] | None = None,
    ):
        if not getattr(tokenizer, "chat_template", None):
            raise ChatTemplateError(
                f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template, so conversations "
                "cannot be written in it; use a chat (instruct) model, or give it one: model.chat_template: chatml"
            )
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self._close, self._open = self._cut(observation_role)
        close = self.encode(self._close)
        ends = set(stop_ids)
        if tokenizer.eos_token_id is not None:
            ends.add(cast(int, tokenizer.eos_token_id))
        special = set(tokenizer.all_special_ids) | ends
        first = next((i for i, token in enumerate(close) if token in special), None)
        # Some templates put white space before the end-of-turn token; agents end their turn without it.
        found = first is not None and not tokenizer.decode(close[:first]).strip()  # type: ignore[union-attr]
        self.end_of_turn: int | None = close[first] if first is not None and found else None
        if self.end_of_turn is not None:
            ends.add(self.end_of_turn)
        if not ends:
            raise ChatTemplateError("neither the tokenizer nor the model says which token ends a turn (`eos_token`)")
        self.stop_ids: tuple[int, ...] = tuple(sorted(ends))
        self.bridge = lru_cache(maxsize=4096)(self._bridge)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """Token ids of the opening messages, up to where the agent begins to write."""
        return self.encode(self.prompt_text(messages, tools))

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The same as text. A template that knows no system message gets it at the head of the first user's."""
        options: dict[str, Any] = {"add_generation_prompt": True, "tools": list(tools) if tools else None}
        try:
            return self._render(list(messages), **options)
        except ChatTemplateError:
            if len(messages) < 2 or messages[0].get("role") != "system":
                raise
            told, first, *rest = messages
            joined: Message = {**first, "content": f"{told.get('content', '')}\n\n{first.get('content', '')}"}
            return self._render([joined, *rest], **options)

    def _bridge(self, last_token: int | None, observation: str) -> tuple[int, ...]:
        """Token ids between a turn that ended with `last_token` and the agent's next turn.

        A turn that was cut by a limit is closed here; one that the agent ended itself is not closed twice.
        """
        tokens = self.encode(self._close + observation + self._open)
        if self.end_of_turn is not None and last_token == self.end_of_turn:
            tokens = tokens[tokens.index(self.end_of_turn) + 1 :]
        return tuple(tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """The agent's text without the token that ended the turn."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.stop_ids else tokens
        text = self.tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return cast(str, text)

    def _cut(self, role: str) -> tuple[str, str]:
        opening: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": AGENT}]
        text = self._render([*opening, {"role": role, "content": OBSERVATION}], add_generation_prompt=True)
        before, agent, rest = text.partition(AGENT)
        close, observation, answer = rest.partition(OBSERVATION)
        if not (before and agent and observation) or AGENT in rest or OBSERVATION in answer:
            raise ChatTemplateError(
                f"the chat template does not show an assistant turn followed by a {role!r} turn exactly once; "
                "choose another role for observations or set `tokenizer.chat_template`"
            )
        return close, answer

    def _render(self, messages: list[Message], **kwargs: Any) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                messages,  # type: ignore[arg-type]
                tokenize=False,
                **self.template_kwargs,
                **kwargs,
            )
        except Exception as error:  # templates raise whatever they like (jinja's raise_exception)
            raise ChatTemplateError(f"the chat template refused the conversation: {error}") from error
        return str(text)

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text, with nothing put around it."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))
