"""Send alerts of a run to a command of the user's or to a webhook.

The training only puts an alert into a queue, and a thread sends it. At most one message leaves in `every_seconds`:
later alerts wait and are sent as one message, the most severe first, with the number of the others. The same alert is
not repeated within an hour. A command or webhook that fails or hangs is logged once and costs nothing else. Commands
run without a shell and read the alert as JSON from standard input. No text of a model becomes an argument.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..masking import mask
from .remedies import remedy_of

log = logging.getLogger(__name__)

Grade = Literal["failure", "warning", "hint"]
GRADES: tuple[Grade, ...] = ("failure", "warning", "hint")
TIMEOUT_SECONDS = 10.0
"""How long a command or a webhook may take."""
AGAIN_SECONDS = 3600.0
WAITING = 200
"""The most alerts that wait. Of further ones only the number is kept."""


@dataclass(frozen=True)
class Destination:
    """Where alerts go. command: program and arguments. grades: which are sent."""

    command: Sequence[str] = ()
    webhook: str = ""
    grades: Sequence[Grade] = ("failure", "warning")
    every_seconds: float = 60.0


@dataclass(frozen=True)
class Alert:
    """One alert as it is sent: one sentence, the advice, and the rollouts that show it."""

    run: str
    folder: str
    step: int
    grade: Grade
    message: str
    remedy: str = ""
    detector: str = ""
    trajectories: tuple[str, ...] = ()
    more: int = 0
    """The number of other alerts since the last message."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for commands and webhooks. Chat programs show `text` and `content`."""
        others = f" (and {self.more} more)" if self.more else ""
        text = f"{self.grade}: {self.run}, step {self.step}: {self.message}{others}"
        text += f" What helps: {self.remedy}" if self.remedy else ""
        return mask({**asdict(self), "trajectories": list(self.trajectories), "text": text, "content": text[:1900]})


@dataclass
class _Waiting:
    alerts: list[Alert] = field(default_factory=list)
    lost: int = 0


class AlertSender:
    """Sends the alerts of one run. Its thread ends with the process. `close` sends the waiting alerts within a time
    limit."""

    def __init__(self, run_dir: Path, destination: Destination) -> None:
        self.run_dir = run_dir
        self.destination = destination
        self._waiting = _Waiting()
        self._sent: dict[tuple[str, str], float] = {}
        self._next = 0.0
        self._condition = threading.Condition()
        self._closing = False
        self._told = False
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)
        self._thread.start()

    def event(self, kind: str, message: str, step: int, data: Mapping[str, Any]) -> None:
        """Take an event of the record; ignore events that are no alerts."""
        if kind not in ("alert", "error", "record"):
            return
        said = data.get("grade")
        grade: Grade = "failure" if kind != "alert" else said if said in GRADES else "warning"
        if grade not in self.destination.grades or data.get("grade") == "good":
            return
        ids = data.get("trajectories")
        shown = tuple(str(i) for i in ids[:5]) if isinstance(ids, (list, tuple)) else ()
        detector = str(data.get("detector") or "")
        key = (detector or kind, str(data.get("subject") or ("" if detector else message)))
        run, folder = self.run_dir.name, str(self.run_dir)
        alert = Alert(run, folder, step, grade, message, remedy_of(data), detector, shown)
        with self._condition:
            now = time.monotonic()
            if now - self._sent.get(key, -AGAIN_SECONDS) < AGAIN_SECONDS:
                return
            self._sent[key] = now
            if len(self._sent) > 10_000:
                self._sent.clear()
            if len(self._waiting.alerts) < WAITING:
                self._waiting.alerts.append(alert)
            else:
                self._waiting.lost += 1
            self._condition.notify_all()

    def close(self, timeout: float = TIMEOUT_SECONDS + 2) -> None:
        """Send the waiting alerts, and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._due():
                    if self._closing and not self._waiting.alerts:
                        return
                    self._condition.wait(self._pause())
                alert = self._next_message()
                self._next = time.monotonic() + self.destination.every_seconds
            self._send(alert)

    def _due(self) -> bool:
        return bool(self._waiting.alerts) and (self._closing or time.monotonic() >= self._next)

    def _pause(self) -> float | None:
        return max(0.01, self._next - time.monotonic()) if self._waiting.alerts else None

    def _next_message(self) -> Alert:
        waiting, self._waiting = self._waiting, _Waiting()
        first = min(waiting.alerts, key=lambda a: GRADES.index(a.grade))
        return replace(first, more=len(waiting.alerts) - 1 + waiting.lost)

    def _send(self, alert: Alert) -> None:
        body = json.dumps(alert.to_json(), default=str).encode()
        if self.destination.command:
            self._try("alert command", lambda: self._call(body))
        if self.destination.webhook:
            self._try("alert webhook", lambda: self._post(body))

    def _try(self, what: str, send: Callable[[], None]) -> None:
        try:
            send()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            level = logging.DEBUG if self._told else logging.WARNING
            self._told = True
            # the address of a webhook is a secret, and errors may repeat it
            log.log(level, "%s failed (%s), and the run continues", what, type(error).__name__)

    def _call(self, body: bytes) -> None:
        subprocess.run(
            list(self.destination.command),
            input=body,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_SECONDS,
            check=True,
            env={**os.environ, "GRPO_TUI_RUN": str(self.run_dir)},
        )

    def _post(self, body: bytes) -> None:
        import urllib.request  # here: most runs post nothing

        request = urllib.request.Request(
            self.destination.webhook, data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read(1)
