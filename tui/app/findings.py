"""The findings about a run for display: repeats are merged, the gravest come first, good news is not an alert."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...engine.runs.control.alerts import remedy_of
from ...engine.runs.control.requests import AnsweredRequest
from ...engine.runs.types import Event
from .live_data import Reading

Grade = Literal["failure", "warning", "asked", "hint", "good"]
GRADES: tuple[Grade, ...] = ("failure", "warning", "asked", "hint", "good")
"""From urgent to good news. `asked`: a user's request to the run, and its answer."""


@dataclass(frozen=True)
class Found:
    """One finding with all its repeats. `event` is the newest."""

    grade: Grade
    message: str
    event: Event
    first: int = 0
    last: int = 0
    times: int = 1

    @property
    def remedy(self) -> str:
        return "" if self.grade in ("asked", "good") else remedy_of(self.event.data)

    @property
    def trajectories(self) -> tuple[str, ...]:
        ids = self.event.data.get("trajectories")
        return tuple(str(i) for i in ids) if isinstance(ids, (list, tuple)) else ()


def findings(reading: Reading) -> list[Found]:
    """Return all findings of a run, the gravest first, then the newest."""
    events = list(reading.findings)
    if reading.problem:
        events.append(Event("record", reading.problem))
    if reading.info.error and not any(e.kind == "error" and reading.info.error in e.message for e in events):
        events.append(Event("error", reading.info.error, step=reading.info.step))
    found = [*merged(events), *(_of_request(asked) for asked in reading.asked)]
    return sorted(found, key=lambda f: (GRADES.index(f.grade), -f.last, -f.event.time))


def merged(events: Iterable[Event]) -> list[Found]:
    """Merge events of one detector and subject. The newest gives the text."""
    groups: dict[tuple[str, str, str], list[Event]] = {}
    for event in events:
        detector = str(event.data.get("detector") or "")
        subject = str(event.data.get("subject") or ("" if detector else event.message))
        groups.setdefault((event.kind, detector, subject), []).append(event)
    return [
        Found(_grade(same[-1]), same[-1].message, same[-1], same[0].step, same[-1].step, len(same))
        for same in groups.values()
    ]


def tally(found: Sequence[Found]) -> str:
    """Count the serious grades: `1 failure, 2 warnings`."""
    words = []
    for grade in ("failure", "warning", "hint"):
        n = sum(f.grade == grade for f in found)
        if n:
            words.append(f"{n} {grade}{'' if n == 1 else 's'}")
    return ", ".join(words)


def _grade(event: Event) -> Grade:
    said = event.data.get("grade")
    if event.kind in ("error", "record"):
        return "failure"
    if event.kind == "note":
        return "good"
    return said if said in ("failure", "hint", "good") else "warning"


def _of_request(asked: AnsweredRequest) -> Found:
    answer = " · ".join(dict.fromkeys(asked.answers.values()))
    message = f"{asked.request.command}: {answer or 'asked, not answered yet'}"
    return Found("asked", message, Event("control", message, time=asked.request.time))
