"""The engine's main loop: swap weights between requests, answer, then learn from the answers."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ....configs import metric_names as metric
from ....envs.guard import beside
from ...agents.remote.pool import NoServersLeft
from ...runs.control.requests import ControlChannel
from ...runs.learning import GateCode
from ...runs.schema import REQUEST_POSITION, ROW_POSITION, recorded_position
from ..store.snapshots import SnapshotError
from ..store.update_queue import QueueError
from ..voting import Gate
from .answers import Answer, OpenTurns, answer_as_json
from .enqueuer import Enqueuer
from .feedback import FeedbackKeeper
from .inference_engine import InferenceEngine, Learned
from .live_answers import LiveAnswers
from .record_keeper import RecordKeeper
from .requests import PolicyAway, Request, RequestSource, ServerEnds
from .watching import Absence, FailureWatch, ValidationProcess, WorkerWatch
from .weights import WeightFollower

log = logging.getLogger(__name__)

KEEPING_S = 0.5
"""Interval, in seconds, between copies of the worker's journal to the record, which also read the queue."""
BACKLOG = 32
"""Maximum number of answers that wait for learning while callers are served. Beyond it, learning takes a turn."""
QUIET_S = 0.1
"""Seconds between an answer and learning from it. A caller who asks again sooner does not have to wait for learning."""
LISTEN_S = 0.05
"""Interval between checks for control requests (stop, pause), which read a folder."""
RESERVED = 64
"""Request numbers are reserved this far ahead, so that none is used twice after a kill."""


