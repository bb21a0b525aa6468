"""Finds the state from which a worker continues: the newest whole one, with a number not below any that was used.

Normally it is the state that the queue names. If that is damaged, or the queue or its last commits were lost, the
newest whole state or snapshot replaces it. Nothing is deleted here.

The update logs are written after the queue has committed. A queue that knows of fewer updates than the logs has lost
commits, since SQLite accepts the rest of a damaged log as complete. Experiences in the logs are not learnt from again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..store.folder import OnlineFolder
from ..store.snapshots import SnapshotReader
from ..store.update_queue import UpdateQueue
from .policy_update import PolicyUpdater
from .worker_state import StateError, read_state, states


@dataclass(frozen=True)
class Recovered:
    """state: the committed state, None when there is none. message: a sentence for the user when something was lost."""

    state: str | None
    message: str | None = None


def recover(updater: PolicyUpdater, folder: OnlineFolder, queue: UpdateQueue, logged: Mapping[str, int]) -> Recovered:
    """Restore `updater`. logged: the last line of the update logs."""
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
            return Recovered(named)
        except (StateError, KeyError, ValueError) as error:
            trouble.append(str(error))
            unusable = named
    elif count is None and (states(folder.state) or logged["update"]):
        trouble.append("The update queue was lost, and with it the tasks that waited.")
    known = max(counted, logged["update"])
    snapshot = SnapshotReader(folder.snapshots, trouble.append).newer_than(0)
    if named is None and not trouble and snapshot is None:
        return Recovered(None)
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
        return Recovered(state)
    return Recovered(state, f"{' '.join(trouble)} So {lost}.")
