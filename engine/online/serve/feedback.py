"""What people say of answers that they were given, as update tasks."""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ....configs.sections.online import OnlineConfig
from ..store.snapshots import SnapshotError
from .answers import Answer
from .enqueuer import Enqueuer
from .inference_engine import InferenceEngine
from .requests import PersonsWord
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
        self._heard = 0

    def remember(self, answers: Iterable[Answer]) -> None:
        """Keep what callers were answered, the oldest no longer than there is room."""
        for answer in answers:
            if answer.request.reply is not None and answer.error is None:
                self._remembered[answer.request.number] = answer
        while len(self._remembered) > self._config.remembered_answers:
            self._remembered.popitem(last=False)

    def take(self, words: Iterable[PersonsWord]) -> None:
        """Learn from what people said, and reply to each what became of it."""
        for said in words:
            try:
                said.reply(self._learn_from(said))
            except Exception as error:
                if not isinstance(error, (KeyError, ValueError)):
                    log.exception("feedback on request %d failed", said.request)
                said.reply(error)

    def _learn_from(self, said: PersonsWord) -> dict[str, Any]:
        """One person's word as an update task. Raises KeyError for an answer that is not remembered any more, and
        ValueError for a word that says nothing about it."""
        answer = self._remembered[said.request]
        right = said.answer or (answer.text if said.verdict == "right" else None)
        if right is None and answer.text is None:
            raise ValueError("there was no answer to this request; give the right one as `answer`")
        try:
            with self._follower.scoring(answer.policy_version):
                learned = self._engine.label(answer, right, None if right is not None else answer.text)
        except SnapshotError as error:
            raise ValueError(f"nothing can be learnt from it any more: {error}") from error
        task = learned.task if self._config.updates else None
        if task is not None:
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
        self._event(
            "feedback",
            f"A person called the answer to request {said.request} "
            + ("right" if right is not None and said.answer is None else "wrong" if right is None else f"{right!r}")
            + (": an update is on its way." if task is not None else ": nothing to learn from it."),
            request=said.request,
            verdict=said.verdict,
            answer=said.answer,
            source=said.named,
        )
        return {"request": said.request, "learned": task is not None}
