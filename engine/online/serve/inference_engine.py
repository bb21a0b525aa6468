"""The inference engine: answers by vote, and turns what it was sure of into update tasks.

A request is answered first and learnt from afterwards; nothing here ever waits for the update worker. Rewards are
those of offline training: the same `RewardOrchestrator`, its saved statistics, its weights fixed. What stands in for
the known answer is the pseudo-label: what the *other* candidates and the neighbours voted for.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor, nn

from ....configs import metric_names as metric
from ....configs.sections.online import OnlineConfig
from ....envs.trajectory import Trajectory
from ....rewards import RewardOrchestrator
from ....rewards.result import RewardResult
from ...policy.forward import vocabulary_of
from ...policy.merged import merged_weights
from ...rollouts.rollout import Rollout
from ...rollouts.runner import RolloutRunner
from ...rollouts.versions import VersionedAgent
from ...runs.types import NeighbourVote, Served, TrajectoryRecord
from ..store.images import ImageFolder
from ..store.update_task import OriginalLogits, UpdateTask
from .answers import Answer
from .experience_buffer import ExperienceBuffer
from .requests import Request, Sampling
from .sample_passes import embeddings_and_logits, request_embeddings
from .task_making import update_task
from .voting import Gate, Neighbour, Vote, canonical, gate, vote

if TYPE_CHECKING:
    from ...agents.remote.agent import RemoteAgent
    from ...agents.transformers_agent import TransformersAgent

log = logging.getLogger(__name__)


@dataclass
class Learned:
    """What was made of an answer: the record's rows, metrics, and the task to enqueue (None: nothing to learn)."""

    answer: Answer
    records: list[TrajectoryRecord] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    task: UpdateTask | None = None


