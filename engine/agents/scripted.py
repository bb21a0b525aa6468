"""An agent that plays a script, for tests, demonstrations and trying out an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from ...envs.agent import AgentTurn
from ...envs.content import Picture
from ..policy.vision.processor import VisionProcessor
from .chat import ChatBridge
from .chat_agent import ChatAgent
from .chat_session import ChatSession, SessionStart
from .sampling import AgentSettings

Script = Callable[[int, int, str | None], str | None] | Sequence[Sequence[str]]
"""`script(row, turn, observation) -> text`, or `script[row][turn]` (rows and turns wrap around). The observation is
None in the first turn. A text of None ends the rollout."""


class ScriptedAgent(ChatAgent):
    """An `Agent` (`envs.agent`) that plays a script. Its log-probs are 0.

    knows: see `envs.agent.knows`. A script needs no explanation of the tools; one that replaces a policy needs the
    policy's. vision: of the policy that it replaces, if that takes images.
    """

    def __init__(
        self,
        script: Script,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_trajectory_tokens: int = 2**31,
        knows: Callable[[str], bool] = lambda environment: True,
        template_kwargs: Mapping[str, object] | None = None,
        native_calls: bool = False,
        vision: VisionProcessor | None = None,
    ):
        bridge = ChatBridge(tokenizer, template_kwargs=template_kwargs, vision=vision)
        settings = AgentSettings(max_trajectory_tokens=max_trajectory_tokens)
        super().__init__(bridge, settings, native_calls=native_calls)
        self._knows = knows
        self.script = script

    def knows(self, environment: str) -> bool:
        return self._knows(environment)

    def _open(self, start: SessionStart) -> ScriptedSession:
        return ScriptedSession(self, start)


class ScriptedSession(ChatSession):
    """A session of a script. The text of a turn is tokenised once."""

    def __init__(self, agent: ScriptedAgent, start: SessionStart) -> None:
        super().__init__(start)
        self.agent = agent
        self._observation: list[str | None] = [None] * len(self._exhausted)

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        return [self._act(row) for row in rows]

    def observe_seen(
        self, rows: Sequence[int], observations: Sequence[str], pictures: Sequence[Sequence[Picture]]
    ) -> None:
        """Append observations with pictures, and keep the observations for the script."""
        for row, observation in zip(rows, observations, strict=True):
            self._observation[row] = observation
        super().observe_seen(rows, observations, pictures)

    def close(self) -> None:
        pass

    def _act(self, row: int) -> AgentTurn:
        start = int(self.history.length[row])
        if row in self._refused:
            return AgentTurn("", (start, start), "refused", self._refused[row])
        if self._exhausted[row] or start >= self.settings.max_trajectory_tokens:
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
        kept = tokens[: self.settings.max_trajectory_tokens - start]
        self.history.append_turn_of(row, kept)
        span = (start, start + len(kept))
        if len(kept) < len(tokens):
            return AgentTurn(agent.chat.decode(kept), span, "token_limit")
        return AgentTurn(text, span)
