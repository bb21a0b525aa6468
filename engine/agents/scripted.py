"""An agent that says what a script tells it: for tests, for demonstrations, and for trying out an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...envs.agent import AgentTurn, Message, Seed
from ...envs.content import Picture
from ...envs.trajectory import TokenArrays
from ..policy.sight.processor import Encoded, Sight, SightError
from .chat import ChatBridge
from .chat_agent import ChatAgent
from .history import TokenHistory
from .seen_rows import ShownImage

Script = Callable[[int, int, str | None], str | None] | Sequence[Sequence[str]]
"""`script(row, turn, observation) -> text`, or `script[row][turn]` (rows and turns wrap around: `[["hello"]]` always
says hello). The observation is None in the first turn. The text None ends the rollout."""


class ScriptedAgent(ChatAgent):
    """An `Agent` (see `envs.agent`) that plays a script. Its log-probs are 0: it says what it says with certainty.

    knows: see `envs.agent.knows`; a script needs no explanation, one that stands in for a policy needs the policy's.
    sight: of a policy that takes images and that it stands in for.
    """

    def __init__(
        self,
        script: Script,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_trajectory_tokens: int | None = None,
        knows: Callable[[str], bool] = lambda environment: True,
        template_kwargs: Mapping[str, Any] | None = None,
        native_calls: bool = False,
        sight: Sight | None = None,
    ):
        super().__init__(ChatBridge(tokenizer, template_kwargs=template_kwargs, sight=sight), native_calls=native_calls)
        self.knows = knows
        self.script = script
        self.tokenizer = tokenizer
        self.max_trajectory_tokens = max_trajectory_tokens

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        seed: Seed = None,
    ) -> ScriptedSession:
        """Open a session; see `Agent.start`. The seed changes nothing."""
        begun = [self.chat.begun(messages, tools) for messages in prompts]
        return ScriptedSession(self, self.chat_for(tools), [one for one in begun for _ in range(num_rollouts)])


class ScriptedSession:
    """See `SeeingSession`. The text of a turn is tokenised once, when it is said."""

    def __init__(self, agent: ScriptedAgent, chat: ChatBridge, rows: Sequence[Encoded | SightError]):
        self.agent, self.chat = agent, chat
        self._refused = {row: str(begun) for row, begun in enumerate(rows) if isinstance(begun, SightError)}
        begun = [Encoded([], ()) if isinstance(row, SightError) else row for row in rows]
        self.history = TokenHistory([row.ids for row in begun])
        self._shown = [tuple(ShownImage(image, -1) for image in row.images) for row in begun]
        self._limit = agent.max_trajectory_tokens or 2**31
        self._observation: list[str | None] = [None] * len(rows)
        self._exhausted: set[int] = set()

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        """The next line of each row."""
        return [self._act(row) for row in rows]

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """Append what the environment answered."""
        self.observe_seen(rows, observations, [()] * len(rows))

    def observe_seen(
        self, rows: Sequence[int], observations: Sequence[str], pictures: Sequence[Sequence[Picture]]
    ) -> None:
        """As `observe`; pictures[i] are shown with observation i. One that cannot be shown ends its row alone."""
        for row, observation, shown in zip(rows, observations, pictures, strict=True):
            self._observation[row] = observation
            end = int(self.history.length[row])
            try:
                bridge, images = self.chat.answer_seen(int(self.history.ids[row, end - 1]), observation, shown)
            except SightError as problem:
                self._refused[row] = str(problem)
                continue
            if end + len(bridge) >= self._limit:
                self._exhausted.add(row)
            else:
                self.history.append_observation(row, bridge)
                turn = int(self.history.turns[row]) - 1
                self._shown[row] += tuple(ShownImage(image, turn) for image in images)

    def shown(self, row: int) -> Sequence[ShownImage]:
        """The images of this row so far, in the order of their tokens."""
        return self._shown[row]

    def tokens(self, row: int) -> TokenArrays:
        """Everything of this row so far."""
        return self.history.arrays(row)

    def close(self) -> None:
        """Do nothing: a script keeps no cache."""

    def _act(self, row: int) -> AgentTurn:
        start = int(self.history.length[row])
        if row in self._refused:
            return AgentTurn("", (start, start), "refused", self._refused[row])
        if row in self._exhausted or start >= self._limit:
            return AgentTurn("", (start, start), "token_limit")
        agent, turn = self.agent, int(self.history.turns[row])
        if callable(agent.script):
            text = agent.script(row, turn, self._observation[row])
        else:
            lines = agent.script[row % len(agent.script)]
            text = lines[turn % len(lines)]
        if text is None:
            return AgentTurn("", (start, start), "refused", "the script ended")
        end = agent.chat.end_of_turn
        tokens = agent.chat.encode(text) + ([end] if end is not None else [])
        kept = tokens[: self._limit - start]
        self.history.append_turn(
            np.array([row]), np.array([kept]), np.zeros((1, len(kept)), np.float32), np.array([len(kept)])
        )
        span = (start, start + len(kept))
        if len(kept) < len(tokens):
            return AgentTurn(agent.chat.decode(kept), span, "token_limit")
        return AgentTurn(text, span)
