"""What is asked of the engine, and where it comes from: the environment, a file of JSON lines, or HTTP."""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....configs.sections import EnvironmentConfig
from ...rollouts.runner import Row, RowError, parse_row


class RequestError(ValueError):
    """A request cannot be understood; the message says what is wrong and what would be right."""


@dataclass(frozen=True)
class Request:
    """One task to answer. `number` counts the run's requests from 1; `reply` gets the answer, on the engine's thread.

    `fields`: what the caller wants back beside the answer, such as its own id.
    """

    row: Row
    number: int = 0
    id: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    reply: Callable[[Any], None] | None = None
    arrived: float = field(default_factory=time.perf_counter)


_KEYS = ("id", "env_class_path", "env_config", "task_data")


def parse_request(raw: Any, defaults: EnvironmentConfig, where: str = "the request") -> Request:
    """A JSON object with `task_data` and, if not the configuration's, `env_class_path` and `env_config`; `id` is free.

    Raises RequestError.
    """
    if not isinstance(raw, Mapping):
        raise RequestError(f"{where} must be a JSON object, not {type(raw).__name__}")
    unknown = sorted(set(raw) - set(_KEYS))
    if unknown:
        raise RequestError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(_KEYS)}")
    identifier = raw.get("id")
    if identifier is not None and not isinstance(identifier, (str, int)):
        raise RequestError(f"{where}: id must be text or a whole number")
    if "task_data" not in raw:
        raise RequestError(f"{where}: task_data is missing")
    values = {"env_class_path": defaults.class_path, "env_config": defaults.config, **raw}
    try:
        row = parse_row(values, where)
    except RowError as error:
        raise RequestError(str(error)) from error
    return Request(row, fields={} if identifier is None else {"id": identifier})


def read_requests(path: Path, defaults: EnvironmentConfig) -> list[Request]:
    """The requests of a JSONL file, all checked for their form. Raises RequestError with the line's number."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the file of requests {path} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                raw = json.loads(line)
            except ValueError as error:
                raise RequestError(f"{where}: not JSON ({error})") from error
            found.append(parse_request(raw, defaults, where))
    return found


class RequestSource:
    """What waits to be answered: callers first (HTTP), then the rows of a file or of the environment, in order.

    `ended` is true when no more can come. Callers are refused (queue.Full) beyond `max_waiting`.
    """

    def __init__(self, rows: Iterable[Request] = (), *, open_ended: bool = False, max_waiting: int = 64) -> None:
        self._rows: Iterator[Request] = iter(rows)
        self._rows_left = True
        self._open_ended = open_ended
        self._calls: queue.Queue[Request] = queue.Queue(max_waiting)
        self.rows_taken = 0

    def submit(self, request: Request, *, wait: bool = False) -> None:
        """Add a caller's request, from any thread. Raises queue.Full, or waits for room."""
        self._calls.put(request, block=wait)

    def close(self) -> None:
        """No caller comes any more."""
        self._open_ended = False

    def skip(self, rows: int) -> None:
        """Leave out rows that were answered before a restart."""
        for _ in range(rows):
            if next(self._rows, None) is None:
                self._rows_left = False
                return
            self.rows_taken += 1

    def take(self, limit: int, timeout: float) -> list[Request]:
        """Up to `limit` requests that wait; when none do, wait for a caller for `timeout` seconds."""
        taken: list[Request] = []
        while len(taken) < limit:
            try:
                taken.append(self._calls.get_nowait())
            except queue.Empty:
                break
        while len(taken) < limit and self._rows_left:
            row = next(self._rows, None)
            if row is None:
                self._rows_left = False
            else:
                self.rows_taken += 1
                taken.append(row)
        if not taken and self._open_ended:
            with contextlib.suppress(queue.Empty):
                taken.append(self._calls.get(timeout=timeout))
        return taken

    @property
    def ended(self) -> bool:
        """No row is left and no caller can come."""
        return not self._open_ended and not self._rows_left and self._calls.empty()


def rows_as_requests(rows: Sequence[Row]) -> Iterator[Request]:
    """Tasks of a dataset as requests, made when they are taken."""
    for row in rows:
        yield Request(row)