class InferenceEngine:
    """Answers requests with `runner`'s agent, whose model serves under the version that is passed in.

    name: the engine's among those that share a queue; empty for one that has its own.
    """

    def __init__(
        self,
        model: nn.Module,
        runner: RolloutRunner,
        orchestrator: RewardOrchestrator,
        config: OnlineConfig,
        *,
        buffer: ExperienceBuffer | None = None,
        learn_statistics: bool = True,
        seed: int = 0,
        images: ImageFolder | None = None,
        name: str = "",
    ) -> None:
        self.model = model
        self.name = name
        self.images = images
        self.runner = runner
        self.orchestrator = orchestrator
        self.config = config
        self.buffer = buffer if buffer is not None else ExperienceBuffer(config.buffer_size)
        self.learn_statistics = learn_statistics
        self.seed = seed
        vocabulary = vocabulary_of(model)
        self.logits_top_k = None if vocabulary <= config.kl.full_vocabulary else config.kl.top_k

    # -------------------------------------------------------------------------------------------------- answering

    def answer(self, requests: Sequence[Request], policy_version: int) -> list[Answer]:
        """Sample, vote and gate; requests are answered together. An environment that fails costs its own request."""
        k = self.config.samples
        first = requests[0].number
        chosen = requests[0].sampling
        with self._drawing(), self._sampled_as(chosen):
            samples = self.runner.run([r.row for r in requests], seed=self.seed + first, step=first, num_rollouts=k)
        groups = [samples[i * k : (i + 1) * k] for i in range(len(requests))]
        known: Sequence[np.ndarray | None] = [None] * len(groups)
        if self.config.neighbours and self.config.buffer_size:
            known = request_embeddings(self.model, [g[0] for g in groups])
        answers = []
        for request, group, embedding in zip(requests, groups, known, strict=True):
            neighbours: list[Neighbour] = []
            if embedding is not None:
                neighbours = self.buffer.neighbours(
                    embedding,
                    self.config.neighbours,
                    self.config.neighbour_similarity,
                    self.config.neighbour_weight,
                )
            outcome = self.vote(request, group, neighbours)
            answers.append(
                Answer(
                    request=request,
                    vote=outcome,
                    label_vote=outcome,
                    gate=self._gate(request, outcome),
                    samples=group,
                    policy_version=policy_version,
                    correct=_correct(outcome, group),
                    seconds=time.perf_counter() - request.arrived,
                    neighbours=tuple(neighbours),
                    embedding=embedding,
                    error=_failure(group),
                )
            )
        return answers

    def _drawing(self) -> contextlib.AbstractContextManager[object]:
        """For the time in which samples are drawn: adapters are merged where the model here draws them."""
        elsewhere = isinstance(self.runner.agent, VersionedAgent)
        return contextlib.nullcontext() if elsewhere else merged_weights(self.model)

    @contextlib.contextmanager
    def _sampled_as(self, chosen: Sampling) -> Iterator[None]:
        """Sample as the callers asked; what they left open is as configured."""
        changes: dict[str, Any] = {}
        if chosen.temperature is not None:
            changes["temperature"] = chosen.temperature
        if chosen.max_tokens is not None:
            changes["max_new_tokens"] = chosen.max_tokens
        if not changes:
            yield
            return
        with cast("TransformersAgent | RemoteAgent", self.runner.agent).settings(**changes):
            yield

    def _gate(self, request: Request, outcome: Vote) -> Gate:
        """The confidence gate. What a caller had sampled in its own way, or by an older version, is not learnt from:
        it is not what the served policy would have done."""
        if request.sampling.is_own or request.version is not None:
            return Gate("own_sampling", "the caller chose the sampling or the version")
        return gate(outcome, self.config.min_confidence, self.config.learn_from_unanimous)

    def vote(self, request: Request, samples: Sequence[Rollout], neighbours: Sequence[Neighbour]) -> Vote:
        """The vote over a request's candidates."""
        return vote([_answer_of(s) for s in samples], neighbours)

    # --------------------------------------------------------------------------------------------------- learning

    def learn(self, answers: Sequence[Answer]) -> list[Learned]:
        """Rewards, record rows and update tasks of answers that were given. Not on anyone's way to an answer."""
        answers = self._widened(answers)
        samples = [s for a in answers for s in a.samples if s.trajectory is not None]
        if not samples:
            return [Learned(a, metrics=self._metrics(a)) for a in answers]
        wanted = [a.gate.open for a in answers for s in a.samples if s.trajectory is not None]
        embeddings, logits = self._score(samples, wanted)
        correctness = [
            bool(c) for a in answers for s, c in zip(a.samples, a.label_vote.correct, strict=True) if s.trajectory
        ]
        result = self.orchestrator.calculate_total_reward(
            [s.trajectory for s in samples if s.trajectory is not None],
            correctness,
            embeddings=embeddings,
            update=self.learn_statistics,
        )
        learned, row = [], 0
        for answer in answers:
            rows = range(row, row + sum(s.trajectory is not None for s in answer.samples))
            row = rows.stop
            item = Learned(answer, metrics=self._metrics(answer))
            item.records = [
                TrajectoryRecord(
                    trajectory=trajectory,
                    breakdown=result.breakdowns[i],
                    tokens=samples[i].token_arrays(),
                    policy_version=answer.policy_version,
                    split="online",
                    served=_served(answer, i - rows.start, trajectory),
                )
                for i in rows
                if (trajectory := samples[i].trajectory) is not None
            ]
            if answer.gate.open and self.config.updates:
                item.task = self._task(answer, [samples[i] for i in rows], result, rows.start, logits)
            if answer.gate.open and answer.embedding is not None and answer.text is not None:
                self.buffer.add(f"request-{answer.request.number}", answer.embedding, answer.text)
            learned.append(item)
        if learned:
            learned[-1].metrics |= dict(result.metrics)
        return learned

    def label(self, answer: Answer, right: str | None, wrong: str | None) -> Learned:
        """The update task that a person's word on an earlier answer gives: `right` is the right answer, or `wrong` one
        that is not right. Candidates of which the person said nothing stay out."""
        samples = [s for s in answer.samples if s.trajectory is not None]
        correct: list[bool | None] = []
        for sample in samples:
            given = canonical(_answer_of(sample))
            if right is not None:
                correct.append(given == canonical(right))
            else:
                correct.append(False if given == canonical(wrong) else None)
        labels = tuple(right if c is not None else None for c in correct)
        label_vote = replace(
            answer.label_vote, labels=labels, correct=tuple(correct), confidence=1.0, flipped=correct[0] is False
        )
        labelled = replace(answer, samples=samples, label_vote=label_vote, gate=Gate("open"))
        if all(c is None for c in correct):
            return Learned(labelled)
        embeddings, logits = self._score(samples, [c is not None for c in correct])
        result = self.orchestrator.calculate_total_reward(
            [s.trajectory for s in samples if s.trajectory is not None],
            [bool(c) for c in correct],
            embeddings=embeddings,
            update=False,
        )
        return Learned(labelled, task=self._task(labelled, samples, result, 0, logits))

    def _widened(self, answers: Sequence[Answer]) -> list[Answer]:
        """The same answers with `samples_to_learn` further trajectories each, and the labels that all of them give.

        More votes make better labels, and more trajectories a steadier gradient, at no cost to who waits for an answer.
        Should drawing them fail, what was answered with is learnt from.
        """
        extra = self.config.samples_to_learn
        able = [a for a in answers if a.error is None and not a.request.sampling.is_own and a.request.version is None]
        if not extra or not self.config.updates or not able:
            return list(answers)
        first = able[0].request.number
        rows = [a.request.row for a in able]
        try:
            with self._drawing():
                drawn = self.runner.run(rows, seed=-1 - self.seed - first, step=first, num_rollouts=extra)
        except Exception:
            log.exception("no further samples of %d requests could be drawn", len(able))
            return list(answers)
        wider = []
        for i, answer in enumerate(able):
            samples = [*answer.samples, *_joining(answer.samples, drawn[i * extra : (i + 1) * extra])]
            label_vote = self.vote(answer.request, samples, answer.neighbours)
            wider.append(
                replace(answer, samples=samples, label_vote=label_vote, gate=self._gate(answer.request, label_vote))
            )
        found = {a.request.number: a for a in wider}
        return [found.get(a.request.number, a) for a in answers]

    def _score(
        self, samples: Sequence[Rollout], wanted: Sequence[bool]
    ) -> tuple[list[Tensor] | None, dict[int, OriginalLogits]]:
        """What rewards and updates need of a pass of the policy that answered (`embeddings_and_logits`)."""
        embed = self.orchestrator.config.needs_embeddings and self.orchestrator.embedder is None
        return embeddings_and_logits(self.model, samples, embed=embed, wanted=wanted, top_k=self.logits_top_k)

    def _task(
        self,
        answer: Answer,
        samples: Sequence[Rollout],
        result: RewardResult,
        first: int,
        logits: dict[int, OriginalLogits],
    ) -> UpdateTask | None:
        return update_task(
            answer, samples, result, first, logits, config=self.config, engine=self.name, images=self.images
        )

    def _metrics(self, answer: Answer) -> dict[str, Any]:
        values: dict[str, Any] = {
            metric.GATE_RATE: float(answer.gate.open),
            metric.FLIP_RATE: float(answer.label_vote.flipped),
            metric.CONFIDENCE: answer.label_vote.confidence,
            metric.LATENCY: answer.seconds,
            metric.NEIGHBOURS: float(len(answer.neighbours)),
        }
        if answer.correct is not None:
            values[metric.ONLINE_SUCCESS] = float(answer.correct)
            initial = answer.samples[0].trajectory
            if initial is not None and initial.correct is not None:
                values[metric.ONLINE_SUCCESS_INITIAL] = float(initial.correct)
        return values


