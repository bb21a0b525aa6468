"""What people say of answers that they were given, as update tasks."""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....configs.sections.online import OnlineConfig
from ..store.snapshots import SnapshotError
from .answers import Answer
from .enqueuer import Enqueuer
from .inference_engine import InferenceEngine
from .requests import HumanFeedback
from .weights import WeightFollower

log = logging.getLogger(__name__)


class FeedbackKeeper:
    """Remembers callers' latest answers, of which a person may still say whether they were right.

    event: see `RecordKeeper.event`. For the engine's thread.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        follower: WeightFollower,
        enqueuer: Enqueuer,
        event: Callable[..., Any],
        config: OnlineConfig,
    ) -> None:
        self._engine = engine
        self._follower = follower
        self._enqueuer = enqueuer
        self._event = event
        self._config = config
        self._remembered: OrderedDict[int, Answer] = OrderedDict()
        self._outcomes: OrderedDict[int, FeedbackOutcome] = OrderedDict()
        self._heard = 0

    def remember(self, answers: Iterable[Answer]) -> None:
        """Keep what callers were answered, the oldest no longer than there is room."""
        for answer in answers:
            if answer.request.reply is not None and answer.error is None:
                self._remembered[answer.request.number] = answer
        while len(self._remembered) > self._config.remembered_answers:
            self._remembered.popitem(last=False)

    def take(self, words: Iterable[HumanFeedback]) -> None:
        """Learn from what people said, and reply to each what became of it."""
        for said in words:
            try:
                said.reply(self.outcome(said.request) if said.asks else self._learn_from(said))
            except Exception as error:
                if not isinstance(error, (KeyError, ValueError)):
                    log.exception("feedback on request %d failed", said.request)
                said.reply(error)

    def _learn_from(self, said: HumanFeedback) -> dict[str, Any]:
        """Make an update task of feedback. Raises KeyError for an answer that is not remembered any more, and
        ValueError for feedback without content."""
        answer = self._remembered[said.request]
        right = said.answer
        if right is None and said.correction is None and answer.text is None:
            raise ValueError("there was no answer to this request; give the right one as `answer`")
        reason = ""
        try:
            with self._follower.scoring(answer.policy_version):
                if said.correction is not None:
                    learned = self._engine.correct(answer, said.correction)
                elif right is None and answer.single:
                    learned = self._engine.rate(answer, said.verdict == "right")
                elif right is None and said.verdict == "right":
                    learned = self._engine.label(answer, answer.extracted, None)
                else:
                    learned = self._engine.label(answer, right, None if right is not None else answer.extracted)
        except SnapshotError as error:
            raise ValueError(f"nothing can be learnt from it any more: {error}") from error
        task = learned.task if self._config.updates else None
        if task is None:
            reason = "no sample has tokens to learn from" if self._config.updates else "online.updates is off"
        else:
            self._heard += 1
            named = f"{task.experience.id}-person-{self._heard}-{secrets.token_hex(3)}"
            task = replace(
                task,
                experience=replace(task.experience, id=named),
                facts={
                    "prompt": f"person {task.facts['prompt']}",
                    "source": said.source or "person",
                    "labelled": True,  # by the source's own word, not by a vote
                },
            )
            self._enqueuer.put(task)
            known = [c for c in learned.answer.label_vote.correct if c is not None]
            self._outcomes[said.request] = FeedbackOutcome(task.id, f"{sum(known)} of {len(known)} samples are right")
        called = (
            "corrected the answer"
            if said.correction is not None
            else f"gave {right!r} as the answer"
            if right is not None
            else f"called the answer {said.verdict}"
        )
        self._event(
            "feedback",
            f"Feedback {called} to request {said.request}: "
            + ("an update is on its way." if task is not None else f"{reason}."),
            request=said.request,
            verdict=said.verdict,
            answer=said.answer,
            source=said.named,
        )
        if task is None:
            return {"request": said.request, "accepted": False, "learned": False, "reason": reason}
        return self.outcome(said.request)

    def outcome(self, request: int) -> dict[str, Any]:
        """How far the last feedback on a request is. Raises KeyError where none is known."""
        return {"request": request, "accepted": True, **self._outcomes[request].as_json()}

    def note(self, row: Mapping[str, Any]) -> None:
        """Take in a row of the worker's journal: an update, a refused task, or a published version."""
        for outcome in self._outcomes.values():
            outcome.note(row)
        while len(self._outcomes) > self._config.remembered_answers:
            self._outcomes.popitem(last=False)


@dataclass
class FeedbackOutcome:
    """What became of the task of some feedback. samples: how its samples were judged."""

    task: str
    samples: str
    update: int | None = None
    version: int | None = None
    reason: str = "it waits for the update worker"

    def note(self, row: Mapping[str, Any]) -> None:
        """See `FeedbackKeeper.note`."""
        kind, update = row.get("kind"), int(row.get("update") or 0)
        if row.get("experience") == self.task:
            if kind != "update" or row.get("rejected"):
                self.reason = str(row.get("rejected") or row.get("message") or kind)
            elif not any(abs(a) > 1e-9 for a in row.get("advantages") or ()):
                self.reason = f"no signal: {self.samples}, and each is worth as much as the running baseline"
            else:
                self.update, self.reason = update, "no version contains it yet"
        elif self.update is not None and kind == "back" and self.version is None:
            self.update, self.reason = None, f"learning went back: {row.get('message')}"
        elif kind == "snapshot" and row.get("action") == "published":
            self.publish(update, int(row["version"]))

    def publish(self, update: int, version: int) -> None:
        """A version with the first `update` updates was published."""
        if self.version is None and self.update is not None and update >= self.update:
            self.version, self.reason = version, ""

    def as_json(self) -> dict[str, Any]:
        """`learned` is true once an update used it and a version contains that update."""
        found = {"learned": self.version is not None, "update": self.update, "version": self.version}
        return {**found, "samples": self.samples, **({"reason": self.reason} if self.reason else {})}
