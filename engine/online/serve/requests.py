"""Requests to the engine from the environment, from a file of JSON lines, or over HTTP."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from pathlib import Path

from ....configs.sections import EnvironmentConfig
from ...rollouts.runner import DataError, Row, parse_row
from .conversations import Conversation
from .texts import Piece
from .wanted import Wanted

BATCH_TOKENS = 32768
"""Maximum total number of tokens, over all samples, of requests that are answered together."""
ATTEMPTS = 3
"""Attempts to answer a request while rollout servers fail."""


class RequestDropped(RuntimeError):
    """A request was dropped because its caller disconnected or its deadline passed."""


class NotWritten(RuntimeError):
    """The policy could not write a text, for example without memory. The message contains the reason."""


class PolicyAway(RequestDropped):
    """The policy has been unavailable for too long. The message contains the reason."""


class ServerEnds(RequestDropped):
    """The run is ending and accepts no more requests."""


@dataclass(frozen=True)
class Sampling:
    """A caller's sampling settings. None means the configured value."""

    temperature: float | None = None
    max_tokens: int | None = None
    """Maximum number of tokens that the policy writes in a trajectory."""
    ensemble: bool | None = None
    """Whether to answer with a sample that agrees with the majority of samples. None: the environment's default."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """A text ends before the first of these strings."""
    texts: int = 1
    """Number of texts for the caller."""
    likeliest: int | None = None
    """Number of likeliest tokens per position for which the caller wants log-probs. None: no log-probs at all."""

    @property
    def is_own(self) -> bool:
        """Whether the caller chose the sampling, so answers may differ from those of the served policy."""
        return self.temperature is not None or self.max_tokens is not None


@dataclass(frozen=True, eq=False)
class Request:
    """One task to answer.

    number: counts the run's requests from 1. place: counts the rows of the run's file or environment from 1; 0 for a
    caller's request. reply: called with the answer on the engine's thread. fields: returned with the answer, such as
    the caller's id. version: the snapshot that answers (None: the served one). tokens: the maximum total number of
    tokens of all samples. source: `caller` or `caller/user` (`http/guard.py`), empty for the run's own requests.
    deadline: in `time.perf_counter()`. cancelled: set once the caller has disconnected.
    """

    row: Row
    number: int = 0
    place: int = 0
    fields: Mapping[str, object] = field(default_factory=dict)
    reply: Callable[[object], None] | None = None
    arrived: float = field(default_factory=time.perf_counter)
    sampling: Sampling = Sampling()
    version: int | None = None
    tokens: int = 0
    deadline: float | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    source: str = ""
    on_text: Callable[[int, Piece], None] | None = None
    """Called with the request's number and each piece of its texts, on the engine's thread."""
    conversation: Conversation | None = None
    """The messages of a caller's conversation."""
    wanted: Wanted | None = None
    """The form of the text, if the caller asked for one."""
    attempts: int = 0
    """Number of attempts interrupted because the policy was unavailable."""

    def send(self, outcome: object) -> None:
        """Reply with the answer or an error, if the request has a caller."""
        if self.reply is not None:
            self.reply(outcome)

    @property
    def batch_key(self) -> tuple[Sampling, int | None]:
        """The key of requests that can be answered together."""
        return self.sampling, self.version

    def gone(self) -> str | None:
        """Return the reason why the request is obsolete; None while its caller is waiting."""
        if self.cancelled.is_set():
            return "the caller disconnected"
        if self.deadline is not None and time.perf_counter() > self.deadline:
            return "its deadline passed before it was answered"
        return None


_KEYS = ("id", "env_class_path", "env_config", "task_data")


def parse_request(raw: object, defaults: EnvironmentConfig, where: str = "the request") -> Request:
    """Parse a JSON object with `task_data`, and optionally `env_class_path`, `env_config` and `id`.

    Raises DataError.
    """
    if not isinstance(raw, Mapping):
        raise DataError(f"{where} must be a JSON object, not {type(raw).__name__}")
    unknown = sorted(set(raw) - set(_KEYS))
    if unknown:
        raise DataError(f"{where}: unknown field {unknown[0]!r}; known fields: {', '.join(_KEYS)}")
    identifier = raw.get("id")
    if identifier is not None and not isinstance(identifier, (str, int)):
        raise DataError(f"{where}: id must be text or a whole number")
    if "task_data" not in raw:
        raise DataError(f"{where}: task_data is missing")
    values = {"env_class_path": defaults.class_path, "env_config": defaults.config, **raw}
    return Request(parse_row(values, where), fields={} if identifier is None else {"id": identifier})


def parse_line(line: str | bytes, defaults: EnvironmentConfig, where: str) -> Request:
    """Parse a request from a line of JSON. Raises DataError."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error})") from error
    return parse_request(raw, defaults, where)


def read_requests(path: Path, defaults: EnvironmentConfig) -> list[Request]:
    """Read and check the requests in a JSONL file. Raises DataError with the line number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the file of requests {path} cannot be read: {error}") from error
    lines = enumerate(text.split("\n"), 1)  # not `splitlines`: JSON strings may contain other line separators
    return [parse_line(line, defaults, f"{path}, line {number}") for number, line in lines if line.strip()]


FeedbackCall = tuple[Callable[..., object], Callable[[object], None]]
"""A function of the `FeedbackKeeper` to call on the engine's thread, and a callback for its result or error."""


