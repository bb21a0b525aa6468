"""Answer conversations in a running batch, and draw the samples of votes in its background.

A caller's text joins the batch between two tokens and is streamed. Samples are background rows of the batch and never
delay an answer. Each policy version has its own batch: an older version finishes its texts while a newer one takes the
next requests.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from ....envs.agent import AgentTurn
from ....envs.guard import guarded
from ....envs.multi_turn import MultiTurnEnv
from ....envs.seeds import seed_of
from ....envs.trajectory import Call, TokenArrays
from ...agents.live_batch import LiveBatch, LiveRow
from ...agents.sampling import SamplingSettings
from ...agents.transformers_agent import TransformersAgent
from ...policy.merged import MergedWeights
from ...policy.prepared import acting
from ...policy.vision.processor import Encoded
from ...rollouts.rollout import Rollout
from .answers import Answer
from .conversations import continued, with_calls
from .inference_engine import InferenceEngine
from .requests import BATCH_TOKENS, NotWritten, Request, RequestDropped
from .running_batches import RunningBatch, RunningBatches
from .texts import Piece, TextStream, Written, before_stop
from .wanted import NotAsWanted
from .weights import WeightFollower

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""Attempts at a text in the form that its caller asked for."""
MERGED_BYTES = 1 << 30
"""Maximum bytes of the served version's merged weights, which are kept for all of its requests."""


@dataclass(eq=False)
class _Job:
    """Rows of one request: its texts, or samples of its vote. finish: called once all rows are done. fail: called if a
    row cannot be written.
    """

    request: Request
    running: RunningBatch
    rows: list[LiveRow]
    finish: Callable[[], None]
    fail: Callable[[Exception], None]


