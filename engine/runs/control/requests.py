"""Requests to a run and its answers: small files in its folder, so no process listens on a port.

A request is `control/<id>.json`. Each process that acted on it adds `control/<id>.<process>.done`. Files appear by
rename, so no reader sees a half-written file. The launcher empties the folder before it starts or resumes a run, so
a request made while the run is loading is honoured.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, cast, get_args

from ..durable import read_json, write_json
from ..masking import mask_text
from ..paths import CONTROL
from ..remote.address import address_of
from .status import number

Command = Literal["pause", "resume", "checkpoint", "stop"]


@dataclass(frozen=True)
class RunRequest:
    """One request to a run, with the answers so far by process. `time` is in seconds since the epoch. The id `sigterm`
    represents the signal."""

    id: str
    command: Command
    time: float = 0.0
    answers: Mapping[str, str] = field(default_factory=dict)


def request(run_dir: Path | str, command: Command) -> str:
    """Write a request and return its id. Raises ValueError for an unknown command, OSError if writing fails."""
    if command not in get_args(Command):
        raise ValueError(f"unknown command {command!r}: use one of {', '.join(get_args(Command))}")
    if (address := address_of(Path(run_dir))) is not None:
        raise OSError(f"{mask_text(address)} is read-only: send the request on the machine of the run")
    id_ = f"{time.time_ns():020d}-{os.urandom(3).hex()}"
    write_json(Path(run_dir) / CONTROL / f"{id_}.json", {"id": id_, "command": command, "time": time.time()})
    return id_


def outcome(run_dir: Path | str, request_id: str, process: str | None = None) -> str | None:
    """Return the answer of the run, or of one of its processes, to a request; None before there is an answer."""
    answers = next((r.answers for r in asked(run_dir) if r.id == request_id), {})
    return answers.get(process) if process else next(iter(answers.values()), None)


def withdraw(run_dir: Path | str, request_id: str) -> bool:
    """Withdraw a request. Return False if a process acted on it, or may have because the request is gone."""
    folder = Path(run_dir) / CONTROL
    if any(folder.glob(f"{request_id}.*.done")):
        return False
    try:
        os.unlink(folder / f"{request_id}.json")
    except OSError:
        return False
    return True


def asked(run_dir: Path | str, seen: Container[str] = ()) -> list[RunRequest]:
    """Return all requests since the run started or resumed, oldest first, with the answers so far. Never raises.

    seen: the ids of requests to leave out.
    """
    folder = Path(run_dir) / CONTROL
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = []
    for name in names:
        id_, ending = os.path.splitext(name)
        if ending != ".json" or name.startswith(".") or id_ in seen:  # a file that is being written begins with a dot
            continue
        data = read_json(folder / name)
        if data.get("command") in get_args(Command):
            done = [n for n in names if n.startswith(f"{id_}.") and n.endswith(".done")]
            answers = {n[len(id_) + 1 : -len(".done")]: str(read_json(folder / n).get("outcome", "")) for n in done}
            found.append(RunRequest(id_, cast(Command, data["command"]), number(data.get("time")) or 0.0, answers))
    return found


def clear(run_dir: Path | str) -> None:
    """Delete all requests before a run starts or resumes."""
    for path in (Path(run_dir) / CONTROL).glob("*"):
        path.unlink(missing_ok=True)


def _end_forks() -> None:
    """Let SIGTERM end forked workers of the user's code, such as a pool in a reward function. A signal that arrives
    while they begin waits until then."""
    block, unblock = (
        partial(signal.pthread_sigmask, how, [signal.SIGTERM]) for how in (signal.SIG_BLOCK, signal.SIG_UNBLOCK)
    )

    def begin() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_child=begin, after_in_parent=unblock)


class ControlChannel:
    """The run's side of the channel.

    With `sigterm=True` (main thread only), SIGTERM also becomes a `stop` request.
    """

    def __init__(self, run_dir: Path | str, *, process: str = "training", sigterm: bool = False) -> None:
        self.run_dir, self.process = Path(run_dir), process
        self._seen: set[str] = set()
        self._terminate = False
        if sigterm:
            signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminate", True))
            if hasattr(os, "register_at_fork"):
                _end_forks()

    def poll(self) -> list[RunRequest]:
        """Return the requests that are new to this process, oldest first. Never raises."""
        new = asked(self.run_dir, self._seen)
        self._seen.update(request.id for request in new)
        requests = [request for request in new if self.process not in request.answers]
        if self._terminate:
            self._terminate = False
            requests.append(RunRequest("sigterm", "stop", time.time()))
        return requests

    def acknowledge(self, request: RunRequest, outcome: str) -> None:
        """Answer a request in a few words for people. Never raises."""
        try:
            data = {"outcome": outcome, "time": time.time()}
            write_json(self.run_dir / CONTROL / f"{request.id}.{self.process}.done", data)
        except OSError:
            return  # the sender sees the run's status instead
