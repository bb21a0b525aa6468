"""The routes: OpenAI's chat completions, responses and models; our requests, feedback, health and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ....agents.chat import ChatTemplateError
from ....rollouts.runner import DataError
from ..answers import answer_as_json
from ..conversations import Conversation
from ..requests import BATCH_TOKENS, Request, Sampling, parse_request
from .asking import Engine
from .completion import ChatForm, ResponseForm, request_number
from .conversation import Uploads, recorded, row_of, told, tools_of, wanted_of
from .guard import Guard
from .problems import HttpProblem, template_problem
from .schema import Asked, ChatMessage, ChatRequest, Feedback, ResponsesRequest, read

if TYPE_CHECKING:
    from ..backend import EngineBackend

log = logging.getLogger(__name__)

CHARACTERS_A_TOKEN = 16
"""A text with more than this many characters per token of the limit is refused without tokenising it."""


@dataclass(frozen=True)
class Api:
    """The handlers and the objects that they share."""

    backend: EngineBackend
    engine: Engine
    guard: Guard
    uploads: Uploads

    # -------------------------------------------------------------------------------------------------- handlers

    async def chat(self, request: HttpRequest) -> Response:
        body = read(ChatRequest, await self.guard.json_body(request))
        if (body.messages is None) == (body.task_data is None):
            raise HttpProblem(400, "give either messages or task_data, not both", param="messages")
        if body.top_logprobs and not body.logprobs:
            raise HttpProblem(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        tools = tools_of(body)
        wanted = await asyncio.to_thread(wanted_of, body, tools)  # a schema may be large
        if body.messages is not None:
            row, conversation = await asyncio.to_thread(
                self._row, self._source(request, body), body, body.messages, tools
            )
        else:
            row, conversation = {"task_data": await asyncio.to_thread(self.uploads.task, body.task_data or {})}, None
        limit = body.max_completion_tokens or body.max_tokens
        likeliest = (body.top_logprobs or 0) if body.logprobs else None
        more = {"seed": body.seed, "stop": body.stops, "texts": body.n or 1, "likeliest": likeliest}
        ask = self._request(request, row, body, limit, **more)
        ask = replace(ask, conversation=conversation, wanted=wanted)
        self._check_texts(ask)
        usage = bool(body.stream_options and body.stream_options.include_usage)
        form = ChatForm(self._model_name(ask.version), self.backend.text_of_token, usage)
        return await self._answer(body, ask, request, form)

    async def responses(self, request: HttpRequest) -> Response:
        body = read(ResponsesRequest, await self.guard.json_body(request))
        messages = [ChatMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
        if body.previous_response_id is not None:
            before = self.backend.turn(self._source(request, body), body.previous_response_id)
            if before is None:
                raise HttpProblem(
                    400,
                    f"the response {body.previous_response_id[:100]!r} is not stored; only recent ones are, and only "
                    "their caller can continue them",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            earlier = [ChatMessage(role=m["role"], content=m["content"]) for m in before.messages]
            if body.instructions and earlier[0].role == "system":  # new instructions replace earlier ones
                del earlier[0]
            messages = earlier + messages
        if body.instructions:
            messages = [ChatMessage(role="system", content=body.instructions), *messages]
        row, conversation = await asyncio.to_thread(self._row, self._source(request, body), body, messages)
        ask = replace(self._request(request, row, body, body.max_output_tokens), conversation=conversation)
        form = ResponseForm(self._model_name(ask.version), self.backend.text_of_token)
        return await self._answer(body, ask, request, form)

    async def _answer(self, body: Asked, ask: Request, http: HttpRequest, form: ChatForm) -> Response:
        if body.stream:
            return self.engine.stream(ask, form)
        return JSONResponse(form.whole(await self.engine.answer(ask, http)))

    async def rows(self, request: HttpRequest) -> Response:
        """`POST /v1/requests`: answer a task of the run's environment, in the format of a request file."""
        data = await self.guard.json_body(request)
        for name in ("env_class_path", "env_config"):
            if name in data:  # only the run's configuration may name code to load, callers may not
                raise HttpProblem(400, f"{name} is fixed by the run's configuration; leave it out", param=name)
        if isinstance(data.get("task_data"), Mapping):
            data = {**data, "task_data": await asyncio.to_thread(self.uploads.task, data["task_data"])}
        ask = self._request(request, data, Asked(), None)
        return JSONResponse(answer_as_json(await self.engine.answer(ask, request)))

    async def feedback(self, request: HttpRequest) -> Response:
        feedback = read(Feedback, await self.guard.json_body(request))
        if feedback.verdict is None and feedback.answer is None and feedback.correction is None:
            raise HttpProblem(400, "give verdict (right or wrong), the right answer, or a correction", param="verdict")
        source = self.guard.source(request, feedback.source)
        try:
            number = request_number(feedback.id)
            return await self.engine.call_keeper(lambda keeper: keeper.take(number, feedback, source))
        except KeyError:
            raise HttpProblem(
                404, f"the answer {feedback.id[:100]!r} is not stored; only recent, complete ones are", param="id"
            ) from None
        except ValueError as error:
            raise HttpProblem(400, str(error)) from None

    async def unjudged(self, request: HttpRequest) -> Response:
        """`GET /v1/feedback`: remembered answers without feedback, the least certain first."""
        limit = request.query_params.get("limit", "50")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 5 and 1 <= int(limit) <= 1000):
            raise HttpProblem(400, "limit must be a number from 1 to 1000", param="limit")
        return await self.engine.call_keeper(lambda keeper: keeper.unjudged(int(limit)))

    async def feedback_outcome(self, request: HttpRequest) -> Response:
        """`GET /v1/feedback/{id}`: the update and the version that contain the feedback."""
        identifier = request.path_params["id"]
        try:
            number = request_number(identifier)
            return await self.engine.call_keeper(lambda keeper: keeper.outcome(number))
        except KeyError:
            raise HttpProblem(404, f"there is no feedback on the answer {identifier[:100]!r}", param="id") from None

    async def models(self, request: HttpRequest) -> Response:
        """`GET /v1/models`: the served policy, and each version that can be requested."""
        names = [self.backend.model, *(self._model_name(v) for v in self.backend.versions())]
        return JSONResponse({"object": "list", "data": [_model(name) for name in names]})

    async def model(self, request: HttpRequest) -> Response:
        name = request.path_params["name"]
        self._version(name)
        return JSONResponse(_model(name))

    async def health(self, request: HttpRequest) -> Response:
        """`GET /health`: 200 while requests are answered and, if the run learns, the update worker is alive."""
        learning, servers = self.backend.learning(), self.backend.follower.servers()
        answering = servers is None or servers.up > 0
        status = "ok" if answering and learning != "dead" else "degraded"
        values = {"status": status, "learning": learning, "policy_version": self.backend.follower.version}
        if servers is not None:
            values["rollout_servers"] = {"in": servers.up, "of": servers.all}
        return JSONResponse({**values, "waiting": self.backend.source.waiting}, 503 if status == "degraded" else 200)

    async def prometheus(self, request: HttpRequest) -> Response:
        return Response(generate_latest(self.engine.metrics.registry), media_type="text/plain; version=0.0.4")

    # ------------------------------------------------------------------------------------ from the body to a task

    def _row(
        self, source: str, body: Asked, messages: list[ChatMessage], tools: Sequence[Mapping[str, object]] = ()
    ) -> tuple[dict[str, object], Conversation | None]:
        """Build the task of a conversation, and its prompt. Call it on a thread, because it would block other callers.

        The conversation is None if no running batch answers it. Raises HttpProblem.
        """
        backend, history = self.backend, told(messages)
        if tools and (problem := backend.tools_problem()):
            raise HttpProblem(400, f"tools: {problem}", param="tools", code="unsupported_value")
        with_tools = bool(tools) or any(m["role"] == "tool" or "tool_calls" in m for m in history)
        env_class = None if with_tools else backend.env_class
        row = row_of(messages, self.uploads, backend.environment, env_class, backend.sees)
        if with_tools:
            row["task_data"] = {"messages": recorded(history)}
        if not backend.writes_text(row["env_class_path"], body.ensemble):
            return row, None
        self._check_length(characters=sum(map(len, _texts(row["task_data"]))) + len(json.dumps(list(tools))))
        try:
            conversation = backend.conversation(source, history, tools, prompted=with_tools)
        except ChatTemplateError as error:
            raise template_problem(error) from None
        self._check_length(tokens=len(conversation.prompt or ()))
        return row, conversation

    def _source(self, request: HttpRequest, body: Asked) -> str:
        return self.guard.source(request, body.user or body.safety_identifier)

    def _request(
        self, http: HttpRequest, row: Mapping[str, object], body: Asked, max_tokens: int | None, **more: Any
    ) -> Request:
        """Build the request for the engine. more: other fields of `Sampling`. Raises HttpProblem."""
        version = None if body.model is None else self._version(body.model)
        try:
            request = parse_request(row, self.backend.environment)
        except DataError as error:
            raise HttpProblem(400, str(error)) from error
        texts = list(_texts(request.row.task_data))
        self._check_length(characters=sum(map(len, texts)))
        prompt = sum(map(self.backend.count_tokens, texts))
        self._check_length(tokens=prompt)
        limit = self.backend.max_trajectory_tokens
        max_tokens = None if max_tokens is None else min(max_tokens, limit)
        sampling = Sampling(body.temperature, max_tokens, body.ensemble, **more)
        longest = min(limit, prompt + (max_tokens or limit))
        return replace(
            request,
            sampling=sampling,
            version=version,
            tokens=self.backend.samples * longest,
            deadline=time.perf_counter() + self.backend.timeout_s,
            source=self._source(http, body),
        )

    def _check_texts(self, ask: Request) -> None:
        """Raise HttpProblem for too many texts, or for settings of texts if the answer is not written as text."""
        sampling, wanted = ask.sampling, ask.wanted
        options = {
            "n": sampling.texts > 1,
            "stop": sampling.stop,
            "logprobs": sampling.likeliest is not None,
            "tools": wanted is not None and wanted.tools,
            "response_format": wanted is not None and wanted.json,
        }
        name = next((name for name, present in options.items() if present), None)
        if name is not None and not self.backend.writes_text(ask.row.env_class_path, sampling.ensemble):
            raise HttpProblem(
                400,
                f"{name} is not supported for this answer: it needs a conversation that the policy answers in its "
                "running batch, without a vote, images or rollout servers",
                param=name,
                code="unsupported_value",
            )
        longest = ask.tokens // self.backend.samples
        if sampling.texts * longest > max(longest, BATCH_TOKENS):
            reason = f"{sampling.texts} texts of up to {longest} tokens exceed {BATCH_TOKENS}: lower n or max_tokens"
            raise HttpProblem(400, reason, param="n")

    def _check_length(self, *, characters: int = 0, tokens: int = 0) -> None:
        limit = self.backend.max_trajectory_tokens
        if characters > CHARACTERS_A_TOKEN * limit or tokens >= limit:
            size = f"{tokens} tokens" if tokens else f"{characters} characters"
            raise HttpProblem(
                400,
                f"the prompt has {size}; a whole trajectory has at most {limit} tokens (online.max_trajectory_tokens)",
                param="messages",
                code="context_length_exceeded",
            )

    # -------------------------------------------------------------------------------------------- models by name

    def _model_name(self, version: int | None) -> str:
        return self.backend.model if version is None else f"{self.backend.model}@{version}"

    def _version(self, name: str) -> int | None:
        """Parse the version in a model's name; None means the served version. Raises HttpProblem (404)."""
        if name == self.backend.model:
            return None
        base, _, version = name.rpartition("@")
        number = int(version) if version.isascii() and version.isdigit() and len(version) <= 12 else None
        if base == self.backend.model and number in self.backend.versions():
            return number
        raise HttpProblem(
            404,
            f"the model {name[:200]!r} does not exist; there is {self.backend.model!r}, and its versions are listed by "
            "GET /v1/models",
            param="model",
            code="model_not_found",
        )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "grpo-tui"}