@dataclass(eq=False)
class LiveAnswers:
    """Running batches for conversations and vote samples. All methods are for the engine's thread.

    answered: called with each answer. failed: called with each request whose text cannot be written.
    """

    engine: InferenceEngine
    follower: WeightFollower
    answered: Callable[[Answer], None]
    failed: Callable[[Request, Exception], None] = lambda request, error: request.send(error)

    def __post_init__(self) -> None:
        agent = self.engine.runner.agent
        self._agent = agent if isinstance(agent, TransformersAgent) else None
        self.running = RunningBatches(self.follower, self._new_batch)
        self._jobs: dict[LiveRow, _Job] = {}
        self._streams: dict[LiveRow, TextStream] = {}
        self._open: contextlib.ExitStack | None = None
        self._version = -1
        """The version whose weights are in place."""
        self._visit = 0
        self._merged: tuple[int, MergedWeights] | None = None

    @property
    def able(self) -> bool:
        """Whether the policy can answer in a running batch, that is, rows can join and leave its cache."""
        return self._agent is not None and self._agent.keeps_rows

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    @property
    def has_room(self) -> bool:
        """Whether another caller's text may join: the tokens reserved for all are still below `BATCH_TOKENS`."""
        return sum(row.longest for row in self._jobs if not row.background) < BATCH_TOKENS

    @property
    def unrecorded(self) -> list[Request]:
        """Unanswered requests, and rows of a file whose votes are being drawn. A restarted run asks them again."""
        return [job.request for row, job in self._jobs.items() if not row.background or job.request.place]

    def takes(self, request: Request) -> bool:
        """Return whether the request is answered here, with a single text."""
        return self.able and self.engine.is_single(request)

    def begin(self, request: Request) -> bool:
        """Add a request. Returns False if its prompt cannot be built here. Raises SnapshotError."""
        prompt = self._prompt(request)
        if prompt is None:
            return False
        running = self.running.of(request.version)
        rows = [self._row(request, prompt, index) for index in range(request.sampling.texts)]
        fail = partial(self.failed, request)
        self._start(_Job(request, running, rows, lambda: self._answer(request, rows, running), fail), running.waiting)
        return True

    def _start(self, job: _Job, queue: list[LiveRow]) -> None:
        queue += job.rows
        self._jobs |= dict.fromkeys(job.rows, job)

    def draw(self, answer: Answer, count: int, finish: Callable[[list[Rollout]], None]) -> None:
        """Draw `count` samples for an answered request with its version. If that fails, `finish` gets an empty list.
        Raises SnapshotError."""
        config, request = self.engine.config, answer.request
        prompt = self._prompt(request)
        assert prompt is not None, "its answer began with this prompt"
        requested = request.sampling.max_tokens or config.max_turn_tokens
        limit = min(requested, config.max_turn_tokens, config.max_trajectory_tokens - len(prompt))
        sampling = SamplingSettings(config.temperature)
        seeds = [seed_of(-1 - self.engine.seed, request.number, i) for i in range(count)]
        rows = [LiveRow(prompt, limit, sampling, seed, background=True) for seed in seeds]
        running = self.running.of(answer.policy_version)
        job = _Job(request, running, rows, lambda: finish(self._rollouts(request, rows)), lambda _: finish([]))
        self._start(job, running.background)

    def advance(self) -> None:
        """Write one token for the rows of one version, or process the prompts of new rows.

        A failure, such as running out of memory, only fails the requests of the affected rows.
        """
        running = self.running.choose(self._version, self._visit)
        if running is None:
            return
        for row, job in self._jobs.items():
            request = job.request  # a started stream has no deadline
            left = request.gone() is not None if request.on_text is None else request.cancelled.is_set()
            row.cancelled |= left and not row.background
        joining: list[LiveRow] | None = None
        try:
            self._enter(running)
            joining = self.running.joining(running)
            done = running.batch.join(joining) if joining else running.batch.step()
        except Exception as error:
            log.exception("the running batch of version %d failed", running.version)
            first = re.split(r"\.\s|\n", str(error))[0]  # not the error: its frames hold the pass's memory
            self._break_off(running, joining, NotWritten(f"{type(error).__name__}: {first}"))
            done = []
        self._visit += 1
        for row in done:
            self._finish(row)
        self.running.forget(running)

    def pause(self) -> None:
        """Put the served version's weights back, which all other code expects."""
        if self._open is not None:
            self._open.close()
            self._open, self._version = None, -1

    # ------------------------------------------------------------------------------------------------------ rows

    def _row(self, request: Request, prompt: Sequence[int], index: int, attempt: int = 1) -> LiveRow:
        """Create the row of a caller's text, which reports pieces of text and ends before a stop string."""
        chosen = request.sampling
        sampling, limit = self.engine.sampling(chosen)
        remaining = self.engine.config.max_trajectory_tokens - len(prompt)
        seed = seed_of(self.engine.seed, request.number) if chosen.seed is None else chosen.seed
        seed = seed if chosen.seed is None and not index else seed_of(seed, index)
        seed = seed if attempt == 1 else seed_of(seed, attempt)
        voted = self.engine.drawn_later > 0  # samples for the vote start from the same prompt
        row = LiveRow(
            prompt, min(remaining, limit or remaining), sampling, seed, likeliest=chosen.likeliest, keep=voted
        )
        if request.on_text is None and not chosen.stop:
            return row
        stream, on_text = TextStream(self._text, chosen.stop), request.on_text

        def tell(row: LiveRow) -> None:
            text = stream.piece(self._text_tokens(row))
            row.ended |= stream.stopped
            if on_text is not None:
                scores = tuple(row.scores[stream.scored : stream.complete]) if text else ()
                stream.scored += len(scores)
                on_text(request.number, Piece(text, index, scores))

        row.on_token, self._streams[row] = tell, stream
        return row

    def _new_batch(self) -> LiveBatch:
        assert self._agent is not None
        return LiveBatch(self._agent.decoder, self._agent.chat.stop_ids)

    def _enter(self, running: RunningBatch) -> None:
        """Put a version's weights in place until `pause`. They are converted once for all tokens."""
        if self._open is not None and self._version == running.version:
            return
        self.pause()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.follower.holding(running.tensors))
            stack.enter_context(acting(self.engine.model, self._merged_for(running.version)))
            self._open = stack.pop_all()
        self._version, self._visit = running.version, 0

    def _merged_for(self, version: int) -> MergedWeights | None:
        """Return the merged weights of the served version, whose tensors are in place. Older versions have none: each
        would take as much memory as the model.
        """
        if version != self.follower.version:
            return None
        if self._merged is None or self._merged[0] != version:
            self._merged = None  # free the old ones first
            self._merged = version, MergedWeights(self.engine.model, MERGED_BYTES)
        return self._merged[1]

    def _break_off(self, running: RunningBatch, joining: Sequence[LiveRow] | None, error: NotWritten) -> None:
        """Fail the requests that lose rows in a failed batch. joining: the rows that were about to join, None if the
        weights could not be put in place.
        """
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # raises if the device itself is lost, which ends serving
        waiting = [] if joining is None else [*running.waiting, *running.background]
        lost = [row for row, job in self._jobs.items() if job.running is running and row not in waiting]
        if joining and not any(row.tokens for row in joining):  # only their prompts failed: the other rows continue
            lost = joining
        else:
            running.batch = self._new_batch()
        for job in dict.fromkeys(self._jobs[row] for row in lost):
            for row in job.rows:
                row.cancelled = True
                self._jobs.pop(row, None)
                self._streams.pop(row, None)
            job.fail(error)
        running.waiting = [row for row in running.waiting if row in self._jobs]
        running.background = [row for row in running.background if row in self._jobs]

    def _finish(self, row: LiveRow) -> None:
        job = self._jobs.pop(row, None)
        if job is None:  # its request has failed
            return
        if row.cancelled:
            for answered in job.rows:
                self._streams.pop(answered, None)
            job.request.send(RequestDropped(job.request.gone() or "the caller has disconnected"))
        elif all(r not in self._jobs for r in job.rows):
            try:
                job.finish()
            except Exception as error:
                log.exception("the texts of request %d could not be used", job.request.number)
                job.fail(error)

    def _answer(
        self,
        request: Request,
        rows: list[LiveRow],
        running: RunningBatch,
        written: Mapping[int, Written] = MappingProxyType({}),
        attempt: int = 1,
    ) -> None:
        """Answer with the texts of `rows`. Texts that lack the form that the caller wants are written again.

        written: texts of earlier attempts, by row index.
        """
        texts = {i: written.get(i) or self._written(request, row) for i, row in enumerate(rows)}
        failed = [i for i, text in texts.items() if text.problem]
        if failed and attempt < ATTEMPTS and rows[0].sampling.temperature > 0:  # greedy decoding would repeat the text
            for i in failed:
                rows[i] = self._row(request, rows[i].prompt, i, attempt + 1)
            kept = {i: text for i, text in texts.items() if i not in failed}
            retried = [rows[i] for i in failed]
            finish = partial(self._answer, request, rows, running, kept, attempt + 1)
            self._start(_Job(request, running, retried, finish, partial(self.failed, request)), running.waiting)
            return
        if failed:
            times = "one attempt" if attempt == 1 else f"{attempt} attempts"
            request.send(
                NotAsWanted(f"the policy wrote no text in the requested format in {times}: {texts[failed[0]].problem}")
            )
        samples = self._rollouts(request, rows)
        if (conversation := request.conversation) is not None:
            tools = request.wanted.tools if request.wanted is not None else ()
            for i, text in texts.items():
                samples[i] = with_calls(samples[i], text.calls, text.text, tools) if tools else samples[i]
                if conversation.previous is not None:
                    samples[i] = continued(conversation.previous, conversation.messages, samples[i])
                self.engine.conversations.keep(conversation, text.text, text.calls, samples[i], request.number)
        answer = self.engine.single_answer(request, samples, running.version)
        self.answered(replace(answer, written=tuple(texts.values())))

    def _written(self, request: Request, row: LiveRow) -> Written:
        """Return the text of a finished row, with its calls of the caller's tools."""
        wanted, stop = request.wanted, request.sampling.stop
        tokens, stream = self._text_tokens(row), self._streams.pop(row, None)
        text = before_stop(self._text(tokens), stop)
        scored = stream.complete if stream is not None and stream.stopped else len(tokens)
        scores = tuple(row.scores[:scored])
        if wanted is None:
            return Written(text, scores)
        calls: tuple[Call, ...] = ()
        if wanted.tools:
            assert self._agent is not None and self.engine.call_reader is not None
            read = self.engine.call_reader.read(before_stop(self._agent.chat.decode(row.tokens), stop), wanted.tools)
            calls = wanted.calls(read)
            text = read.thought if calls else text
        return Written(text, scores, calls, wanted.problem(text, calls) or "")

    # ------------------------------------------------------------------------------------- from and to environments

    def _prompt(self, request: Request) -> list[int] | None:
        """Return the prompt's tokens; None if the environment or policy refuses the task, or the prompt is too long."""
        assert self._agent is not None
        if request.conversation is not None and request.conversation.prompt is not None:
            return list(request.conversation.prompt)
        env: object = self.engine.runner.environment(request.row)
        if not isinstance(env, MultiTurnEnv):
            return None
        agent, limit, task = self._agent, self.engine.config.max_trajectory_tokens, request.row.task_data
        opened = guarded(lambda t: agent.chat.begun(*env.opening(t, agent)), task, env.turn_timeout_s)
        encoded = opened.value  # None for a problem with the task, which the normal path reports
        return list(encoded.ids) if isinstance(encoded, Encoded) and len(encoded.ids) < limit else None

    def _text_tokens(self, row: LiveRow) -> list[int]:
        """Return the tokens of a row without the token that ends the turn."""
        assert self._agent is not None
        ends = bool(row.tokens) and row.tokens[-1] in self._agent.chat.stop_ids
        return row.tokens[:-1] if ends else row.tokens

    def _text(self, tokens: Sequence[int]) -> str:
        tokenizer = self.engine.runner.tokenizer
        assert tokenizer is not None
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _rollouts(self, request: Request, rows: list[LiveRow]) -> list[Rollout]:
        """Return the rows as rollouts in the request's environment."""
        runner = replace(self.engine.runner, agent=_WrittenAgent(self._agent, rows, request.sampling.stop))
        return runner.run([request.row], step=request.number, first=request.number, num_rollouts=len(rows))