def _joining(group: Sequence[Rollout], drawn: Sequence[Rollout]) -> list[Rollout]:
    """Samples that were drawn later as further rollouts of the same group, for the record."""
    first = next((s.trajectory for s in group if s.trajectory is not None), None)
    joined = []
    for number, sample in enumerate(drawn, len(group)):
        if sample.trajectory is not None and first is not None:
            named = {"id": f"{first.group}-{number}", "group": first.group, "rollout": number}
            sample = replace(sample, trajectory=replace(sample.trajectory, **named))
        joined.append(sample)
    return joined


def _answer_of(sample: Rollout) -> str | None:
    return sample.trajectory.answer if sample.trajectory is not None else None


def _correct(outcome: Vote, samples: Sequence[Rollout]) -> bool | None:
    """Whether the ensemble's answer is right, where the environment knows."""
    winner = canonical(outcome.answer)
    known = [s.trajectory for s in samples if s.trajectory is not None and s.trajectory.correct is not None]
    if not known:
        return None
    for trajectory in known:
        if canonical(trajectory.answer) == winner and winner is not None:
            return bool(trajectory.correct)
    return winner is not None and any(canonical(t.expected) == winner for t in known)


def _failure(samples: Sequence[Rollout]) -> str | None:
    """Why there is no answer, when every rollout failed."""
    errors = [s.trajectory.error for s in samples if s.trajectory is not None]
    return next((e for e in errors if e), None) if errors and all(errors) else None


def _served(answer: Answer, row: int, trajectory: Trajectory) -> Served:
    """The candidate's place in the vote, for the record."""
    outcome = answer.label_vote
    winner = canonical(answer.text)
    gave = winner is not None and canonical(trajectory.answer) == winner
    return Served(
        request=answer.request.number,
        initial=row == 0,
        answer=answer.text,
        sent=gave and trajectory.id == answer.trajectory_id,
        pseudo_label=outcome.labels[row],
        agrees=outcome.correct[row],
        confidence=outcome.confidence,
        votes=outcome.shares,
        neighbours=tuple(NeighbourVote(n.id, n.answer, n.weight) for n in answer.neighbours),
        gate=answer.gate.code,
        reason=answer.gate.reason,
        seconds=answer.seconds,
    )
