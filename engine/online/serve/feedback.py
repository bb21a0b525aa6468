"""Turn feedback on answers into update tasks, and track each task to the version that contains it."""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from cachetools import FIFOCache

from ....envs.extraction import boxed, choice, last_number, mathematical, normal
from ...agents.chat_agent import ChatAgent
from ...rollouts.rollout import Rollout
from ..store.snapshots import SnapshotError
from ..voting import canonical
from .answers import Answer, answer_of, labelled
from .enqueuer import Enqueuer
from .http.schema import Feedback
from .inference_engine import InferenceEngine, Learned
from .live_answers import LiveAnswers
from .sample_passes import behaviour_logprobs

log = logging.getLogger(__name__)

WAITS = "it waits for the update worker"
REMEMBERED = 1024
"""Number of recent answers that feedback may refer to."""


@dataclass(eq=False)
class FeedbackKeeper:
    """Remembers recent answers and processes feedback on them, on the engine's thread.

    event: see `RecordKeeper.event`.
    """

    live: LiveAnswers
    enqueuer: Enqueuer
    event: Callable[..., object]

    def __post_init__(self) -> None:
        self._engine = self.live.engine
        self._remembered: FIFOCache[int, Answer] = FIFOCache(REMEMBERED)
        self._outcomes: FIFOCache[int, FeedbackOutcome] = FIFOCache(REMEMBERED)
        self.ready: deque[tuple[int, Feedback, str, Answer]] = deque()
        """Feedback whose samples have been drawn, waiting to become update tasks."""
        self._drawing = 0

    @property
    def waits(self) -> bool:
        """Whether any feedback has not become an update task yet."""
        return bool(self.ready or self._drawing)

    def remember(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if answer.request.reply is not None and answer.error is None:
                self._remembered[answer.request.number] = answer

    def process_drawn(self) -> None:
        while self.ready:
            waiting = self.ready.popleft()
            request = waiting[0]
            try:
                self._make_task(*waiting)
            except ValueError as error:
                self._outcomes[request] = FeedbackOutcome("", "", reason=str(error), accepted=False)
            except Exception:
                log.exception("feedback on request %d failed", request)
                reason = "it failed (see the run's log)"
                self._outcomes[request] = FeedbackOutcome("", "", reason=reason, accepted=False)

    def take(self, request: int, feedback: Feedback, source: str = "") -> Mapping[str, object]:
        """Process feedback on a request and return its outcome so far. source: as in `Request.source`. Raises KeyError
        if the answer is no longer remembered, and ValueError for feedback that cannot be used.
        """
        answer = self._remembered[request]
        if feedback.answer is None and feedback.correction is None and answer.text is None:
            raise ValueError("there was no answer to this request; give the right one as `answer`")
        if feedback.answer is not None and normal(feedback.answer) is None:
            raise ValueError("the right answer is empty")
        if feedback.correction is not None and not feedback.correction.strip():
            raise ValueError("the correction is empty")
        samples = self._engine.drawn_later
        many = feedback.correction is None and (feedback.answer is not None or _comparable(self._engine, answer))
        if not many or not answer.single or not samples or not self.live.able or len(answer.samples) > 1:
            return self._make_task(request, feedback, source, answer)

        def drawn(rollouts: list[Rollout]) -> None:
            self._drawing -= 1
            self.ready.append((request, feedback, source, self._engine.widened(answer, rollouts)))

        try:
            self.live.draw(answer, samples, drawn)
        except SnapshotError as error:
            raise ValueError(f"learning from it is no longer possible: {error}") from error
        self._drawing += 1
        self._outcomes[request] = FeedbackOutcome("", "", reason=f"{samples} samples are being drawn")
        return self.outcome(request)

    def _make_task(self, request: int, feedback: Feedback, source: str, answer: Answer) -> Mapping[str, object]:
        """Enqueue the update task of feedback, and return its outcome so far."""
        engine, right = self._engine, feedback.answer
        rated = feedback.correction is None and right is None and (answer.single or answer.extracted is None)
        self.live.pause()
        try:
            with self.live.follower.scoring(answer.policy_version):
                answer = at_temperature(engine, answer)
                if feedback.correction is not None:
                    called, learned = "corrected the answer", correct(engine, answer, feedback.correction)
                elif right is not None:
                    called, learned = f"gave {right!r} as the answer", label(engine, answer, right, None)
                else:
                    called, good = f"called the answer {feedback.verdict}", feedback.verdict == "right"
                    key = (answer.extracted, None) if good else (None, answer.extracted)
                    learned = rate(engine, answer, good) if rated else label(engine, answer, *key)
        except SnapshotError as error:
            raise ValueError(f"learning from it is no longer possible: {error}") from error
        task = learned.task
        prefix = f"Feedback {called} to request {request}: "
        facts = {"request": request, **feedback.model_dump(exclude={"id"})}
        if task is None:
            reason = "no sample has tokens to learn from" if engine.config.updates else "online.updates is off"
            self.event("feedback", f"{prefix}{reason}.", **facts)
            self._outcomes[request] = FeedbackOutcome("", "", reason=reason, accepted=False)
            return self.outcome(request)
        source = source or "person"
        task = replace(
            task,
            experience=replace(task.experience, id=f"{task.experience.id}-person-{secrets.token_hex(6)}"),
            facts={
                "prompt": f"person {task.facts['prompt']}",
                "source": source,
                "feedback": "rating" if rated else "answer",
                **({"agrees": task.facts["agrees"]} if rated else {}),
                "peers": self._peers(source),
            },
        )
        self.enqueuer.put(task)
        known = [c for c in learned.answer.label_vote.correct if c is not None]
        samples = f"{sum(known)} of {len(known)} samples are right"
        if rated:
            same = f", and {sum(known)} of {len(known)} samples have the same answer" if len(known) > 1 else ""
            samples = f"the answer was rated {feedback.verdict}{same}"
        self._outcomes[request] = FeedbackOutcome(task.id, samples)
        self.event("feedback", f"{prefix}an update is on its way.", **facts)
        return self.outcome(request)

    def _peers(self, source: str) -> tuple[int, int]:
        """Return the number of callers with remembered answers, and of users of this source's caller."""
        sources = {a.request.source for a in self._remembered.values()} | {source}
        callers = [name.partition("/")[0] for name in sources]
        return len(set(callers)), callers.count(source.partition("/")[0])

    def unjudged(self, limit: int) -> Mapping[str, object]:
        open_ = [a for n, a in self._remembered.items() if n not in self._outcomes and a.text is not None]
        return {"answers": [_listed(a) for a in sorted(open_, key=certainty)[:limit]]}

    def outcome(self, request: int) -> Mapping[str, Any]:
        """Return the state of the last feedback on a request. `learned` is true once a version contains the update.
        Raises KeyError if there is none."""
        last = self._outcomes[request]
        learned = {"learned": last.version is not None, "update": last.update, "version": last.version}
        reason = {"reason": last.reason} if last.reason else {}
        return {"request": request, "accepted": last.accepted, **learned, "samples": last.samples, **reason}

    def note_lost(self) -> None:
        """Give the reason for updates that wait, but that the queue has dropped or lost."""
        if waiting := [outcome for outcome in self._outcomes.values() if outcome.task and outcome.reason == WAITS]:
            gone = self.enqueuer.gone([outcome.task for outcome in waiting])
            for outcome in waiting:
                outcome.reason = gone.get(outcome.task, WAITS)

    def note(self, row: Mapping[str, object]) -> None:
        """Process a row of the worker's journal: an update, a refused task, or a published version."""
        for outcome in self._outcomes.values():
            outcome.note(row)


def label(engine: InferenceEngine, answer: Answer, right: str | None, wrong: str | None) -> Learned:
    """Return the update task of feedback that names the right answer, or one that is wrong.

    Samples that the feedback does not judge are left out. In free text without an extractor, a number is compared with
    the last number in the text, a letter with the choice. wrong: as it was extracted.
    """
    if answer.single and right is not None and len(answer.samples) == 1:
        answer = engine.widen([answer], always=True)[0]
    extract = engine.extract
    if extract is None and answer.single and right is not None:
        is_number = last_number(right) is not None and last_number(right) == normal(right)
        extract = last_number if is_number else choice if len(right.strip()) == 1 and choice(right) else None

    def key(text: str | None) -> str | None:
        return canonical(text) if extract is None else canonical(extract(text or ""))

    answers = [key(answer_of(sample)) for sample in answer.samples]
    if right is not None:
        expected = key(right) or canonical(mathematical(right) if extract is boxed else normal(right))
        correct: list[bool | None] = [g == expected for g in answers]
    else:
        correct = [False if g is not None and g == canonical(wrong) else None for g in answers]
    return engine.rewarded(labelled(answer, answer.samples, correct, right))


def at_temperature(engine: InferenceEngine, answer: Answer) -> Answer:
    """Return the answer with the log-probs of its texts at `online.temperature`, which updates use.

    The caller or the model's generation defaults may have used a different temperature.
    """
    if not answer.single and answer.request.sampling.temperature is None:
        return answer
    count = max(1, len(answer.written)) if answer.single else len(answer.samples)
    samples = [
        replace(s, logprobs=behaviour_logprobs(engine.model, s, engine.config.temperature)) if s.agent_tokens else s
        for s in answer.samples[:count]
    ]
    return replace(answer, samples=[*samples, *answer.samples[count:]])


def rate(engine: InferenceEngine, answer: Answer, good: bool) -> Learned:
    """Return the update task of a rating: the answer earns 1 or −1 against the running baseline (REINFORCE with a
    baseline, Williams 1992, doi:10.1007/BF00992696).

    If answers can be extracted, all samples with the same answer earn this reward and the others 0. The task's fact
    `agrees` marks the former. Learning rates are meant for `online.samples` judged samples; a rating with fewer scales
    the rate down in proportion.
    """
    shown = answer.samples[answer.shown or 0]
    others = [s for s in answer.samples if s is not shown] if _comparable(engine, answer) else []
    samples = [shown, *others]
    agrees = [s is shown or canonical(engine.key(s)) == canonical(answer.extracted) for s in samples]
    judged = engine.rewarded(labelled(answer, samples, agrees, answer.text if good else None))
    if judged.task is not None:
        rewards, task = judged.task.reward_tensor.clone(), judged.task.components.index("task")
        used = set(judged.task.experience.trajectories)
        same = [a for s, a in zip(samples, agrees, strict=True) if s.trajectory and s.trajectory.id in used]
        if not any(same):  # the rated answer has no tokens
            return replace(judged, task=None)
        rewards[~torch.tensor(same), :, task] = 0.0
        if not good:
            rewards[..., task] *= -1
        judged.task = replace(
            judged.task,
            reward_tensor=rewards,
            learning_rate=judged.task.learning_rate * min(1.0, len(same) / engine.config.samples),
            facts={**judged.task.facts, "agrees": same},
        )
    return judged


def _comparable(engine: InferenceEngine, answer: Answer) -> bool:
    return engine.extract is not None and answer.extracted is not None


def correct(engine: InferenceEngine, answer: Answer, text: str) -> Learned:
    """Return the update task of a corrected last turn: the correction earns 1, the original answer 0. A correction that
    keeps the last words of a cut answer is cut, too. Raises ValueError for an answer that cannot be corrected, and for
    a correction that changes nothing.
    """
    first = answer.samples[answer.shown or 0]
    if first.trajectory is None or not (answer.single or len(first.trajectory.steps) == 1):
        raise ValueError("only an answer of one turn can be corrected. Give the right answer as `answer`")
    *earlier, last = first.trajectory.steps
    if last.calls or not (answer.single or last.text.strip() == answer_of(first)):
        raise ValueError("a turn that calls tools cannot be corrected. Give the right answer as `answer`")
    if text.strip() == last.text.strip():  # the same tokens, once right and once wrong
        raise ValueError("the correction equals the answer. Give the verdict right")
    mask = first.agent_mask & (first.turn_ids == len(earlier))
    begin = int(mask.argmax()) if mask.any() else len(first)
    assert isinstance(engine.runner.agent, ChatAgent)
    chat = engine.runner.agent.chat
    ends = [t for t in first.token_ids[first.agent_mask][-1:].tolist() if t in chat.stop_ids]
    if not ends and text.split()[-3:] != last.text.split()[-3:]:
        ends = [chat.stop_ids[0] if chat.end_of_turn is None else chat.end_of_turn]
    written = [*chat.encode(text), *ends]
    ids = np.array([*first.token_ids[:begin], *written], first.token_ids.dtype)
    if len(ids) > engine.config.max_trajectory_tokens:
        raise ValueError(f"the text is too long: online.max_trajectory_tokens is {engine.config.max_trajectory_tokens}")
    added = len(written)
    corrected = replace(
        first,
        token_ids=ids,
        agent_mask=np.pad(first.agent_mask[:begin], (0, added), constant_values=True),
        turn_ids=np.pad(first.turn_ids[:begin], (0, added), constant_values=len(earlier)),
        rewards=np.zeros(len(ids), first.rewards.dtype),
        trained_logprobs=None,
        trajectory=replace(first.trajectory, steps=(*earlier, replace(last, text=text)), answer=text),
    )
    corrected = replace(corrected, logprobs=behaviour_logprobs(engine.model, corrected, engine.config.temperature))
    return engine.rewarded(labelled(replace(answer, shown=1), [corrected, first], [True, False], text))


def certainty(answer: Answer) -> float:
    """Return the policy's certainty in [0, 1]: the share of the vote or, without a vote, the geometric mean of the
    answer's token probabilities.
    """
    if not answer.single or len(answer.samples) > 1:
        return answer.label_vote.confidence
    sample = answer.samples[0]
    written = None if sample.logprobs is None else sample.logprobs[sample.agent_mask]
    return 0.0 if written is None or not len(written) else math.exp(float(written.mean()))


def _listed(answer: Answer) -> dict[str, Any]:
    trajectory, conversation = answer.samples[0].trajectory, answer.request.conversation
    prompt = trajectory.prompt if trajectory is not None else ""
    # The trajectory of a later turn has the prompt of the first turn.
    if conversation is not None and conversation.previous is not None:
        prompt = "\n\n".join(str(message["content"]) for message in conversation.messages)
    return {
        "id": str(answer.request.number),
        "prompt": prompt,
        "messages": [dict(message) for message in conversation.messages] if conversation is not None else [],
        "answer": answer.text,
        "certainty": round(certainty(answer), 4),
        "policy_version": answer.policy_version,
    }


@dataclass
class FeedbackOutcome:
    """The outcome of a feedback's task. samples: how its samples were judged."""

    task: str
    samples: str
    update: int | None = None
    version: int | None = None
    reason: str = WAITS
    accepted: bool = True

    def note(self, row: Mapping[str, Any]) -> None:
        kind, update = row.get("kind"), int(row.get("update") or 0)
        if row.get("experience") == self.task:
            if kind != "update" or row.get("rejected"):
                self.reason = str(row.get("rejected") or row.get("message") or kind)
            elif not any(abs(a) > 1e-9 for a in row.get("advantages") or ()):
                self.reason = f"no signal: {self.samples}, and each return equals the running baseline"
            else:
                self.update, self.reason = update, "no version contains it yet"
        elif self.version is None and self.update is not None:
            if kind == "back":
                self.update, self.reason = None, f"learning was rolled back: {row.get('message')}"
            elif kind == "snapshot" and row.get("action") == "published" and update >= self.update:
                self.version, self.reason = int(row["version"]), ""
