"""The worker's state on disk: one safetensors file per commit, named by the queue's transaction.

The file name is `state.<update>-<time>.<XXH3-128 of its bytes>.safetensors`, so damage is detected. The previous state
is kept as a fallback.

`recover` finds the state from which a worker continues, with a number not below any that was used. Normally it is the
state that the queue names. If that is damaged, or the queue or its last commits were lost, the newest whole state or
snapshot replaces it. Nothing is deleted then. The update logs are written after the queue has committed, so a queue
that knows of fewer updates than the logs has lost commits: SQLite accepts the rest of a damaged log as complete.
Experiences in the logs are not learnt from again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import xxhash
from torch import Tensor

from ....configs.errors import GrpoTuiError
from ...runs.durable import make_folder, sync_folder, write_synced
from ..store.folder import OnlineFolder
from ..store.snapshots import SnapshotReader
from ..store.update_queue import UpdateQueue
from .policy_update import PolicyUpdater

STATE_NAME = re.compile(r"state\.(\d+)-(\d+)\.([0-9a-f]{32})\.safetensors")


class StateError(GrpoTuiError, RuntimeError):
    """A state cannot be read. The message is for the user."""


def write_state(folder: Path, update: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> str:
    """Write a state durably and return its name. It counts once the queue names it. Raises OSError."""
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
    """Return the tensors and values of a state. Raises StateError when it is missing or damaged."""
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
    """Return the states among file names as (update, name), newest first."""
    found = [(int(m[1]), int(m[2]), name) for name in names if (m := STATE_NAME.fullmatch(name))]
    return [(update, name) for update, _, name in sorted(found, reverse=True)]


def states(folder: Path) -> list[tuple[int, str]]:
    """Return the states in a folder as `newest_first` does. They may be damaged or uncommitted."""
    try:
        return newest_first(os.listdir(folder))
    except FileNotFoundError:
        return []


def prune_states(folder: Path, counts: str, *, keep: str | None = None) -> None:
    """Delete all states but `counts`, the one before it, and `keep`."""
    names = [name for _, name in states(folder)]
    if counts not in names:
        return  # nothing goes whose successor is not there
    at = names.index(counts)
    for name in (n for n in names[:at] + names[at + 2 :] if n != keep):
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def recover(
    updater: PolicyUpdater, folder: OnlineFolder, queue: UpdateQueue, logged: Mapping[str, int]
) -> tuple[str | None, str | None]:
    """Restore `updater`. Returns the committed state, if there is one, and a sentence for the user if something was
    lost. logged: the last line of the update logs.
    """
    named: str | None = queue.get("state")
    count: int | None = queue.get("update")
    counted = count or 0
    trouble: list[str] = []
    unusable: str | None = None
    if named is not None and counted < logged["update"]:
        trouble.append(f"The update queue has lost its last commits: it knows of {counted} updates.")
    elif named is not None:
        try:
            updater.load_state(*read_state(folder.state / named))
            updater.update = max(updater.update, counted)  # an older state, where a newer one had been lost before
            return named, None
        except (StateError, KeyError, ValueError) as error:
            trouble.append(str(error))
            unusable = named
    elif count is None and (states(folder.state) or logged["update"]):
        trouble.append("The update queue was lost, and with it the tasks that waited.")
    known = max(counted, logged["update"])
    snapshot = SnapshotReader(folder.snapshots, trouble.append).newer_than(0)
    if named is None and not trouble and snapshot is None:
        return None, None
    state = None
    for update, name in states(folder.state):
        # A state above the queue's count was never committed. A lost queue has no count, and no task to repeat.
        if name == unusable or (count is not None and update > known):
            continue
        try:
            found = read_state(folder.state / name)
            if snapshot is None or snapshot.manifest.update <= update:
                updater.load_state(*found)
                state = name
                break
        except (StateError, KeyError, ValueError) as error:
            trouble.append(str(error))
    lost = "learning begins again at the policy that the run started from"
    if state is not None:
        lost = f"learning continues from the state of update {updater.update}"
    elif snapshot is not None:
        with snapshot:
            updater.load_weights(snapshot.tensors())
        updater.update = snapshot.manifest.update
        lost = f"learning continues from snapshot {snapshot.version}, and beta, baseline and optimiser start fresh"
    if updater.update < known:
        lost += f"; what updates {updater.update + 1} to {known} did is lost"
    updater.update = max(updater.update, known)
    if not trouble:  # a run that was begun by snapshots alone
        return state, None
    return state, f"{' '.join(trouble)} So {lost}."