def make_app(api: Api) -> Starlette:
    """Return the ASGI application."""

    def route(path: str, handler: Callable[[HttpRequest], Awaitable[Response]], method: str) -> Route:
        async def handle(request: HttpRequest) -> Response:
            try:
                if path != "/health":
                    api.guard.admit(request)
                response = await handler(request)
            except HttpProblem as problem:
                response = problem.response()
            except Exception:
                log.exception("an HTTP request failed")
                response = HttpProblem(500, "internal error. See the run's log.").response()
            api.engine.metrics.requests.labels(path, str(response.status_code)).inc()
            return response

        return Route(path, handle, methods=[method])

    routes = [
        route("/v1/chat/completions", api.chat, "POST"),
        route("/v1/responses", api.responses, "POST"),
        route("/v1/requests", api.rows, "POST"),
        route("/v1/feedback", api.feedback, "POST"),
        route("/v1/feedback", api.unjudged, "GET"),
        route("/v1/feedback/{id}", api.feedback_outcome, "GET"),
        route("/v1/models", api.models, "GET"),
        route("/v1/models/{name:path}", api.model, "GET"),
        route("/health", api.health, "GET"),
        route("/metrics", api.prometheus, "GET"),
    ]
    paths = dict.fromkeys(r.path_format for r in routes)

    async def no_route(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        endpoint = f"{request.method[:20]} {request.url.path[:100]}"
        known = f"there is {', '.join(paths)}"
        if error.status_code == 405:
            known = f"{request.url.path[:100]} accepts another method"
        response = HttpProblem(error.status_code, f"there is no {endpoint}; {known}").response()
        response.headers.update(error.headers or {})
        return response

    return Starlette(routes=routes, exception_handlers={404: no_route, 405: no_route})