@dataclass(eq=False)
class RequestSource:
    """Pending requests: first callers (HTTP), then the rows of a file or of the environment, in order.

    The requests of a batch share sampling and version, and have at most `batch_tokens` tokens in total (a single
    request may have more). When `max_waiting` callers wait, new ones are refused (queue.Full).
    """

    rows: InitVar[Iterable[Request]] = ()
    _: KW_ONLY
    open_ended: bool = False
    max_waiting: int = 64
    batch_tokens: int = BATCH_TOKENS

    def __post_init__(self, rows: Iterable[Request]) -> None:
        self._rows: Iterator[Request] = iter(rows)
        self._rows_left = True
        self._callers: deque[Request] = deque()
        self.interrupted: deque[Request] = deque()
        """Requests that an unavailable policy interrupted. They are retried one by one, in case one of them caused the
        failure."""
        self.feedback: deque[FeedbackCall] = deque()
        """Calls that wait for the engine's thread."""
        self._ended = False
        self._changed = threading.Condition()
        self.rows_taken = 0
        self.seconds_a_request: float | None = None
        """Recent engine time per request, in seconds; None before the first request."""

    def took(self, requests: int, seconds: float) -> None:
        mean = seconds / max(1, requests)
        before = self.seconds_a_request
        self.seconds_a_request = mean if before is None else 0.8 * before + 0.2 * mean

    @property
    def waiting(self) -> int:
        return len(self._callers)

    def submit(self, request: Request, *, wait: bool = False) -> None:
        """Add a caller's request, from any thread. If full, raise queue.Full or wait. Raises ServerEnds at the end."""
        with self._changed:
            if self._ended:
                raise ServerEnds
            if not wait and len(self._callers) >= self.max_waiting:
                self._drop_disconnected()
                if len(self._callers) >= self.max_waiting:
                    raise queue.Full
            self._changed.wait_for(lambda: len(self._callers) < self.max_waiting)
            self._callers.append(request)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.open_ended = False
            self._changed.notify_all()

    def turn_away(self) -> None:
        """Tell all waiting and future callers, including those with feedback, that the run is ending."""
        with self._changed:
            self._ended = True
            self.turn_back(ServerEnds())
            self._callers.clear()
            for _, reply in self.take_feedback():
                reply(ServerEnds())

    def turn_back(self, problem: RequestDropped) -> None:
        """Reply to waiting callers with the problem. Requests without a reply, such as from a pipe, keep waiting."""
        with self._changed:
            for waiting in (self._callers, self.interrupted):
                for request in [r for r in waiting if r.reply is not None]:
                    waiting.remove(request)
                    request.send(problem)
            self._changed.notify_all()

    def retry(self, requests: Iterable[Request], fail: Callable[[Request, Exception], None]) -> None:
        """Keep interrupted requests for another attempt, up to `ATTEMPTS` in all. fail: called with the others."""
        for request in requests:
            if request.attempts + 1 < ATTEMPTS:
                with self._changed:
                    self.interrupted.append(replace(request, attempts=request.attempts + 1))
            else:
                fail(request, PolicyAway(f"no rollout server could answer it in {ATTEMPTS} attempts"))

    def submit_feedback(self, call: FeedbackCall) -> None:
        """Submit a call about feedback, from any thread. Raises queue.Full, and ServerEnds at the end."""
        with self._changed:
            if self._ended:
                raise ServerEnds
            if len(self.feedback) >= self.max_waiting:
                raise queue.Full
            self.feedback.append(call)
            self._changed.notify_all()

    def take_feedback(self) -> list[FeedbackCall]:
        with self._changed:
            calls = list(self.feedback)
            self.feedback.clear()
        return calls

    def skip(self, rows: int) -> None:
        """Skip rows that were answered before a restart."""
        for _ in range(rows):
            if next(self._rows, None) is None:
                self._rows_left = False
                return
            self.rows_taken += 1

    def take(self, limit: int, timeout: float, only: Callable[[Request], bool] | None = None) -> list[Request]:
        """Take an interrupted request, else up to `limit` requests for one batch. If there are none, wait up to
        `timeout` seconds for a caller.

        only: a filter for callers' requests. With a filter, no rows are taken.
        """
        with self._changed:
            self._drop_disconnected()
            if only is not None:
                return self._batch(limit, only)
            if self.interrupted:
                return [self.interrupted.popleft()]
            if not self._callers and not self._rows_left and self.open_ended:
                self._changed.wait_for(lambda: bool(self._callers or self.feedback) or not self.open_ended, timeout)
                self._drop_disconnected()
            taken = self._batch(limit)
        while len(taken) < limit and self._rows_left and (not taken or taken[0].batch_key == (Sampling(), None)):
            row = next(self._rows, None)
            if row is None:
                self._rows_left = False
            else:
                self.rows_taken += 1
                taken.append(replace(row, place=self.rows_taken))
        return taken

    def _batch(self, limit: int, only: Callable[[Request], bool] | None = None) -> list[Request]:
        """Take the oldest request and later ones that fit into the same batch."""
        taken: list[Request] = []
        tokens = 0
        for request in list(self._callers):
            if len(taken) == limit:
                break
            if only is not None and not only(request):
                continue
            fits = tokens + request.tokens <= self.batch_tokens
            if not taken or (fits and request.batch_key == taken[0].batch_key):
                taken.append(request)
                tokens += request.tokens
                self._callers.remove(request)
        if taken:
            self._changed.notify_all()
        return taken

    def _drop_disconnected(self) -> None:
        """Drop requests whose callers disconnected or whose deadlines passed."""
        for waiting in (self._callers, self.interrupted):
            for request in list(waiting):
                if (reason := request.gone()) is not None:
                    waiting.remove(request)
                    request.send(RequestDropped(reason))

    @property
    def ended(self) -> bool:
        return not self.open_ended and not self._rows_left and not self._callers
