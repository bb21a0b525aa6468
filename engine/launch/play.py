"""Play tasks by hand: start the process of `engine.training.play` and exchange JSON lines with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.codec import decode_body
from ..runs.control.status import look
from ..runs.types import RunInfo, ToolSpec, TrajectoryRecord
from .start import start_run
from .stop import wait_until_gone

if TYPE_CHECKING:
    from ...configs.schema import RunConfig


@dataclass(frozen=True)
class Situation:
    """The rollout so far. task: its number (from 0) of `tasks`. tools: shown to the policy. over: it has ended."""

    record: TrajectoryRecord
    tools: tuple[ToolSpec, ...]
    task: int
    tasks: int
    over: bool


@dataclass(frozen=True)
class Continuation:
    """The rollout as continued by the model. text: the model's first turn, at step `step` (from 0)."""

    record: TrajectoryRecord
    text: str
    step: int
    over: bool


@dataclass(frozen=True)
class Refusal:
    """A request failed. message: the reason as one sentence."""

    message: str


Event = Situation | Continuation | Refusal


class Play:
    """A session of playing by hand. Raises LaunchError if the process cannot be started."""

    def __init__(self, config: RunConfig, runs_dir: Path, run_id: str | None = None) -> None:
        child_stdin, commands_fd = os.pipe()
        events_fd, child_stdout = os.pipe()
        try:
            self.run = start_run(
                config, runs_dir=runs_dir, run_id=run_id, by_hand=True, stdin=child_stdin, stdout=child_stdout
            )
        except BaseException:
            os.close(commands_fd)
            os.close(events_fd)
            raise
        finally:
            os.close(child_stdin)
            os.close(child_stdout)
        self._commands = os.fdopen(commands_fd, "w", encoding="utf-8")
        self._events = os.fdopen(events_fd, encoding="utf-8", errors="replace")

    def events(self) -> Iterator[Event]:
        for line in self._events:
            yield _event(json.loads(line))

    def send(self, **command: object) -> None:
        """Send a command; see `engine.training.play`. Does nothing once the process has ended."""
        with suppress(OSError):
            self._commands.write(json.dumps(command) + "\n")
            self._commands.flush()

    def close(self) -> RunInfo:
        """End the process, wait until its record is complete, and return the state of the run."""
        with suppress(OSError):
            self._commands.close()
        wait_until_gone(Path(self.run.path), 20.0)
        return look(Path(self.run.path))


def _event(data: dict[str, Any]) -> Event:
    if data["event"] == "problem":
        return Refusal(data["message"])
    tools = tuple(ToolSpec.from_json(tool) for tool in data["tools"])
    record = decode_body(data["record"].encode(), tools)
    if data["event"] == "model":
        return Continuation(record, data["text"], data["step"], data["over"])
    return Situation(record, tools, data["task"], data["tasks"], data["over"])
