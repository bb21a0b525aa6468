"""The inference engine: answer by vote, and turn confident answers into update tasks.

A request is answered first; learning from it comes afterwards. Rewards are those of offline training: the same
`RewardOrchestrator`, its saved statistics and fixed weights. The pseudo-label, which is the vote of the *other*
candidates and the neighbours, replaces the known answer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import nn

from ....configs import metric_names as metric
from ....configs.sections.online import OnlineConfig
from ....envs.chat import ChatEnv
from ....envs.dataset import DatasetEnv
from ....envs.extraction import make_extractor
from ....envs.loading import EnvLoadError
from ....envs.trajectory import Trajectory
from ....rewards.functions import RewardFunctionError
from ....rewards.orchestrator import RewardOrchestrator
from ...agents.chat_agent import ChatAgent
from ...agents.remote.agent import RemoteAgent
from ...agents.sampling import SamplingSettings
from ...agents.tool_calls import NativeCalls
from ...policy.prepared import acting
from ...policy.unwrap import vocabulary_of
from ...rollouts.rollout import Rollout
from ...rollouts.runner import RolloutRunner
from ...runs.types import GateCode, NeighbourVote, Served, TrajectoryRecord
from ..store.images import ImageFolder
from ..store.update_task import UpdateTask
from ..voting import Gate, Vote, canonical, gate, vote
from .answers import UNSCORED, Answer, answer_of, answered, labelled
from .conversations import Conversations
from .experience_buffer import ExperienceBuffer
from .requests import Request, Sampling
from .sample_passes import embeddings_and_logits, request_embeddings, update_task

if TYPE_CHECKING:
    from ...agents.transformers_agent import TransformersAgent
    from ...rollouts.judging import Judge

log = logging.getLogger(__name__)

FULL_VOCABULARY, TOP_K = 8192, 64
"""Up to this vocabulary size, all original logits are kept and the KL is exact. Above it, only the `TOP_K` likeliest
tokens are kept, with one bucket for the rest."""
FEEDBACK_ONLY = Gate(GateCode.NO_LABEL, "online.learn_from is feedback, and this answer has none")


@dataclass
class Learned:
    """The data of an answer for the record and for learning. task: None if there is nothing to learn."""

    answer: Answer
    records: list[TrajectoryRecord] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    task: UpdateTask | None = None


@dataclass(eq=False)
class InferenceEngine:
    """Answers requests with `runner`'s agent under the given policy version.

    name: the engine's name among engines that share a queue, else empty. judge: the user's reward functions, which
    replace the vote.
    """

    model: nn.Module
    runner: RolloutRunner
    orchestrator: RewardOrchestrator
    config: OnlineConfig
    _: KW_ONLY
    buffer: ExperienceBuffer = field(default_factory=ExperienceBuffer)
    learn_statistics: bool = True
    seed: int = 0
    images: ImageFolder | None = None
    name: str = ""
    judge: Judge | None = None
    between: Callable[[], None] | None = None
    """Called between forward passes of learning, so that callers do not have to wait for all of them."""

    def __post_init__(self) -> None:
        self.extract = make_extractor(self.config.answer)
        self.conversations = Conversations()
        agent = self.runner.agent
        self.call_reader = agent.call_reader or NativeCalls.of(agent.chat) if isinstance(agent, ChatAgent) else None
        """Parses calls of callers' tools in the chat template's syntax; None if the template shows no tools."""
        self.logits_top_k = None if vocabulary_of(self.model) <= FULL_VOCABULARY else TOP_K

    # -------------------------------------------------------------------------------------------------- answering

    def answer(self, requests: Sequence[Request], policy_version: int) -> list[Answer]:
        """Sample, vote and gate a batch of requests. A failing environment only affects its own request."""
        single = [r for r in requests if self.is_single(r)]
        voted = [r for r in requests if r not in single]
        answers = self._answer_single(single, policy_version) if single else []
        answers += self._by_vote(voted, policy_version) if voted else []
        return sorted(answers, key=lambda a: a.request.number)

    def is_single(self, request: Request) -> bool:
        """Return whether the caller gets one text. This is so in a chat without tools, unless it asked for a vote."""
        if request.sampling.ensemble:
            return False
        try:
            env = self.runner.environment(request.row)
        except EnvLoadError:
            return False
        return isinstance(env, ChatEnv) and not (isinstance(env, DatasetEnv) and env.functions)

    def _answer_single(self, requests: Sequence[Request], policy_version: int) -> list[Answer]:
        """Sample one text per request. The model's generation defaults replace settings that the caller left out."""
        how, limit = self.sampling(requests[0].sampling)
        turn = {"max_turn_tokens": limit or self.config.max_trajectory_tokens}
        changes = asdict(how) | turn | ({"max_new_tokens": limit} if limit else {})
        samples = self._drawn(requests, 1, changes)
        return [self.single_answer(r, [s], policy_version) for r, s in zip(requests, samples, strict=True)]

    def _by_vote(self, requests: Sequence[Request], policy_version: int) -> list[Answer]:
        k, chosen = self.config.samples, requests[0].sampling
        changes: dict[str, object] = {}
        if chosen.temperature is not None:
            changes["temperature"] = chosen.temperature
        if chosen.max_tokens is not None:
            changes |= {"max_new_tokens": chosen.max_tokens, "max_turn_tokens": chosen.max_tokens}
        samples = self._drawn(requests, k, changes)
        groups = [samples[i * k : (i + 1) * k] for i in range(len(requests))]
        known: Sequence[np.ndarray | None] = [None] * len(groups)
        if self.config.neighbours:
            known = request_embeddings(self.model, [g[0] for g in groups])
        return [
            self._voted(request, group, embedding, policy_version)
            for request, group, embedding in zip(requests, groups, known, strict=True)
        ]

    def _voted(self, request: Request, group: list[Rollout], embedding: np.ndarray | None, version: int) -> Answer:
        neighbours = [] if embedding is None else self.buffer.neighbours(embedding, self.config.neighbours)
        outcome = self.vote(request, group, neighbours)
        winner = canonical(outcome.answer)
        if winner is None:
            shown = None if self.extract is None else 0
        else:
            shown = next((i for i, sample in enumerate(group) if canonical(self.key(sample)) == winner), None)
        return answered(
            request,
            outcome,
            self._gate(request, outcome),
            group,
            version,
            shown,
            outcome.answer,
            neighbours=tuple(neighbours),
            embedding=embedding,
        )

    def single_answer(self, request: Request, samples: list[Rollout], policy_version: int) -> Answer:
        """Return the answer for texts that were sampled for the caller. Samples for a vote may follow."""
        outcome, first = vote([None] * len(samples)), self.key(samples[0])
        return answered(request, outcome, self._single_gate(request), samples, policy_version, 0, first, single=True)

    def sampling(self, chosen: Sampling) -> tuple[SamplingSettings, int | None]:
        """Return the caller's settings, completed from the model's generation configuration, and the token limit."""
        config = getattr(self.model, "generation_config", None)
        usual = SamplingSettings(0.0)
        if config is not None and config.do_sample:
            temperature = 1.0 if config.temperature is None else float(config.temperature)
            usual = SamplingSettings(temperature, config.top_p or 1.0, config.top_k or 0)
        if chosen.temperature is not None:
            usual = replace(usual, temperature=chosen.temperature)
        return usual, chosen.max_tokens or getattr(config, "max_new_tokens", None)

    def vote(self, request: Request, samples: Sequence[Rollout], neighbours: Sequence[NeighbourVote]) -> Vote:
        return vote([self.key(s) for s in samples], neighbours)

    def key(self, sample: Rollout) -> str | None:
        """Return the part of a sample's answer that is compared in votes and feedback."""
        text = answer_of(sample)
        return text if text is None or self.extract is None else self.extract(text)

    def _single_gate(self, request: Request) -> Gate:
        """Return the gate that decides whether samples are drawn after a single answer."""
        if request.version is not None:
            return Gate(GateCode.OWN_SAMPLING, "the caller chose the version")
        if self.config.learn_from == "feedback":
            return FEEDBACK_ONLY
        if request.wanted is not None and request.wanted.tools:
            return Gate(GateCode.NO_LABEL, "a conversation with the caller's tools needs feedback to learn from")
        if self.judge is None and self.extract is None:
            return Gate(
                GateCode.NO_LABEL, "no answer can be extracted from free text: set online.answer, or give feedback"
            )
        return Gate(GateCode.OPEN)

    def _gate(self, request: Request, outcome: Vote) -> Gate:
        """Return the confidence gate. It is closed if the caller chose the sampling or the version, because the served
        policy would not have given that answer.
        """
        if self.config.learn_from == "feedback":
            return FEEDBACK_ONLY
        if request.sampling.is_own or request.version is not None:
            return Gate(GateCode.OWN_SAMPLING, "the caller chose the sampling or the version")
        return gate(outcome, self.config.min_confidence)

    def _drawn(
        self, requests: Sequence[Request], count: int, changes: Mapping[str, object], seed: int | None = None
    ) -> list[Rollout]:
        first, agent = requests[0].number, cast("TransformersAgent | RemoteAgent", self.runner.agent)
        with contextlib.ExitStack() as open_:
            if not isinstance(agent, RemoteAgent):  # convert and merge weights once for all tokens
                open_.enter_context(acting(self.model))
            if changes:
                open_.enter_context(agent.settings(**changes))
            rows = [r.row for r in requests]
            seed = self.seed + first if seed is None else seed
            return self.runner.run(rows, seed=seed, step=first, num_rollouts=count)

    # --------------------------------------------------------------------------------------------------- learning

    def learn(
        self, answers: Sequence[Answer], aside: Callable[[Callable[[], Answer]], Answer] = lambda judge: judge()
    ) -> list[Learned]:
        """Compute rewards, record rows and update tasks for delivered answers.

        aside: calls the user's reward functions, which may be slow.
        """
        learned: list[Learned] = []
        for widened in self.widen(answers):
            if learned and self.between is not None:
                self.between()
            answer = widened if self.judge is None else aside(partial(self._judged, widened))
            learned.append(self.rewarded(answer, update=self.learn_statistics))
            if answer.gate.open and answer.embedding is not None and answer.vote.answer is not None:
                self.buffer.add(f"request-{answer.request.number}", answer.embedding, answer.vote.answer)
        return learned

    def rewarded(self, answer: Answer, *, update: bool = False) -> Learned:
        """Compute rewards and update task of a labelled answer. update: also update the reward statistics with it."""
        learned = Learned(answer, metrics=_metrics(answer))
        outcome = answer.label_vote
        samples = [s for s in answer.samples if s.trajectory is not None]
        correct = [c for s, c in zip(answer.samples, outcome.correct, strict=True) if s.trajectory is not None]
        if not samples:
            return learned
        embeddings, logits = embeddings_and_logits(
            self.model,
            samples,
            embed=self.orchestrator.config.needs_embeddings,
            wanted=[answer.gate.open and c is not None for c in correct],
            top_k=self.logits_top_k,
            between=self.between,
        )
        trajectories = [s.trajectory for s in samples if s.trajectory is not None]
        result = self.orchestrator.calculate_total_reward(
            trajectories, [bool(c) for c in correct], embeddings=embeddings, update=update
        )
        learned.metrics |= dict(result.metrics)
        learned.records = [
            TrajectoryRecord(
                trajectory=trajectory,
                breakdown=breakdown,
                tokens=sample.token_arrays(),
                policy_version=answer.policy_version,
                split="online",
                served=_served(answer, row, trajectory),
            )
            for row, (trajectory, sample, breakdown) in enumerate(
                zip(trajectories, samples, result.breakdowns, strict=True)
            )
        ]
        if answer.gate.open and self.config.updates:
            learned.task = update_task(
                answer, samples, result, logits, config=self.config, engine=self.name, images=self.images
            )
        return learned

    def _judged(self, answer: Answer) -> Answer:
        """Return the answer, judged by the user's reward functions instead of the vote."""
        unjudged = answer.error is not None or answer.request.version is not None
        if self.judge is None or self.config.learn_from == "feedback" or unjudged:
            return answer
        try:
            samples = self.judge(answer.samples, [answer.request.row] * len(answer.samples), answer.request.number)
        except RewardFunctionError as error:
            return replace(answer, gate=Gate(GateCode.NO_LABEL, f"{UNSCORED}{error}"))
        scored = [s.trajectory if s.trajectory is not None and s.trajectory.steps[-1].scores else None for s in samples]
        judged = labelled(answer, samples, [None if t is None else bool(t.correct) for t in scored])
        return judged if any(scored) else replace(judged, gate=Gate(GateCode.NO_LABEL, "no sample has a score"))

    # ------------------------------------------------------------------------------------------- further samples

    @property
    def drawn_later(self) -> int:
        """The number of samples drawn after a single answer."""
        return (self.config.samples + self.config.samples_to_learn) if self.config.updates else 0

    def _extra(self, answer: Answer, always: bool) -> int:
        if answer.error is not None:
            return 0
        if answer.single:
            return self.drawn_later if len(answer.samples) == 1 and (answer.gate.open or always) else 0
        fixed = answer.request.sampling.is_own or answer.request.version is not None
        return 0 if fixed or not self.config.updates else self.config.samples_to_learn

    def widen(self, answers: Sequence[Answer], *, always: bool = False) -> list[Answer]:
        """Draw more samples for each answer: more votes give better labels and a less noisy gradient. If drawing fails,
        the answers stay unchanged.

        always: draw samples for a single answer even if its gate is closed.
        """
        found = {a.request.number: a for a in answers}
        sizes = {n: (self._extra(a, always), a.request.sampling.max_tokens) for n, a in found.items()}
        for extra, limit in dict.fromkeys(kind for kind in sizes.values() if kind[0]):
            batch = [a for number, a in found.items() if sizes[number] == (extra, limit)]
            seed = -1 - self.seed - batch[0].request.number
            shorter = {"max_turn_tokens": limit} if limit and limit < self.config.max_turn_tokens else {}
            try:
                drawn = self._drawn([a.request for a in batch], extra, shorter, seed)
            except Exception:
                log.exception("samples of %d requests could not be drawn", len(batch))
                continue
            for i, answer in enumerate(batch):
                found[answer.request.number] = self.widened(answer, drawn[i * extra : (i + 1) * extra])
        return list(found.values())

    def widened(self, answer: Answer, drawn: Sequence[Rollout]) -> Answer:
        """Return the answer with more samples, and labels from all votes. A single answer has no vote itself, because
        it was sampled with other settings.
        """
        if not drawn:
            return replace(answer, gate=Gate(GateCode.NO_LABEL, "no samples could be drawn"))
        joining = _renumbered(answer.samples, drawn)
        samples = [*answer.samples, *joining]
        if not answer.single:
            label_vote = self.vote(answer.request, samples, answer.neighbours)
            return replace(answer, samples=samples, label_vote=label_vote, gate=self._gate(answer.request, label_vote))
        label_vote = self.vote(answer.request, joining, ())
        closed, unvoted = gate(label_vote, self.config.min_confidence), [None] * len(answer.samples)
        label_vote = replace(
            label_vote,
            labels=(*unvoted, *label_vote.labels),
            correct=(*unvoted, *label_vote.correct),
            flipped=canonical(answer.extracted) != canonical(label_vote.answer),
        )
        return replace(answer, samples=samples, label_vote=label_vote, gate=closed)


def _metrics(answer: Answer) -> dict[str, object]:
    values: dict[str, object] = {
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


def _renumbered(group: Sequence[Rollout], drawn: Sequence[Rollout]) -> list[Rollout]:
    first = next((s.trajectory for s in group if s.trajectory is not None), None)
    joined = []
    for number, sample in enumerate(drawn, len(group)):
        if sample.trajectory is not None and first is not None:
            ids = {"id": f"{first.group}-{number}", "group": first.group, "rollout": number}
            sample = replace(sample, trajectory=replace(sample.trajectory, **ids))
        joined.append(sample)
    return joined


def _served(answer: Answer, row: int, trajectory: Trajectory) -> Served:
    outcome = answer.label_vote
    return Served(
        request=answer.request.number,
        initial=row == 0,
        answer=answer.text,
        sent=answer.shown is not None and trajectory.id == answer.trajectory_id,
        pseudo_label=outcome.labels[row],
        agrees=outcome.correct[row],
        confidence=outcome.confidence,
        votes=outcome.shares,
        neighbours=answer.neighbours,
        gate=answer.gate.code,
        reason=answer.gate.reason,
        seconds=answer.seconds,
    )
