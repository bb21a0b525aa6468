"""The HTTP server's interface to the engine's process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ....configs.schema import CHAT_ENV, RunConfig
from ....envs.agent import Message
from ....envs.base import Env
from ....envs.loading import EnvLoadError, load_env_class
from ...agents.chat import ChatTemplateError
from ...agents.transformers_agent import TransformersAgent
from ...runs.control.status import process_state
from ...runs.paths import OnlineFolder
from ..store.snapshots import published_versions
from .conversations import Conversation, Told, Turn
from .http.completion import request_number
from .inference_engine import InferenceEngine
from .requests import RequestSource, parse_request
from .weights import WeightFollower


@dataclass(eq=False)
class EngineBackend:
    """The engine for the HTTP thread. sees: whether the policy takes images.

    `<model>@<version>` names one snapshot. samples: trajectories per request. timeout_s: how long a caller waits.
    """

    config: RunConfig
    folder: OnlineFolder
    source: RequestSource
    engine: InferenceEngine
    follower: WeightFollower

    def __post_init__(self) -> None:
        online, agent = self.config.online, self.engine.runner.agent
        self.model = self.config.model.base
        self.environment = self.config.environment
        self.env_class: type[Env] | None = None
        with contextlib.suppress(EnvLoadError):  # otherwise each task is answered with the reason
            self.env_class = load_env_class(self.environment.class_path)
        self.sees = bool(getattr(agent, "sees", False))
        self._chats = self.engine.is_single(parse_request({"task_data": {}}, self.environment))
        self._keeps_rows = isinstance(agent, TransformersAgent) and agent.keeps_rows
        self.max_trajectory_tokens = online.max_trajectory_tokens
        self.samples = online.samples
        self.timeout_s = online.request_timeout_s
        assert self.engine.runner.tokenizer is not None
        self._tokenizer = self.engine.runner.tokenizer

    def writes_text(self, environment: str, ensemble: bool | None) -> bool:
        """Return whether the running batch answers tasks of this environment class, each with one text."""
        return self._keeps_rows and not ensemble and (environment == CHAT_ENV or self._chats)

    def tools_problem(self) -> str:
        """Return the reason why callers cannot use tools; empty if they can."""
        reader = self.engine.call_reader
        if reader is None:
            return f"the chat template of {self.model} supports no tools. Serve a model whose template does"
        return (
            "the chat template supports tools, but no parser reads its calls" if getattr(reader, "problem", "") else ""
        )

    def conversation(
        self, source: str, messages: Sequence[Told], tools: Sequence[Mapping[str, object]], *, prompted: bool
    ) -> Conversation:
        """Return the conversation of a request, which continues an earlier turn if that is remembered.

        prompted: always build the prompt here. Raises ChatTemplateError.
        """
        agent, caller = self.engine.runner.agent, _caller(source, tools)
        assert isinstance(agent, TransformersAgent)
        history, previous = cast("Sequence[Message]", messages), self.engine.conversations.find(caller, messages)
        if previous is not None:
            before = previous.rollout.token_ids.tolist()
            # Some templates do not show the turn. The turns so far are then read as a new prompt.
            with contextlib.suppress(ChatTemplateError):
                after = agent.chat.after(before[-1], history, len(previous.messages) - 1, tools or None)
                return Conversation(tuple(messages), caller, (*before, *after), previous)
        prompt = tuple(agent.chat.prompt(history, tools or None)) if prompted else None
        return Conversation(tuple(messages), caller, prompt)

    def turn(self, source: str, identifier: str) -> Turn | None:
        """Return a remembered turn by the id of its answer, for a caller without tools."""
        try:
            return self.engine.conversations.turn(_caller(source, ()), request_number(identifier))
        except KeyError:
            return None

    def text_of_token(self, token: int) -> str:
        return str(self._tokenizer.decode([token], clean_up_tokenization_spaces=False))

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text without the chat template."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def versions(self) -> list[int]:
        """Return the versions that callers can name. 0 is the policy as loaded."""
        return sorted({0, *published_versions(self.folder.snapshots)})

    def learning(self) -> str:
        """Return the state of the update worker: `running`, `paused`, `starting`, `off` or `dead`."""
        if not self.config.online.updates:
            return "off"
        state = process_state(self.folder.run_dir, "worker")
        if not state["alive"]:
            return "dead" if state.get("pid") else "starting"
        return "paused" if state.get("status") == "paused" else "running"


def _caller(source: str, tools: Sequence[Mapping[str, object]]) -> str:
    """Return the key of a caller's conversations: its source, and its tools, because the prompt shows them."""
    return f"{source} {json.dumps(list(tools), sort_keys=True)}"
