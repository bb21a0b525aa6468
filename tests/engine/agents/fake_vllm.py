"""A server that speaks vLLM's protocol over real HTTP: a real tiny model behind it, adapters loaded from folders by
name, and failures on demand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from peft import PeftModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from grpo_tui.engine.agents.cached_rows import CachedRows
from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.agents.chat_session import SessionStart
from grpo_tui.engine.agents.decoder import Decoder, stop_ids_of
from grpo_tui.engine.agents.sampling import AgentSettings
from grpo_tui.engine.agents.session import TransformersSession
from grpo_tui.engine.policy.prepared import PreparedModel, acting, inference
from grpo_tui.engine.policy.vision.processor import Encoded

Written = tuple[list[int], list[float], bool]
"""Tokens, their log-probs, and whether the turn ended by itself."""


class WireSession(TransformersSession):
    """A session whose seeds and limits come with each request."""

    def __init__(self, decoder: Decoder, start: SessionStart) -> None:
        super().__init__(decoder, start, CachedRows)
        self.seeds: dict[int, int] = {}
        self.limits: dict[int, int] = {}

    def write(self, asked: dict[int, dict[str, Any]]) -> dict[int, Written]:
        """By row."""
        rows = sorted(asked)
        for row in rows:
            ids, end = asked[row]["token_ids"], int(self.history.length[row])
            assert ids[:end] == self.history.ids[row, :end].tolist()
            if len(ids) > end:
                self.history.append_observation(row, ids[end:])
            self.seeds[row] = asked[row]["sampling_params"]["seed"]
            self.limits[row] = len(ids) + asked[row]["sampling_params"]["max_tokens"]
        written = {}
        for row, turn in zip(rows, self.act(rows), strict=True):
            start, end = turn.token_span
            arrays = self.history
            written[row] = (
                arrays.ids[row, start:end].tolist(),
                [float(p) for p in arrays.logprobs[row, start:end]],
                turn.stop_reason == "stop",
            )
        return written

    def _turn_seed(self, row: int) -> int:
        return self.seeds[row]

    def _room(self, rows: np.ndarray) -> np.ndarray:
        return np.array([self.limits[int(row)] for row in rows]) - self.history.length[rows]


@dataclass
class Lockstep:
    """Sessions at the settings' temperature are kept, and all `rows` of one turn are written together: as one process
    would, bit by bit."""

    rows: int
    num_rollouts: int
    settings: AgentSettings
    sessions: dict[str, WireSession] = field(default_factory=dict)
    waiting: dict[tuple[str, int], dict[int, tuple[dict[str, Any], asyncio.Future[Any]]]] = field(default_factory=dict)


@dataclass
class FakeVLLM:
    """A server of `base`, which it wraps: give each its own copy. delay_s: how long a turn takes."""

    base: Any
    tokenizer: Any
    key: str = ""
    lockstep: Lockstep | None = None
    scale_out: bool = True
    lora: bool = True
    raw_logprobs: bool = False
    delay_s: float = 0.0
    bias: float = 0.0
    """Added to the log-probs of turns."""
    keeps_first: bool = False
    """Turns are written by the first version that it got."""
    on_cpu: bool = True
    """Whether it has the bug of vLLM's LoRA on a CPU."""
    port: int = 0
    faults: deque[str] = field(default_factory=deque)
    requests: list[dict[str, Any]] = field(default_factory=list)
    adapters: dict[str, str] = field(default_factory=dict)
    waiting: list[tuple[dict[str, Any], asyncio.Future[Written]]] = field(default_factory=list)
    writing: asyncio.Task[None] | None = None
    in_flight: int = 0

    def __post_init__(self) -> None:
        self.model: Any = None
        self.first = ""
        self.lock = threading.Lock()
        self.may_load = threading.Event()
        """While it is not set, adapters are not loaded yet."""
        self.may_load.set()
        self.may_write = threading.Event()
        """While it is not set, turns are not written."""
        self.may_write.set()
        self.app = Starlette(
            routes=[
                Route("/version", self.version),
                Route("/metrics", self.metrics),
                Route("/v1/models", self.models),
                Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
                Route("/inference/v1/generate", self.generate, methods=["POST"]),
            ]
        )

    def fail(self, *faults: str) -> None:
        """The next requests for tokens fail, each in its way."""
        self.faults.extend(faults)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> FakeVLLM:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", self.port))
        self.port = self.socket.getsockname()[1]
        config = uvicorn.Config(self.app, log_level="error", lifespan="off", timeout_graceful_shutdown=0)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        """As if killed: connections end, and the adapters are forgotten."""
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(timeout=10)
        self.socket.close()
        self.adapters.clear()
        self.waiting, self.writing = [], None

    # ------------------------------------------------------------------------------------------------ endpoints

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": "0.32.0"})

    async def metrics(self, request: Request) -> Response:
        kept = "1073741824" if self.on_cpu else "None"
        return Response(f'vllm:cache_config_info{{block_size="32",cpu_kvcache_space_bytes="{kept}"}} 1.0')

    async def models(self, request: Request) -> Response:
        if (no := self._unauthorised(request)) is not None:
            return no
        cards = [{"id": "base", "root": "base"}, *({"id": n, "root": p} for n, p in self.adapters.items())]
        return JSONResponse({"object": "list", "data": cards})

    async def load(self, request: Request) -> Response:
        if (no := self._unauthorised(request)) is not None:
            return no
        if not self.lora:
            return JSONResponse({"detail": "Not Found"}, 404)
        body = await request.json()
        name, folder = body["lora_name"], body["lora_path"]
        if name in self.adapters:
            return _error(400, f"The lora adapter '{name}' has already been loaded.")
        if not (Path(folder) / "adapter_config.json").is_file():
            return _error(404, f"Loading lora {name} failed: No adapter found for {folder}")
        while not self.may_load.is_set():
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self._load, name, folder)
        self.adapters[name] = folder
        self.first = self.first or name
        return Response(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if name not in self.adapters:
            return _error(404, f"The lora adapter '{name}' cannot be found.")
        del self.adapters[name]
        return Response("Success")

    async def generate(self, request: Request) -> Response:
        if (no := self._unauthorised(request)) is not None:
            return no
        if not self.scale_out:
            return _error(403, "Scale-out endpoints are disabled.")
        asked = await request.json()
        self.requests.append(asked)
        fault = self.faults.popleft() if self.faults and not asked["request_id"].startswith("probe") else ""
        if asked["model"] not in ("base", *self.adapters) or fault == "404":
            return _error(404, f"The model `{asked['model']}` does not exist.")
        if fault == "429":
            return JSONResponse({"error": "too many requests"}, 429, {"Retry-After": "0"})
        if fault == "503":
            return JSONResponse({"error": "try again later"}, 503)
        if fault == "500":
            return _error(500, "EngineCore encountered an issue.")
        if fault == "garbage":
            return Response(b"<html>Bad gateway</html>")
        if fault.startswith("slow "):  # and how many seconds
            await asyncio.sleep(float(fault.removeprefix("slow ")))
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "stale":
            asked = {**asked, "model": next(iter(self.adapters))}
        self.in_flight += 1
        try:
            if asked["sampling_params"].get("prompt_logprobs") is not None and self.in_flight > 1 and self.on_cpu:
                return _error(500, "EngineCore encountered an issue: einsum(): subscript b has size 5")  # as vLLM does
            while not self.may_write.is_set() and not asked["request_id"].startswith("probe"):
                await asyncio.sleep(0.005)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.keeps_first and not asked["request_id"].startswith("probe"):
                tokens, logprobs, stopped = await self._write({**asked, "model": self.first})
            else:
                tokens, logprobs, stopped = await self._write(asked)
            if not asked["request_id"].startswith("probe"):
                logprobs = [p + self.bias for p in logprobs]
            if fault == "half":
                tokens, logprobs, stopped = (
                    tokens[: max(1, len(tokens) // 2)],
                    logprobs[: max(1, len(tokens) // 2)],
                    True,
                )
        finally:
            self.in_flight -= 1
        body: dict[str, Any] = {
            "request_id": asked["request_id"],
            "model": "base" if fault == "wrong model" else asked["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop" if stopped else "length",
                    "stop_reason": None,
                    "token_ids": tokens,
                    "logprobs": {
                        "content": [
                            {"token_id": t, "logprob": p, "rank": 1, "top_logprobs": []}
                            for t, p in zip(tokens, logprobs, strict=True)
                        ]
                    },
                }
            ],
            "prompt_logprobs": None,
        }
        if asked["sampling_params"].get("prompt_logprobs") is not None:
            body["prompt_logprobs"] = await asyncio.to_thread(self._prompt_logprobs, asked)
        answer = JSONResponse(body)
        if fault == "truncated":
            return Response(answer.body[: len(answer.body) // 2], headers={"content-length": str(len(answer.body))})
        if fault == "slow loris":
            return StreamingResponse(_drops(bytes(answer.body)))
        return answer

    def _unauthorised(self, request: Request) -> Response | None:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        return None

    # ------------------------------------------------------------------------------------------------ the model

    @property
    def policy(self) -> Any:
        """With its adapters, once it has any."""
        return self.base if self.model is None else self.model

    def _load(self, name: str, folder: str) -> None:
        with self.lock:
            if self.model is None:
                self.model = PeftModel.from_pretrained(self.base, folder, adapter_name=name)
                self.model.requires_grad_(False).eval()
                PreparedModel(self.model)
            elif name not in self.model.peft_config:
                self.model.load_adapter(folder, adapter_name=name)

    @contextlib.contextmanager
    def _acting(self, name: str) -> Iterator[None]:
        with self.lock:
            if name == "base":
                with inference(self.base):
                    yield
                return
            if self.model.active_adapter != name:  # looking through the model takes as long as writing a token
                self.model.set_adapter(name)
            with acting(self.model):
                yield

    async def _write(self, asked: dict[str, Any]) -> Written:
        temperature = asked["sampling_params"]["temperature"]
        if self.lockstep is None or temperature != self.lockstep.settings.temperature:
            return await self._in_turn(asked)
        session, row, turn = asked["request_id"].rsplit("-", 2)
        mine: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting = self.lockstep.waiting.setdefault((session, int(turn)), {})
        waiting[int(row)] = (asked, mine)
        if len(waiting) == self.lockstep.rows:
            written = await asyncio.to_thread(self._together, session, {r: a for r, (a, _) in waiting.items()})
            for number, (_, future) in waiting.items():
                future.set_result(written[number])
        return await mine

    async def _in_turn(self, asked: dict[str, Any]) -> Written:
        """Written together with whatever else waits when the model is free."""
        mine: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self.waiting.append((asked, mine))
        if self.writing is None or self.writing.done():
            self.writing = asyncio.create_task(self._write_what_waits())
        return await mine

    async def _write_what_waits(self) -> None:
        while self.waiting:
            kind = _kind(self.waiting[0][0])
            batch = [w for w in self.waiting if _kind(w[0]) == kind]
            self.waiting = [w for w in self.waiting if _kind(w[0]) != kind]
            try:
                written = await asyncio.to_thread(self._alone, [asked for asked, _ in batch])
            except Exception as problem:
                for _, future in batch:
                    future.set_exception(problem)
                continue
            for (_, future), each in zip(batch, written, strict=True):
                future.set_result(each)

    def _alone(self, asked: list[dict[str, Any]]) -> list[Written]:
        """Rows that know nothing of each other, nor of their earlier turns."""
        sampling = [each["sampling_params"] for each in asked]
        settings = AgentSettings(
            temperature=sampling[0]["temperature"],
            max_turn_tokens=max(s["max_tokens"] for s in sampling),
        )
        stops = sampling[0].get("stop_token_ids", [])
        session = self._session(settings, [each["token_ids"] for each in asked], 1, stops)
        with self._acting(asked[0]["model"]):
            found = session.write(dict(enumerate(asked)))
            written = [found[row] for row in range(len(asked))]
            if self.raw_logprobs:
                written = [self._raw(each, tokens, end) for each, (tokens, _, end) in zip(asked, written, strict=True)]
        return written

    def _raw(self, asked: dict[str, Any], tokens: list[int], stopped: bool) -> Written:
        """With log-probs as they are at temperature 1."""
        scores = self.policy(torch.tensor([[*asked["token_ids"], *tokens]])).logits[0].log_softmax(-1)
        first = len(asked["token_ids"]) - 1
        return tokens, [float(scores[first + i, token]) for i, token in enumerate(tokens)], stopped

    def _together(self, name: str, asked: dict[int, dict[str, Any]]) -> dict[int, Any]:
        assert self.lockstep is not None
        how = self.lockstep
        if name not in how.sessions:
            prompts = [asked[row]["token_ids"] for row in sorted(asked)][:: how.num_rollouts]
            stops = asked[0]["sampling_params"].get("stop_token_ids", [])
            how.sessions[name] = self._session(how.settings, prompts, how.num_rollouts, stops)
        with self._acting(asked[0]["model"]):
            return how.sessions[name].write(asked)

    def _session(
        self, settings: AgentSettings, prompts: list[list[int]], num_rollouts: int, stops: list[int]
    ) -> WireSession:
        chat = ChatBridge(self.tokenizer, stop_ids=stop_ids_of(self.policy))
        start = SessionStart(chat, settings, [Encoded(p, ()) for p in prompts], num_rollouts, seed=0)
        session = WireSession(Decoder(self.policy), start)
        session._stop_ids = torch.tensor(stops, dtype=torch.long)
        return session

    def _prompt_logprobs(self, asked: dict[str, Any]) -> list[Any]:
        ids = asked["token_ids"]
        with self._acting(asked["model"]):
            scores = self.policy(torch.tensor([ids])).logits[0].log_softmax(-1)
        pairs = [{str(t): {"logprob": float(scores[i, t]), "rank": 1}} for i, t in enumerate(ids[1:])]
        return [None, *pairs]


def _kind(asked: dict[str, Any]) -> tuple[Any, ...]:
    """Requests of one kind can be written together."""
    sampling = asked["sampling_params"]
    return asked["model"], sampling["temperature"], *sampling.get("stop", ()), *sampling.get("stop_token_ids", ())


def _error(code: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "Error", "code": code}}, code)


async def _drops(body: bytes) -> AsyncIterator[bytes]:
    for byte in body:
        yield bytes([byte])
        await asyncio.sleep(0.3)
