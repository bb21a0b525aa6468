"""The worker's state on disk: one safetensors file per commit, named by the queue's transaction.

The file name is `state.<update>-<time>.<XXH3-128 of its bytes>.safetensors`, so damage is detected. The previous state
is kept as a fallback.

`recover` finds the state from which a worker continues. Update numbers never fall below any that was used. Normally it
is the state that the queue names. If that is damaged, or the queue or its last commits were lost, the newest intact
state or snapshot replaces it, and nothing is deleted. The update logs are written after the queue has committed, so a
queue with fewer updates than the logs has lost commits: SQLite treats what remains of a damaged log as complete.
Experiences in the logs are not applied again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import xxhash
from torch import Tensor

from ....configs.errors import GrpoTuiError
from ...runs.durable import make_folder, sync_folder, write_synced
from ...runs.paths import OnlineFolder
from ...runs.schema import JOURNAL_POSITION, recorded_position
from ..store.opening import RunStore
from ..store.snapshots import SnapshotReader
from ..store.update_log import UpdateLogs
from ..store.update_queue import JournalRow, QueueError, Settled, UpdateQueue
from .policy_update import PolicyUpdater

STATE_NAME = re.compile(r"state\.(\d+)-(\d+)\.([0-9a-f]{32})\.safetensors")
JOURNAL_KEPT = 2000
"""Journal rows kept for the engine, which copies them to the run's record."""


class StateError(GrpoTuiError, RuntimeError):
    """A state cannot be read. The message is for the user."""