class _WrittenAgent:
    """The agent that wrote some rows, which replays them, so that their environment judges them as usual."""

    def __init__(self, agent: Any, rows: list[LiveRow], stop: Sequence[str]) -> None:
        self._agent = agent
        self._rows = rows
        self._stop = stop

    def __getattr__(self, name: str) -> object:
        return getattr(self._agent, name)

    def start(self, prompts: object, num_rollouts: int = 1, **_: object) -> _WrittenAgent:
        return self

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        turns = []
        for row in (self._rows[i] for i in rows):
            start, text = len(row.prompt), before_stop(self._agent.chat.decode(row.tokens), self._stop)
            full = start + len(row.tokens) >= self._agent.config.max_trajectory_tokens
            reason = "stop" if row.ended else "token_limit" if full else "turn_limit"
            turns.append(AgentTurn(text, (start, start + len(row.tokens)), reason))
        return turns

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        raise RequestDropped("a conversation has one turn")

    def tokens(self, row: int) -> TokenArrays:
        answer = self._rows[row]
        start, count = len(answer.prompt), len(answer.tokens)
        agent = np.arange(start + count) >= start
        return TokenArrays(
            token_ids=np.array([*answer.prompt, *answer.tokens], np.int32),
            agent_mask=agent,
            logprobs=np.array([0.0] * start + answer.logprobs, np.float32),
            turn=np.where(agent, 0, -1).astype(np.int16),
        )

    def close(self) -> None:
        pass
