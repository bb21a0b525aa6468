"""Requests to a run and its answers: small files in its folder, so no process listens on a port.

A request is `control/<id>.json`. Each process that acted on it adds `control/<id>.<process>.done`. Files appear by
rename, so nobody reads a half-written file. The launcher empties the folder before it starts or resumes a run, so
a request made while the run is loading is honoured.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


def asked(run_dir: Path | str) -> list[RunRequest]:
    """Return all requests since the run started or resumed, oldest first, with the answers so far."""
    folder = Path(run_dir) / CONTROL
    names = _listed(folder)
    found = []
    for id_ in _ids(names):
        if (entry := _read(folder, id_)) is not None:
            done = [n for n in names if n.startswith(f"{id_}.") and n.endswith(".done")]
            answers = {n[len(id_) + 1 : -len(".done")]: str(read_json(folder / n).get("outcome", "")) for n in done}
            found.append(replace(entry, answers=answers))
    return found


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _ids(names: Sequence[str]) -> Iterator[str]:
    """Yield the ids of the requests among the files of a folder, oldest first. The name of a file that is still being
    written begins with a dot."""
    return (name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith("."))


def _read(folder: Path, id_: str) -> RunRequest | None:
    data = read_json(folder / f"{id_}.json")
    if data.get("command") not in get_args(Command):
        return None
    return RunRequest(id_, cast(Command, data["command"]), number(data.get("time")) or 0.0)


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
    """The run's side of the channel. `poll` only lists a small folder.

    With `sigterm=True` (main thread only), SIGTERM also becomes a `stop` request.
    """

    def __init__(self, run_dir: Path | str, *, process: str = "training", sigterm: bool = False) -> None:
        self.folder = Path(run_dir) / CONTROL
        self.process = process
        self._seen: set[str] = set()
        self._terminate = False
        if sigterm:
            signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminate", True))
            if hasattr(os, "register_at_fork"):
                _end_forks()

    def poll(self) -> list[RunRequest]:
        """Return the requests that are new to this process, oldest first. Never raises."""
        requests: list[RunRequest] = []
        names = _listed(self.folder)
        for id_ in _ids(names):
            if id_ not in self._seen:
                self._seen.add(id_)
                entry = _read(self.folder, id_)
                if entry is not None and f"{id_}.{self.process}.done" not in names:
                    requests.append(entry)
        if self._terminate:
            self._terminate = False
            requests.append(RunRequest("sigterm", "stop", time.time()))
        return requests

    def acknowledge(self, request: RunRequest, outcome: str) -> None:
        """Answer a request in a few words for people. Never raises."""
        try:
            data = {"outcome": outcome, "time": time.time()}
            write_json(self.folder / f"{request.id}.{self.process}.done", data)
        except OSError:
            return  # the sender sees the run's status instead
