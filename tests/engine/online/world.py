"""A real HTTP server, and a stand-in for the engine behind it."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import openai
from PIL import Image

from grpo_tui.configs.sections import EnvironmentConfig
from grpo_tui.engine.agents.remote.server import Standing
from grpo_tui.engine.online.serve.answers import Answer
from grpo_tui.engine.online.serve.backend import EngineBackend
from grpo_tui.engine.online.serve.feedback import FeedbackKeeper
from grpo_tui.engine.online.serve.http.conversation import Uploads
from grpo_tui.engine.online.serve.http.schema import Feedback
from grpo_tui.engine.online.serve.requests import Request, RequestSource
from grpo_tui.engine.online.serve.server import AnswerServer
from grpo_tui.engine.online.serve.weights import WeightFollower
from grpo_tui.engine.online.voting import gate, vote
from grpo_tui.envs.base import Env

LIMIT = 20_000
TOKENS = 256


class OwnEnv(Env):
    """Takes any question; with a picture or without."""

    def reset(self, task: Mapping[str, Any]) -> Any:
        return task, [{"role": "user", "content": str(task)}]

    def step(self, state: Any, call: Any) -> Any:
        raise AssertionError("no rollout is made here")


class PicturesOnly(OwnEnv):
    @classmethod
    def task_of_question(cls, question: str, images: Any) -> dict[str, Any] | None:
        return super().task_of_question(question, images) if images else None


class StandIn(EngineBackend):
    """What the engine's process would tell the HTTP side; words are the tokens."""

    model = "tiny"
    environment = EnvironmentConfig(class_path="a.b.C")
    env_class: type[Env] | None = OwnEnv
    sees: bool = False
    max_trajectory_tokens = TOKENS
    samples = 3
    timeout_s = 20.0
    worker = "running"
    standing: Standing | None = None

    def __init__(self, source: RequestSource | None = None) -> None:
        self.source = source or RequestSource()
        self.follower = cast(WeightFollower, SimpleNamespace(version=7, servers=lambda: self.standing))

    def writes_text(self, environment: str, ensemble: bool | None) -> bool:
        return False

    def tools_problem(self) -> str:
        return "this policy has none"

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def versions(self) -> list[int]:
        return [0, 3, 7]

    def learning(self) -> str:
        return self.worker


class Keeper(FeedbackKeeper):
    """Takes feedback on request 1 alone."""

    def __init__(self) -> None:
        self.said: list[Feedback] = []
        self.sources: list[str] = []

    def take(self, request: int, feedback: Feedback, source: str = "") -> Mapping[str, Any]:
        self.said.append(feedback)
        self.sources.append(source)
        if request != 1:
            raise KeyError(request)
        return {"request": 1, "learned": True}

    def unjudged(self, limit: int) -> Mapping[str, Any]:
        return {"answers": []}

    def outcome(self, request: int) -> Mapping[str, Any]:
        return {"request": request, "learned": True}


class World:
    """A server, and a stand-in for the engine's loop that answers "red" and keeps what reached it."""

    def __init__(self, folder: Path, *, max_waiting: int = 64, **options: Any) -> None:
        self.source = RequestSource(open_ended=True, max_waiting=max_waiting)
        self.backend = StandIn(self.source)
        self.keeper = Keeper()
        self.reached: list[Request] = []
        self.error: str | None = None
        self.text = "red"
        self.serve = threading.Event()
        self.serve.set()
        self._paused = threading.Event()
        self.uploads = Uploads(folder / "uploads", (folder / "shared",))
        self.server = AnswerServer("127.0.0.1:0", max_body_bytes=LIMIT, **options)
        self.server.start(self.backend, self.uploads)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Take no more requests, until `serve` is set."""
        self.serve.clear()
        self._paused.clear()
        assert self._paused.wait(30)

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self.serve.wait(0.02):
                self._paused.set()
                continue
            requests = self.source.take(4, 0.02)
            for call, reply in self.source.take_feedback():
                try:
                    reply(call(self.keeper))
                except KeyError as error:
                    reply(error)
            for request in requests:
                self.reached.append(request)
                outcome = vote([self.text, self.text, "blue"])
                assert request.reply is not None
                answer = Answer(request, outcome, outcome, gate(outcome, 0.5), [], 7, None, 0.1, error=self.error)
                request.reply(answer)

    def close(self) -> None:
        self.server.stop()
        self._stop.set()
        self._thread.join()

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return httpx.post(self.server.url + path, content=content, headers=sent, timeout=20)

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.server.url}/v1", api_key="secret", max_retries=0, **options)


QUESTION: list[Any] = [{"role": "user", "content": "What colour is it?"}]
ASK: dict[str, Any] = {"model": "tiny", "messages": QUESTION}


def picture_url() -> str:
    data = io.BytesIO()
    Image.new("RGB", (8, 6), (255, 0, 0)).save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
