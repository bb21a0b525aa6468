"""Rollouts from servers: publish the policy, optionally make rollouts a step ahead, and correct them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from ...configs import metric_names as metric
from ...configs.sections import RolloutsConfig
from ...envs.spans import Spans
from ..agents.remote.adapters import Adapter
from ..agents.remote.agent import RemoteAgent
from ..rollouts.ahead import Made, RolloutsAhead
from ..rollouts.correction import Weighting, corrected, log_ratios
from ..rollouts.rollout import Rollout
from ..rollouts.runner import RolloutRunner, Row
from ..rollouts.scoring import Metrics
from ..rollouts.server_evidence import ServerEvidence, by_server
from . import TrainingError


class ServerRollouts:
    """The source of a pipeline's rollouts when servers write them. seed(step): the seed of a step's rollouts.

    Idle: the time that the trainer waits for rollouts, and for servers to load a version. Dropped: rollouts that were
    too old, or whose batch contains text from a server that left.
    """

    def __init__(
        self,
        agent: RemoteAgent,
        runner: RolloutRunner,
        options: RolloutsConfig,
        weighting: Weighting,
        seed: Callable[[int], int],
    ) -> None:
        self.agent = agent
        self.runner = runner
        self.options = options
        self.weighting = weighting
        self.ahead: RolloutsAhead[Row, Adapter] = RolloutsAhead(
            self._make, options.max_staleness, options.ahead, agent.holding
        )
        self._seed = seed
        self._evidence = ServerEvidence(options.max_mismatch, 3 * agent.publisher.tolerance)
        self._suspected: set[str] = set()
        self._dismissed: set[str] = set()
        self._idle_runners: list[RolloutRunner] = []
        self._times = {metric.TRAINER_IDLE: 0.0, metric.ROLLOUTS_WAIT: 0.0, metric.ROLLOUTS_DROPPED: 0.0}
        self.spans = Spans()
        """When the trainer waited, when rollouts waited for it, and when rollouts of later steps were made."""

    def begin(self, step: int) -> None:
        """Publish the policy after `step` optimiser steps, and begin rollouts of later steps."""
        with self.waiting():
            version = self.agent.publish(step)
        self.ahead.version(step, version)

    def take(self, step: int) -> list[Rollout] | None:
        """Return the rollouts made ahead for this step, or None if there are none or they are too old."""
        taken = self.ahead.take(step)
        if taken is None:
            return None
        self._times[metric.TRAINER_IDLE] += taken.idle_s
        self._times[metric.ROLLOUTS_WAIT] += taken.wait_s
        requested = time.perf_counter() - taken.idle_s
        self.spans.add("idle", requested)
        self.spans.add("queue", requested - taken.wait_s, requested)
        if any(step - r.policy_version > self.options.max_staleness for r in taken.rollouts):
            self._times[metric.ROLLOUTS_DROPPED] += len(taken.rollouts)
            return None
        return taken.rollouts

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in the block as waiting for servers."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._times[metric.TRAINER_IDLE] += time.perf_counter() - started
            self.spans.add("idle", started)

    def correct(
        self, sampled: Sequence[Rollout], present: Sequence[Rollout], step: int
    ) -> tuple[list[Rollout], Metrics] | None:
        """Return rollouts with their weights (`correction.corrected`), and how far apart the policies are. Returns None
        if a server that wrote some of them has left the pool (`ServerEvidence`): make them again.

        sampled: from the environments. present: with log-probs of the current policy. Raises TrainingError.
        """
        sampled = [now if rollout.logprobs is None else rollout for rollout, now in zip(sampled, present, strict=True)]
        for server, reason in self._evidence.add(sampled, present, step).items():
            if server in self._suspected:
                continue
            self._suspected.add(server)
            if self.agent.pool.leave(server, reason):
                self._dismissed.add(server)
        if any(turn.server in self._dismissed for r in sampled if r.trajectory for turn in r.trajectory.steps):
            self._times[metric.ROLLOUTS_DROPPED] += len(sampled)
            return None
        ratios = log_ratios(sampled, present)
        fresh = [found for r, found in zip(sampled, ratios, strict=True) if r.policy_version == step]
        gaps = np.abs(np.concatenate([np.zeros(0), *fresh]))
        if len(gaps) and gaps.mean() > self.options.max_mismatch:
            raise TrainingError(
                f"the log-probs of the servers differ from the trainer's by {gaps.mean():.2g} nats per token on "
                f"average, and rollouts.max_mismatch allows {self.options.max_mismatch:g}: serve the model in the "
                "precision of model.compute, and run `grpo-tui doctor --server URL`"
            )
        self.agent.pool.measured(by_server(sampled, present, step))
        every = np.abs(np.concatenate([np.zeros(0), *ratios]))
        metrics: Metrics = {
            metric.STALENESS: float(np.mean([step - r.policy_version for r in sampled])) if sampled else 0.0
        }
        if len(every):
            metrics |= {
                metric.LOGPROB_MISMATCH: float(every.mean()),
                metric.LOGPROB_MISMATCH_P99: float(np.percentile(every, 99)),
                metric.LOGPROB_MISMATCH_MAX: float(every.max()),
                metric.SAMPLER_KL: float(np.mean(np.concatenate([np.expm1(r) - r for r in ratios]))),
                metric.SAMPLER_RATIO: max(abs(float(r.sum())) for r in ratios),
            }
        return corrected(sampled, present, self.weighting), metrics

    def take_times(self) -> Metrics:
        taken, self._times = self._times, dict.fromkeys(self._times, 0.0)
        return dict(taken)

    def _make(self, rows: Sequence[Row], step: int, version: Adapter) -> list[Made]:
        """Begin the groups of these rows on a thread."""
        groups: list[Made] = [Future() for _ in rows]

        def run() -> None:
            runner = self._idle_runners.pop() if self._idle_runners else self.runner.beside()
            try:
                with self.agent.acting_as(version):
                    runner.run(
                        rows,
                        seed=self._seed(step),
                        step=step + 1,
                        policy_version=version.step,
                        on_group=lambda rollouts: groups[rollouts[0].group].set_result(rollouts),
                    )
            except BaseException as problem:  # raised when a step asks for its rollouts
                for group in groups:
                    if not group.done():
                        group.set_exception(problem)
                return
            self.spans.extend(runner.timings.spans.take())
            self._idle_runners.append(runner)

        threading.Thread(target=run, name=f"rollouts of step {step}", daemon=True).start()
        return groups
