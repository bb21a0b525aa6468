"""The requests that a run accepts now. Pausing is a state machine; only the run and its answers change its state.

    running ──space──▸ pausing ──(the run answers)──▸ paused ──space──▸ resuming ──(it answers)──▸ running
       ▴                  │ space takes it back          ▴                  │ space takes it back
       └──────────────────┘                              └──────────────────┘

Training pauses after the current step. An online run keeps answering and only pauses its learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...engine.runs.control.requests import Command, RunRequest
from ...engine.runs.types import ENDED
from .live_data import Reading

State = Literal["running", "pausing", "paused", "resuming", "stopping", "ended", "cannot"]
"""`cannot`: the run is active and has nothing to pause (an online run whose learning has ended)."""


@dataclass(frozen=True)
class KeyEffect:
    """The effect of a key: leave a request, withdraw one, or only show a message."""

    say: str
    ask: Command | None = None
    withdraw: RunRequest | None = None


@dataclass(frozen=True)
class Requests:
    """A run's state and the requests to it."""

    reading: Reading

    @property
    def pending(self) -> RunRequest | None:
        waiting = [a for a in self.reading.asked if a.command in ("pause", "resume") and not a.answers]
        return waiting[-1] if waiting else None

    def waiting(self, command: Command) -> bool:
        return any(a.command == command and not a.answers for a in self.reading.asked)

    @property
    def learning(self) -> str:
        """Return the status of the learner: the run, or the update worker of an online run."""
        if self.reading.kind != "online":
            return self.reading.info.status
        processes = self.reading.info.facts.get("processes")
        worker = processes.get("worker") if isinstance(processes, dict) else None
        if not isinstance(worker, dict) or not worker.get("alive") or worker.get("status") in ENDED:
            return ""
        return str(worker.get("status") or "")

    @property
    def state(self) -> State:
        info = self.reading.info
        if not info.active:
            return "ended"
        if info.status == "stopping" or self.waiting("stop"):
            return "stopping"
        if not self.learning:
            return "cannot"
        if self.pending is not None:
            return "pausing" if self.pending.command == "pause" else "resuming"
        return "paused" if self.learning == "paused" else "running"

    @property
    def hint(self) -> str:
        """Return what space does now, in a word or two, or an empty string."""
        words: dict[State, str] = {
            "running": "pause", "pausing": "don't pause", "paused": "resume", "resuming": "stay paused",
        }  # fmt: skip
        return words.get(self.state, "")

    def told(self, seconds: float | None = None) -> str:
        """Return the state for the header, or an empty string if the run's status already shows it."""
        what = "learning " if self.reading.kind == "online" else ""
        when = "" if self.reading.kind == "online" else " after this step"
        waits = "" if seconds is None or seconds < 2 else f" {seconds:.0f} s"
        words: dict[State, str] = {
            "pausing": f"{what}pauses{when}{waits}", "resuming": f"{what}resumes{waits}",
            "stopping": "saves and stops", "paused": f"{what}paused" if what else "",
        }  # fmt: skip
        return words.get(self.state, "")

    def on_pause_key(self) -> KeyEffect:
        what = "learning" if self.reading.kind == "online" else "the run"
        match self.state:
            case "running":
                when = "answers continue" if self.reading.kind == "online" else "after this step"
                return KeyEffect(f"Asked {what} to pause ({when}). Press space to undo.", ask="pause")
            case "paused":
                return KeyEffect(f"Asked {what} to resume.", ask="resume")
            case "pausing" | "resuming":
                pending = self.pending
                kept = "continues" if self.state == "pausing" else "stays paused"
                return KeyEffect(f"Undone: {what} {kept}.", withdraw=pending)
            case "stopping":
                return KeyEffect("The run is already saving and stopping.")
            case "cannot":
                return KeyEffect("This run only serves: it has no learning to pause.")
            case _:
                return KeyEffect(f"The run is {self.reading.info.status} and cannot pause.")