def write_state(folder: Path, update: int, tensors: Mapping[str, Tensor], values: Mapping[str, object]) -> str:
    """Write a state durably and return its name. It takes effect once the queue names it. Raises OSError."""
    make_folder(folder)
    data = safetensors.torch.save(
        {k: v.detach().to("cpu").contiguous() for k, v in tensors.items()}, {"state": json.dumps(values)}
    )
    name = f"state.{update}-{time.time_ns()}.{xxhash.xxh3_128_hexdigest(data)}.safetensors"
    path = folder / name
    try:
        write_synced(path, data)
        sync_folder(folder)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    return name


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and values of a state. Raises StateError if it is missing or damaged."""
    try:
        data = path.read_bytes()
        match = STATE_NAME.fullmatch(path.name)
        if match is None or xxhash.xxh3_128_hexdigest(data) != match[3]:
            raise StateError(f"The worker's state {path.name} is damaged: it does not match its checksum.")
        length = int.from_bytes(data[:8], "little")
        values = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["state"])
        return safetensors.torch.load(data), values
    except FileNotFoundError as error:
        raise StateError(f"The worker's state {path.name} is missing.") from error
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise StateError(f"The worker's state {path.name} cannot be read ({error}).") from error


def newest_first(names: Iterable[str]) -> list[tuple[int, str]]:
    """Return the states among file `names` as (update, name), newest first."""
    found = [(int(m[1]), int(m[2]), name) for name in names if (m := STATE_NAME.fullmatch(name))]
    return [(update, name) for update, _, name in sorted(found, reverse=True)]


def states(folder: Path) -> list[tuple[int, str]]:
    """List the states in a folder as (update, name), newest first. They may be damaged or uncommitted."""
    try:
        return newest_first(os.listdir(folder))
    except FileNotFoundError:
        return []


def prune_states(folder: Path, counts: str, *, keep: str | None = None) -> None:
    """Delete all states except `counts`, the one before it, and `keep`."""
    names = [name for _, name in states(folder)]
    if counts not in names:
        return  # never delete a state whose successor is missing
    last = names.index(counts)
    for name in (n for n in names[:last] + names[last + 2 :] if n != keep):
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def recover(
    updater: PolicyUpdater, folder: OnlineFolder, queue: UpdateQueue, logged: Mapping[str, int]
) -> tuple[str | None, str | None]:
    """Restore `updater`. Returns the committed state, if any, and a sentence for the user if something was lost.

    logged: the values of the last log lines (`UpdateLogs.last`).
    """
    state_name: str | None = queue.get("state")
    count: int | None = queue.get("update")
    counted = count or 0
    problems: list[str] = []
    unusable: str | None = None
    if state_name is not None and counted < logged["update"]:
        problems.append(f"The update queue has lost its last commits: it contains {counted} updates.")
    elif state_name is not None:
        try:
            updater.load_state(*read_state(folder.state / state_name))
            updater.update = max(updater.update, counted)  # an older state, if a newer one was lost earlier
            return state_name, None
        except (StateError, KeyError, ValueError) as error:
            problems.append(str(error))
            unusable = state_name
    elif count is None and (states(folder.state) or logged["update"]):
        problems.append("The update queue was lost with its waiting tasks.")
    known = max(counted, logged["update"])
    snapshot = SnapshotReader(folder.snapshots, problems.append).newer_than(0)
    if state_name is None and not problems and snapshot is None:
        return None, None
    state = None
    for update, name in states(folder.state):
        # A state above the queue's count was never committed. A lost queue has no count and no tasks to repeat.
        if name == unusable or (count is not None and update > known):
            continue
        try:
            found = read_state(folder.state / name)
            if snapshot is None or snapshot.manifest.update <= update:
                updater.load_state(*found)
                state = name
                break
        except (StateError, KeyError, ValueError) as error:
            problems.append(str(error))
    lost = "learning restarts from the initial policy of the run"
    if state is not None:
        lost = f"learning continues from the state of update {updater.update}"
    elif snapshot is not None:
        with snapshot:
            updater.load_weights(snapshot.tensors())
        updater.update = snapshot.manifest.update
        lost = f"learning continues from snapshot {snapshot.version}, with a new beta, baseline and optimiser"
    if updater.update < known:
        lost += f"; updates {updater.update + 1} to {known} are lost"
    updater.update = max(updater.update, known)
    if not problems:  # the run was started from snapshots only
        return state, None
    return state, f"{' '.join(problems)} So {lost}."


@dataclass
class Ledger:
    """Collects the worker's uncommitted work and commits it atomically. tell: receives messages for the user."""

    updater: PolicyUpdater
    store: RunStore
    queue: UpdateQueue
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self.folder = self.store.folder
        self.logs = UpdateLogs(self.folder.run_dir)
        self.state: str | None = None
        """The name of the committed state."""
        self.candidate: dict[str, Any] | None = self.queue.get("candidate")
        """The state offered for validation, with its update and request. It is not pruned."""
        self.feedback = int(self.queue.get("feedback", 0))
        """The number of the last update from feedback."""
        self.changed = False
        """Whether the updater differs from the committed state."""
        self._settled: list[Settled] = []
        self._journal: list[Mapping[str, object]] = []
        self._unlogged: list[JournalRow] = []
        self._reported: set[str] = set()

    @property
    def kept(self) -> str | None:
        return None if self.candidate is None else str(self.candidate["state"])

    @property
    def waiting(self) -> int:
        """The number of tasks processed since the last commit."""
        return len(self._settled)

    def settle(self, settled: Settled, *rows: Mapping[str, object]) -> None:
        """Add the outcome of a task and its journal rows to the next commit."""
        self._settled.append(settled)
        self.add(*rows)

    def add(self, *rows: Mapping[str, object]) -> None:
        self._journal += rows

    def commit(self) -> bool:
        """Commit all work since the last commit. If writing fails, report it and return False; a retry is possible."""
        if not self._settled and not self._journal and not self.changed:
            return True
        name = self.state
        try:
            if self.changed:
                name = self.write_state()
            facts = {"update": self.updater.update, "beta": self.updater.beta.beta, "feedback": self.feedback}
            rows = self.queue.settle(self._settled, self._journal, {"state": name, **facts})
        except (OSError, QueueError) as error:
            self.tell_once(f"Updates cannot be committed and wait in memory: {error}")
            return False
        self._reported.clear()
        self.state, self.changed = name, False
        self._settled, self._journal = [], []
        self.prune_states()
        self._unlogged += rows
        self._write_logs()
        return True

    def write_state(self) -> str:
        """Write the current state to a new file, and return its name. Raises OSError, QueueError."""
        tensors, values = self.updater.state()
        name = write_state(self.folder.state, self.updater.update, tensors, values)
        self.store.put_state(name)
        return name

    def prune_states(self) -> None:
        if self.state is not None:
            prune_states(self.folder.state, self.state, keep=self.kept)
            self.store.prune_states(self.state, self.kept)

    def note(self, *rows: Mapping[str, object], **meta: object) -> None:
        """Commit journal rows and facts that belong to no update."""
        try:
            self._unlogged += self.queue.settle([], rows, meta)
        except QueueError as error:
            self.tell_once(str(error))
        self._write_logs()

    def catch_up(self, logged: int) -> None:
        """Write journal rows after number `logged` to the logs, and number later rows above all logged and recorded."""
        copied = recorded_position(self.folder.run_dir, JOURNAL_POSITION) or 0
        self.queue.continue_after(max(logged, copied))
        self._unlogged = self.queue.journal(limit=1_000_000)
        self._write_logs()

    def _write_logs(self) -> None:
        try:
            self.logs.append(self._unlogged)
        except OSError as error:
            self.tell_once(f"The update logs cannot be written ({error.strerror}). Their lines wait in the queue.")
            return
        if self._unlogged:
            last = self._unlogged[-1].n
            self._unlogged = []
            with contextlib.suppress(QueueError):
                copied = int(self.queue.get("recorded", 0))  # rows that the engine has copied to the run's record
                self.queue.prune_journal(min(last, copied) - JOURNAL_KEPT)

    def tell_once(self, message: str) -> bool:
        """Report a message once between commits. Returns whether it is new."""
        new = message not in self._reported
        if new:
            self._reported.add(message)
            self.tell(message)
        return new