@dataclass(kw_only=True)
class Serving:
    """The loop of the engine's main thread."""

    engine: InferenceEngine
    source: RequestSource
    follower: WeightFollower
    keeper: RecordKeeper
    enqueuer: Enqueuer
    control: ControlChannel
    validation: ValidationProcess | None = None
    server_wait_s: float = 0.0
    """How long callers wait while the policy is unavailable (`WeightFollower.away`)."""
    print_line: Callable[[Mapping[str, object]], None] | None = None
    """Prints the answer to each request from a pipe, or the reason why there is none."""
    answered: int = field(init=False)
    """The number of the last answered request, across restarts of the run."""
    last: int | None = field(init=False)
    """The number of the last request to answer; None without a limit."""

    def __post_init__(self) -> None:
        self.config, self.queue, self.writer = self.engine.config, self.keeper.queue, self.keeper.writer
        run_dir = self.writer.run_dir
        recorded = {n: recorded_position(run_dir, n) or 0 for n in (REQUEST_POSITION, ROW_POSITION)}
        queued = int(self.queue.get("request", 0))
        self.answered = max(queued, recorded[REQUEST_POSITION])
        if queued < recorded[REQUEST_POSITION] and self.config.updates:
            missing = f"{queued + 1}" if self.answered == queued + 1 else f"{queued + 1} to {self.answered}"
            lost = (
                f"The update queue has no record of answered request {missing} (a kill or damage took its last rows). "
                "Their waiting tasks are lost."
            )
            self.keeper.event("record", lost)
        after = max(self.answered, int(self.queue.get("reserved", 0)))
        skipped = int(self.queue.get("skipped", 0)) + after - self.answered
        self.answered = after
        limit = self.config.max_requests
        self.last = None if limit is None else limit + skipped  # skipped numbers do not count
        self._reserved = 0
        self.enqueuer.put(None, ending=False, skipped=skipped)
        self._reserve()
        self.source.skip(max(int(self.queue.get("row", 0)), recorded[ROW_POSITION]))
        self._kept = self._listened = 0.0
        self._stopped = False
        self.live = LiveAnswers(self.engine, self.follower, self._answered_live, self._fail)
        self.engine.between = self._between
        self._scoring = False
        """Whether learning is between two passes of one version, or runs reward functions. Its weights must stay in
        place."""
        self._feedback = FeedbackKeeper(self.live, self.enqueuer, self.keeper.event)
        self.keeper.heard = self._feedback.note
        self._absence = Absence(self.server_wait_s, self.keeper.event)
        self._worker = WorkerWatch(run_dir, self.config, self.queue, self.keeper.event, self._wait_on)
        self._failures = FailureWatch(self.keeper.event)
        self._open_turns = OpenTurns()
        self._delivered = 0.0
        """The time of the last answer, from `time.monotonic`."""
        self._to_learn: deque[Answer] = deque()
        """Delivered single answers, with the samples of their votes, if any."""

    def run(self) -> bool:
        """Serve until a stop request (returns False) or until no more requests can come (returns True)."""
        while not self._stopped:
            in_progress = self.source.interrupted or self.live.busy or self._to_learn or self._feedback.waits
            if self._exhausted and not in_progress:
                break
            self._listen()
            self._take_feedback()
            self.turn(self._take())
            self._serve_callers()
            if self._to_learn and self._idle:
                self.live.pause()
                self._learn_from(self._to_learn.popleft())
            elif self.live.busy:
                self.live.advance()
            self._keep()
        self.live.pause()
        self.source.turn_away()
        for request in self.live.unrecorded:
            request.send(ServerEnds())
        for answer in self._open_turns.due(all_=True):
            self._learn_from(answer)
        finished = not self._stopped
        if finished:
            if not self.config.is_shared:
                self.enqueuer.put(None, ending=True)
            self.enqueuer.flush()
            self._worker.finish()
        self.enqueuer.put(None, reserved=self.answered)
        self.enqueuer.close()
        self._keep(force=True)
        return finished

    @property
    def _idle(self) -> bool:
        """Whether it is time to learn: callers have been quiet, too many answers wait, or no requests remain."""
        pause = time.monotonic() - self._delivered
        return pause >= QUIET_S or len(self._to_learn) > BACKLOG or self._exhausted

    def _take_feedback(self) -> None:
        self._feedback.process_drawn()
        for call, reply in self.source.take_feedback():
            try:
                reply(call(self._feedback))
            except Exception as error:
                if not isinstance(error, (KeyError, ValueError)):
                    log.exception("feedback failed")
                reply(error)

    def _serve_callers(self) -> None:
        """Write until no caller of a conversation waits; more may join. Only takes requests for the running batch,
        because learning calls this between two passes.
        """
        if not self.live.able:
            return
        self._join()
        while self.live.running.urgent and not self._stopped:
            if not self._scoring and (self.source.feedback or len(self._to_learn) > BACKLOG):
                break
            self.live.advance()
            self._join()
            self._listen()
            self._keep()

    def _between(self, version: int | None = None) -> None:
        """Serve callers between two passes, or while reward functions run.

        version: the one whose weights are in place. If it is the served one, requests for other batches are answered,
        too, and learned from later. None: only the running batch answers.
        """
        self._scoring = True
        try:
            self._serve_callers()
            self.live.pause()
            self._wait_on()
            if version == self.follower.version and not self._exhausted and not self.follower.away():
                self.turn(self.source.take(1, 0.0, only=lambda request: not self.live.takes(request)))
                self._take_feedback()
        finally:
            self.live.pause()
            self._scoring = False

    def _join(self) -> None:
        """Let waiting callers join the running batch while it has room and the run accepts requests."""
        while self.live.has_room and not self._exhausted:
            taken = self.source.take(1, 0.0, only=self.live.takes)
            if not taken:
                return
            self._reserve()
            self.turn(taken)

    def _begin_live(self, request: Request) -> bool:
        """Return whether the request was handled here: the running batch took it, or the caller got an error."""
        try:
            return self.live.takes(request) and self.live.begin(request)
        except SnapshotError as error:
            request.send(_not_loadable(request, error))
        except Exception as error:  # for example, no memory for the version's weights
            log.exception("request %d could not begin", request.number)
            self._fail(request, error)
        return True

    def _answered_live(self, answer: Answer) -> None:
        """Deliver a conversation's answer, and draw the samples of its vote in the background."""
        self._deliver([answer])
        self._feedback.remember([answer])
        if self._open_turns.hold(answer):
            return
        samples = self.engine.drawn_later if answer.gate.open and not answer.error else 0
        if self.live.running.background > BACKLOG * samples > 0:
            closed = Gate(GateCode.NO_LABEL, "too many samples of earlier requests wait to be drawn")
            answer, samples = replace(answer, gate=closed), 0
        if samples:
            try:
                widen = partial(self.engine.widened, answer)
                return self.live.draw(answer, samples, lambda drawn: self._to_learn.append(widen(drawn)))
            except SnapshotError as error:
                log.warning("%s: no samples are drawn", error)
        self._to_learn.append(answer)

    def _deliver(self, answers: Sequence[Answer]) -> None:
        self._delivered = time.monotonic()
        for answer in answers:
            answer.request.send(answer)
            if self.print_line is not None:
                self.print_line(answer_as_json(answer))

    @property
    def _exhausted(self) -> bool:
        """Whether the run accepts no more requests."""
        return self.source.ended or (self.last is not None and self.answered >= self.last)

    def _take(self) -> list[Request]:
        """Return the next requests; none while the policy is unavailable."""
        reason = self.follower.away()
        if (outage := self._absence.look(reason)) is not None:
            self.source.turn_back(PolicyAway(outage))
        if reason:
            time.sleep(self.config.poll_interval_s)
            return []
        if self._exhausted and not self.source.interrupted:
            return []
        limit = self.config.batch_requests
        room = limit if self.last is None else min(limit, self.last - self.answered)
        if self.live.busy or self._feedback.waits or (self._to_learn and self._idle):
            timeout = 0.0
        else:
            timeout = QUIET_S if self._to_learn else self.config.poll_interval_s
        return self.source.take(room, timeout=timeout)

    def _reserve(self) -> None:
        if self._reserved - self.answered < RESERVED // 2:
            self._reserved = self.answered + RESERVED
            self.enqueuer.put(None, reserved=self._reserved)

    def turn(self, requests: Sequence[Request]) -> None:
        if self.follower.waits and not self._scoring:
            self.live.pause()
            if (loaded := self.follower.swap()) is not None:
                version, age = loaded.version, max(0.0, time.time() - loaded.created)  # clocks of two machines differ
                text = f"Version {version} serves, {age:.1f} s after it was published."
                self.keeper.event("snapshot", text, version=version, action="loaded", path=loaded.file, age=age)
        if not requests:
            return
        self._reserve()
        started = time.perf_counter()
        numbered = []
        for item in requests:
            if not item.number:  # a retried request keeps its number
                self.answered += 1
                arrived = item.arrived if item.reply else time.perf_counter()
                item = replace(item, number=self.answered, arrived=arrived)
            numbered.append(item)
        numbered = [item for item in numbered if not self._begin_live(item)]
        if not numbered:
            return
        self.live.pause()
        answers = self._answer(numbered)
        self._deliver(answers)
        self._feedback.remember(answers)
        if self._scoring:
            self._to_learn += answers
            return
        learned = self._learn(answers, requests[0].version)
        self._keep_learned(learned, len(numbered), time.perf_counter() - started)

    def _keep_learned(self, learned: Sequence[Learned], requests: int, seconds: float) -> None:
        """Enqueue the tasks, and record answers and positions. seconds: engine time spent on the requests."""
        self._feedback.remember(item.answer for item in learned)  # with the samples of their votes
        self._failures.look(item.answer for item in learned)
        for item in learned:
            if item.task is not None:
                self.enqueuer.put(item.task)
        # After a kill, an interrupted or open request is asked again, so no later request counts as answered.
        open_ = [*self.live.unrecorded, *(answer.request for answer in self._to_learn)]
        reached = min([self.answered + 1, *self._open_turns.numbers, *(r.number for r in open_)]) - 1
        row = min([self.source.rows_taken + 1, *(r.place for r in open_ if r.place)]) - 1
        position = {} if self.source.interrupted else {"request": reached, "row": row}
        self.enqueuer.put(None, **position)
        extra = {
            metric.SERVING_VERSION: float(self.follower.version),
            metric.TASKS_LOST: float(self.enqueuer.lost),
            metric.TASKS_DROPPED: float(self.enqueuer.dropped),
        }
        try:
            extra[metric.QUEUE_DEPTH] = float(self.queue.depth())
        except QueueError as error:
            log.warning("%s", error)
        self.keeper.requests(learned, extra, **position)
        self.source.took(requests, seconds)
        self.writer.status("running", step=self.answered, total_steps=self.last)

    def _learn_from(self, answer: Answer) -> None:
        self._keep_learned(self._learn([answer], answer.policy_version), 1, answer.seconds)

    def _learn(self, answers: Sequence[Answer], version: int | None) -> list[Learned]:
        """Score answers with the version that gave them."""
        try:
            with self.follower.scoring(version) as scored:
                return self.engine.learn(answers, partial(beside, partial(self._between, scored)))
        except SnapshotError as error:  # the version was pruned after it had answered
            log.warning("%s: its answers are not recorded", error)
        except Exception as error:  # such as no memory for a pass, no disk space for an image: serving continues
            log.exception("learning from %d answers failed", len(answers))
            first = answers[0].request.number
            self.keeper.event("error", f"Nothing is learned from request {first}: {error}", where="engine")
        return []

    def _answer(self, requests: list[Request]) -> list[Answer]:
        """Answer requests together. If that fails, answer them one by one, so that a bad request only fails itself."""
        try:
            with self.follower.serving(requests[0].version) as version:
                return self.engine.answer(requests, version)
        except SnapshotError as error:
            for request in requests:
                request.send(_not_loadable(request, error))
            return []
        except Exception as error:
            if isinstance(error, NoServersLeft) or self.follower.away():
                self.source.retry(requests, self._fail)
                return []
            log.exception("answering %d requests failed", len(requests))
            if len(requests) > 1:
                return [a for r in requests for a in self._answer([r])]
            self._fail(requests[0], error)
            return []

    def _fail(self, request: Request, error: Exception) -> None:
        self.keeper.event("error", f"Request {request.number} failed: {error}", where="engine")
        if self.print_line is not None:
            self.print_line({**request.fields, "error": str(error), "request": request.number})
        request.send(error)

    def _listen(self) -> None:
        if time.monotonic() - self._listened < LISTEN_S:
            return
        self._listened = time.monotonic()
        for command in self.control.poll():
            if command.command == "stop":
                self._stopped = True
                self.control.acknowledge(command, "serving ends")
            elif not self._worker.learns:  # otherwise the update worker obeys and replies
                self.control.acknowledge(command, "nothing to do: this run serves and does not learn")

    def _keep(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._kept >= KEEPING_S:
            self._kept = now
            self._to_learn += self._open_turns.due()
            while self.keeper.copy_journal():
                continue
            self._feedback.note_lost()
            if (durable := self.keeper.settled()) is not None:
                self.enqueuer.put(None, recorded=durable)
            self._worker.look()
            if self.validation is not None:
                self.validation.keep_alive()

    def _wait_on(self) -> bool:
        """Maintain the record while waiting. Returns False once the run is stopped."""
        self._listen()
        self._keep()
        return not self._stopped


def _not_loadable(request: Request, error: SnapshotError) -> SnapshotError:
    return SnapshotError(f"version {request.version} cannot answer any more: {error}")
