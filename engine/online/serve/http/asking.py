"""Pass requests to the engine's thread and await the answers. A caller that disconnects cancels its request."""

from __future__ import annotations

import asyncio
import itertools
import math
import queue
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse

from ....agents.chat import ChatTemplateError
from ...store.snapshots import SnapshotError
from ..answers import Answer
from ..requests import NotWritten, PolicyAway, Request, RequestDropped, ServerEnds
from ..texts import Piece
from ..wanted import NotAsWanted
from .completion import ChatForm, event
from .problems import HttpProblem, template_problem

if TYPE_CHECKING:
    from ..backend import EngineBackend
    from ..feedback import FeedbackKeeper

KEEP_ALIVE_S = 10.0
"""Interval between comments in a waiting stream, which keep proxies from closing it."""


class ServerMetrics:
    """The metrics of `GET /metrics`, in their own registry."""

    def __init__(self, backend: EngineBackend) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "grpo_tui_http_requests", "Requests by path and status.", ("path", "status"), registry=self.registry
        )
        self.latency = Histogram(
            "grpo_tui_answer_seconds",
            "Time from the arrival of a question to its answer.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
            registry=self.registry,
        )
        self.tokens = Counter(
            "grpo_tui_tokens", "Tokens of all rollouts of answered questions.", ("kind",), registry=self.registry
        )
        for name, text, value in (
            ("grpo_tui_waiting", "Questions that wait for the engine.", lambda: backend.source.waiting),
            ("grpo_tui_policy_version", "The policy version that serves.", lambda: backend.follower.version),
            ("grpo_tui_learning", "1 while the update worker is alive.", lambda: backend.learning() == "running"),
        ):
            gauge = Gauge(name, text, registry=self.registry)
            gauge.set_function(lambda value=value: float(value()))


def _future_and_reply() -> tuple[asyncio.Future[Any], Callable[[object], None]]:
    """Return a future of the running loop, and a function that settles it from any thread."""
    future: Future[object] = Future()

    def reply(outcome: object) -> None:
        with suppress(InvalidStateError):  # the caller has left, or got an earlier reply
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    return asyncio.wrap_future(future), reply


