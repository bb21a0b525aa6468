"""Makes the rollouts of a step in a pipeline of stages that take values and return values.

rows → rollouts                       `RolloutRunner.run`, on each process its share or all on the main one
rollouts → log-probs, embeddings      `FrozenPass`, each process its own
rollouts → rewards → advantages       `Scorer`, on the main process, since groups and statistics span all processes
groups → batch                        `replay`, or rollouts of other prompts
batch → this process's rollouts       `Processes`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from ...configs import metric_names as metric
from ...configs.sections import RolloutsConfig
from ...envs.seeds import seed_of
from ...rewards.advantages import AdvantageMethod
from ..agents.remote.agent import RemoteAgent
from ..policy.precision import Arithmetic
from ..policy.prepared import PreparedModel, acting, inference
from ..rollouts.advantages import advantage_method
from ..rollouts.correction import Weighting
from ..rollouts.difficulty import Difficulty
from ..rollouts.distillation import Distillation, Teacher, reverse_kl
from ..rollouts.replay import ReplayBuffer, fill_from_replay, mark, replace_without_signal
from ..rollouts.rollout import Group, Rollout, in_batch_order, rollouts_of
from ..rollouts.runner import RolloutRunner, Row
from ..rollouts.scoring import Metrics, Scorer, Signal
from .frozen import FrozenPass
from .phases import PhaseClock
from .processes import Processes
from .server_rollouts import ServerRollouts


@dataclass(frozen=True)
class StepRollouts:
    """The rollouts of a step.

    batch: this process's rollouts, as the loss needs them. generated: all rollouts made, including filtered ones.
    replayed: those of earlier steps in the batch, without data that the loss does not need. Both are empty outside the
    main process. metrics: those that TRL does not compute. kl: see `kl_of_rollouts` (None without a reference).
    """

    batch: list[Rollout] = field(default_factory=list)
    generated: list[Rollout] = field(default_factory=list)
    replayed: list[Rollout] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)
    kl: float | None = None


@dataclass(frozen=True)
class StepRequest:
    """The input of the pipeline for one step.

    rows: this process's rows, each prompt repeated once for each rollout of its group. step: optimiser steps so far,
    which is the policy's version. reference: whether reference log-probs are needed. fresh: ignore rollouts made ahead.
    """

    rows: Sequence[Row]
    step: int
    reference: bool
    fresh: bool = False


@dataclass(frozen=True)
class RolloutOptions:
    """How rollouts are made and scored.

    advantages: a method of `rollouts.advantages`. min_group_std: groups whose returns differ by less have no signal.
    signal: whether these are the whole returns, or those of task and environment. mask_truncated: leave rollouts that a
    limit cut out of the loss. dynamic_rounds: the most rounds of DAPO's dynamic sampling (0: off). placement: where
    rollouts run with several processes; the result is the same. servers: for agents whose policy runs on servers.
    weighting: corrects the difference between sampler and trainer. teacher: scores rollouts for `distillation`.
    """

    advantages: AdvantageMethod = field(default_factory=lambda: advantage_method("group"))
    min_group_std: float = 0.0
    signal: Signal = "reward"
    dynamic_rounds: int = 0
    mask_truncated: bool = False
    placement: Literal["auto", "main", "sharded"] = "auto"
    servers: RolloutsConfig = field(default_factory=RolloutsConfig)
    weighting: Weighting = field(default_factory=Weighting)
    teacher: Teacher | None = None
    distillation: Distillation | None = None


@dataclass(eq=False)
class RolloutPipeline:
    """The stages with their parts.

    rows: all rows of the training, from which dynamic sampling draws others. replay: selective sample replay, instead
    of dynamic sampling. difficulty: draws the prompts instead of the data loader. The scorer decides which groups to
    filter out.
    """

    policy: PreparedModel
    runner: RolloutRunner
    frozen: FrozenPass
    scorer: Scorer
    processes: Processes
    phases: PhaseClock
    rows: Sequence[Row]
    options: RolloutOptions
    replay: ReplayBuffer | None = None
    seed: int = 0
    difficulty: Difficulty | None = None

    def __post_init__(self) -> None:
        self.rounds = Arithmetic.of(self.policy.model) is not None
        """Whether sampler and trainer round differently, so that the KL needs the trainer's log-probs."""
        self.servers: ServerRollouts | None = None
        """Makes the rollouts of all processes, on the main one."""
        agent = self.runner.agent
        self.on_servers = isinstance(agent, RemoteAgent)
        if isinstance(agent, RemoteAgent) and self.processes.main:
            options = self.options
            self.servers = ServerRollouts(
                agent, self.runner, options.servers, options.weighting, lambda step: seed_of(self.seed, step, 0)
            )

    def plan(self, step: int, rows: Sequence[Row]) -> None:
        """Let servers begin with the rows of a later step (each prompt repeated for each rollout)."""
        if self.on_servers:
            drawn = self.processes.gather(list(self._drawn(step, rows)))
            if self.servers is not None:
                self.servers.ahead.plan(step, drawn[:: self.scorer.group_size])

    def _drawn(self, step: int, rows: Sequence[Row]) -> Sequence[Row]:
        """Return this process's rows of a step: those of the data loader, or as many drawn by difficulty."""
        if self.difficulty is None:
            return rows
        size = self.scorer.group_size
        drawn = self.processes.broadcast(self.difficulty.draw(len(rows) * self.processes.number // size, step))
        return self.processes.share([self.rows[i] for i in drawn for _ in range(size)], len(rows))

    def train(self, request: StepRequest) -> StepRollouts:
        """Return the rollouts of a training step."""
        request = replace(request, rows=self._drawn(request.step, request.rows))
        groups, metrics = self.collect(request)
        if self.options.dynamic_rounds:
            groups, generated = self.resample(groups, request)
            metrics |= self.scorer.metrics(rollouts_of(generated))
        else:
            generated = groups
        if not self.processes.main:
            return self._shared([], [], {}, request)
        filtered = sum(not g.signal for g in generated) / max(len(generated), 1)
        filters = self.replay is not None or self.options.dynamic_rounds > 0
        if filters:
            # Without a signal, advantages would act as amplified noise.
            groups, generated = ([g if g.signal else g.without_gradient() for g in s] for s in (groups, generated))
        batch = rollouts_of(groups) if self.replay is None else fill_from_replay(groups, self.replay, request.step)
        metrics = {
            **metrics,
            **({} if self.servers is None else self.servers.take_times()),
            metric.FILTERING_RATE: filtered,
            metric.REPLAY_SHARE: sum(r.replayed for r in batch) / max(len(batch), 1),
            metric.EFFECTIVE_BATCH: float(np.mean([bool(np.any(r.advantages)) for r in batch])),
        }
        if self.options.teacher is not None:
            metrics[metric.TEACHER_KL] = reverse_kl(rollouts_of(generated))
        if self.difficulty is not None:
            metrics |= self.difficulty.after(request.step, rollouts_of(generated))
        marked = mark(generated, batch, filters)
        if self.rounds and request.reference:
            left = [i for i, r in enumerate(marked) if r.selected != "trained" and r.trained_logprobs is None]
            with self.phases("logprobs"), inference(self.policy.model):
                for i, rollout in zip(left, self.frozen.trained([marked[i] for i in left]), strict=True):
                    marked[i] = rollout
        return self._shared(batch, marked, metrics, request)

    def evaluate(self, request: StepRequest) -> StepRollouts:
        """Return scored, unfiltered rollouts for measuring a loss."""
        groups, metrics = self.collect(replace(request, fresh=True))
        return self._shared(rollouts_of(groups), rollouts_of(groups), metrics, request)

    def collect(self, request: StepRequest, round_: int = 0) -> tuple[list[Group], Metrics]:
        """Make groups with everything that the loss needs: all processes' groups on the main one, none elsewhere.

        round_: numbers several collections of one step, each of which samples differently.
        """
        local = self.rollouts(request, round_)
        measured: Metrics = {}
        if self.on_servers:
            while (found := self._corrected(local, request.step)) is None:
                local = self.rollouts(request, round_)
            local, measured = found
        local = self.complete(local, request.reference)
        gathered = self.processes.gather(local)
        if not self.processes.main:
            return [], {}
        if self.options.mask_truncated:
            gathered = [replace(r, masked=r.trajectory is not None and r.trajectory.cut) for r in gathered]
        with self.phases("reward"):
            groups, metrics = self.scorer.score(in_batch_order(gathered), request.step)
        return groups, {**metrics, **measured}

    def rollouts(self, request: StepRequest, round_: int = 0) -> list[Rollout]:
        """Return this process's share of the rollouts."""
        size, rows = self.scorer.group_size, list(request.rows)
        processes = self.processes
        seed = seed_of(self.seed, request.step, round_)
        if self.on_servers or (processes.number > 1 and (self.options.placement == "main" or len(rows) % size)):
            all_rows = processes.gather(rows)[::size]
            ahead = round_ == 0 and not request.fresh
            generated = processes.on_main(
                lambda: (
                    self._run(all_rows, 0, seed, request.step)
                    if self.servers is None
                    else self._from_servers(self.servers, all_rows, seed, request.step, ahead)
                )
            )
            return processes.share(processes.broadcast(generated or []), len(rows))
        return self._run(rows[::size], processes.index * len(rows[::size]), seed, request.step)

    def _from_servers(
        self, servers: ServerRollouts, rows: Sequence[Row], seed: int, step: int, ahead: bool
    ) -> list[Rollout]:
        servers.begin(step)
        with self.phases("generate"):
            rollouts = servers.take(step) if ahead else None
        if rollouts is None:
            with servers.waiting():
                rollouts = self._run(rows, 0, seed, step)
        for spans in (servers.spans, servers.agent.pool.spans):
            self.phases.spans.extend(spans.take())
        return rollouts

    def _corrected(self, local: Sequence[Rollout], step: int) -> tuple[list[Rollout], Metrics] | None:
        """Return this process's rollouts after `ServerRollouts.correct` on those of all processes."""
        with self.phases("logprobs"), inference(self.policy.model):
            present = self.frozen.behaviour([replace(r, logprobs=None) for r in local])
        present = self.processes.gather(present)
        sampled = self.processes.gather(list(local))
        servers = self.servers
        found = self.processes.broadcast(
            self.processes.on_main(lambda: None if servers is None else servers.correct(sampled, present, step))
        )
        return None if found is None else (self.processes.share(found[0], len(local)), found[1])

    def complete(self, rollouts: Sequence[Rollout], reference: bool) -> list[Rollout]:
        """Add log-probs of the acting policy if the environment gave none, and reference log-probs and embeddings if
        they are needed."""
        done = list(rollouts)
        with self.phases("logprobs"), inference(self.policy.model):
            if any(r.logprobs is None for r in done):
                done = self.frozen.behaviour(done)
            if reference or self.scorer.needs_embeddings:
                done = self.frozen.reference(done, embeddings=self.scorer.needs_embeddings)
            if self.options.teacher is not None:
                done = self.options.teacher(done)
            if self.rounds and reference and self.processes.number > 1:  # the trained pass is spread over processes
                done = self.frozen.trained(done)
        return done

    def resample(self, groups: list[Group], request: StepRequest) -> tuple[list[Group], list[Group]]:
        """Dynamic sampling (DAPO, arXiv 2503.14476): replace groups without signal by groups of other prompts.

        Returns the batch's groups and all that were made. Equal shares per process may make too many groups. The
        surplus is dropped, so that the batch does not depend on the number of processes.
        """
        kept = list(groups)
        for round_ in range(1, self.options.dynamic_rounds + 1):
            missing = self.processes.broadcast(sum(not g.signal for g in groups))
            if missing == 0:
                break
            per_process = -(-missing // self.processes.number)
            drawn = np.random.default_rng([self.seed, request.step, round_])  # the same on every process
            others: list[int] = drawn.integers(0, len(self.rows), (per_process * self.processes.number,)).tolist()
            rows = [
                self.rows[i] for i in self.processes.share(others, per_process) for _ in range(self.scorer.group_size)
            ]
            extra, _ = self.collect(replace(request, rows=rows), round_)
            kept += extra[:missing]
            groups = replace_without_signal(groups, extra[:missing])
        return groups, kept

    def _run(self, rows: Sequence[Row], first: int, seed: int, step: int) -> list[Rollout]:
        with acting(self.policy.model):
            rollouts = self.runner.run(rows, first=first, seed=seed, step=step + 1, policy_version=step)
        spent = self.runner.timings
        self.phases.add("generate", spent.generate)
        self.phases.add("environment", spent.environment)
        self.phases.spans.extend(spent.spans.take())
        return rollouts

    def _shared(
        self, batch: list[Rollout], generated: list[Rollout], metrics: Metrics, request: StepRequest
    ) -> StepRollouts:
        """Return the step's rollouts, with each process's slice of the batch."""
        replayed = [r for r in batch if r.replayed]
        kl = self.processes.broadcast(kl_of_rollouts(generated)) if request.reference else None
        if self.processes.number > 1:
            gathered = self.processes.broadcast([r.for_loss() for r in batch])
            batch = self.processes.share(gathered, len(request.rows))
        return StepRollouts(batch, generated, replayed, metrics, kl)


def kl_of_rollouts(rollouts: Sequence[Rollout]) -> float:
    """Return KL(π ‖ π_ref) in nats per token: the mean of log π − log π_ref (k1) over the agent's tokens.

    This value is logged, and beta follows it, instead of TRL's k3 over the batch. The batch is a selection (groups with
    signal, replayed rows) in which the policy is least typical. And once a policy is confident, most of k3 comes from
    tokens that are hardly ever sampled: it reads low until one is sampled, and then shows only that token. (Schulman,
    "Approximating KL divergence", 2020.)
    """
    total, count = 0.0, 0
    for rollout in rollouts:
        if (ratios := rollout.log_ratios) is not None:
            total += float(ratios.sum(dtype=np.float64))
            count += len(ratios)
    return total / max(count, 1)