@dataclass(frozen=True)
class Engine:
    """The handlers' access to the engine's thread."""

    backend: EngineBackend
    metrics: ServerMetrics

    async def call_keeper(self, call: Callable[[FeedbackKeeper], Mapping[str, object]]) -> Response:
        """Return the answer of the feedback keeper. Raises HttpProblem, and the call's own KeyError or ValueError."""
        future, reply = _future_and_reply()
        try:
            self.backend.source.submit_feedback((call, reply))
            return JSONResponse(dict(await asyncio.wait_for(future, self.backend.timeout_s)))
        except queue.Full:
            raise HttpProblem(429, "too much feedback is waiting. Try again later.", retry_after_s=5) from None
        except ServerEnds:
            raise _ending() from None
        except TimeoutError:
            raise HttpProblem(503, "the engine did not accept the feedback in time", retry_after_s=5) from None
        except (KeyError, ValueError):
            raise
        except Exception as error:
            raise HttpProblem(500, "the feedback could not be used. See the run's log.") from error

    def _submit(self, request: Request) -> asyncio.Future[Answer]:
        """Submit a request, and return the future of its answer. Raises HttpProblem if the queue is full or closed."""
        future, reply = _future_and_reply()
        try:
            self.backend.source.submit(replace(request, reply=reply))
        except ServerEnds:
            raise _ending() from None
        except queue.Full:
            wait = max(1, math.ceil(self.backend.source.waiting * (self.backend.source.seconds_a_request or 1.0)))
            raise HttpProblem(
                429, "too many requests are waiting. Try again later.", code="rate_limit_exceeded", retry_after_s=wait
            ) from None
        return future

    async def answer(self, request: Request, http: HttpRequest) -> Answer:
        """Return the engine's answer. A disconnect or a timeout cancels the request."""
        future = self._submit(request)
        disconnected = asyncio.ensure_future(_disconnected(http))
        try:
            done, _ = await asyncio.wait(
                {future, disconnected}, timeout=_seconds_left(request), return_when="FIRST_COMPLETED"
            )
            if future in done:
                return self._checked(request, future)
            if disconnected in done:
                raise HttpProblem(499, "the caller has disconnected")
            raise _timed_out(request)
        finally:
            request.cancelled.set()
            future.cancel()  # otherwise its error is logged as never retrieved
            disconnected.cancel()

    def stream(self, request: Request, form: ChatForm) -> Response:
        """Stream the answer as server-sent events: each piece as it is written, and comments before the first."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue()

        def on_text(number: int, piece: Piece) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, (number, piece))

        if request.wanted is None:  # otherwise the text is only sent once it has the form that the caller wants
            request = replace(request, on_text=on_text)
        future = self._submit(request)
        future.add_done_callback(lambda _: arrived.put_nowait(None))

        async def pieces() -> AsyncIterator[str]:
            sent = False
            try:
                while True:
                    wait = KEEP_ALIVE_S if sent else min(KEEP_ALIVE_S, _seconds_left(request))
                    try:
                        item = await asyncio.wait_for(arrived.get(), wait)
                    except TimeoutError:
                        if not sent and _seconds_left(request) <= 0:
                            raise _timed_out(request) from None
                        yield ": waiting for an answer\n\n"
                        continue
                    if item is None:
                        break
                    if item[1].text:
                        sent = True
                        yield form.piece(*item)
                answer = self._checked(request, future)
                for part in itertools.chain(form.rest(answer), form.end(answer)):
                    yield part
            except HttpProblem as problem:  # the head has been sent, so the error becomes an event
                yield event(problem.body())
            finally:
                request.cancelled.set()
                future.cancel()

        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nginx would hold pieces back
        return StreamingResponse(pieces(), media_type="text/event-stream", headers=headers)

    def _checked(self, request: Request, future: asyncio.Future[Answer]) -> Answer:
        error = future.exception()
        if isinstance(error, ServerEnds):
            raise _ending()
        if isinstance(error, PolicyAway):
            raise HttpProblem(503, f"{error}. Try again later.", retry_after_s=10)
        if isinstance(error, RequestDropped):
            raise _timed_out(request)
        if isinstance(error, NotAsWanted):
            raise HttpProblem(422, str(error), code="invalid_output")
        if isinstance(error, ChatTemplateError):
            raise template_problem(error)
        if isinstance(error, SnapshotError):
            raise HttpProblem(404, str(error), param="model", code="model_not_found")
        if isinstance(error, NotWritten):
            raise HttpProblem(500, f"the policy could not write the text ({error}). See the run's log.")
        if error is not None:
            raise HttpProblem(500, "the request could not be answered. See the run's log.")
        answer = future.result()
        if answer.error is not None:
            raise HttpProblem(422, f"the environment failed: {answer.error}")
        self.metrics.latency.observe(time.perf_counter() - request.arrived)
        for sample in answer.samples:
            written = int(sample.agent_mask.sum())
            self.metrics.tokens.labels("written").inc(written)
            self.metrics.tokens.labels("read").inc(len(sample) - written)
        return answer


def _seconds_left(request: Request) -> float:
    return max(0.0, (request.deadline or 0.0) - time.perf_counter())


async def _disconnected(request: HttpRequest) -> None:
    """Wait until the caller disconnects. Its body has already been read."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _timed_out(request: Request) -> HttpProblem:
    waited = (request.deadline or 0.0) - request.arrived
    return HttpProblem(503, f"there was no answer within {round(waited, 1):g} s. Try again later.", retry_after_s=5)


def _ending() -> HttpProblem:
    return HttpProblem(503, "the run is being stopped. Try again later.", retry_after_s=5)
