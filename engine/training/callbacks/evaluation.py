"""Success on held-out tasks: before the first step, at an interval of steps, and after the last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainerControl, TrainerState

from ....configs import metric_names as metric
from ....configs.errors import count
from ...agents.remote.agent import RemoteAgent
from ...evaluation.statistics import rate_interval
from ...policy.prepared import acting
from ...record.step_recorder import StepRecorder
from ...rollouts.evaluation import EvaluationOutcome, evaluate
from ...rollouts.judging import Judge
from ...rollouts.rollout import Rollout
from ...rollouts.runner import RolloutRunner, Row
from ...runs.types import Phase
from ..processes import Processes
from ..resumable import Resumable
from ..sharding import whole
from .base import Logs, RunCallback
from .progress import StepProgress

GRADED = (
    "the first reward function gives graded scores, so held-out reward is measured instead of success; "
    "environment.success_score sets the lowest score that counts as right"
)


@dataclass(eq=False)
class HeldOutEvaluation(RunCallback):
    """Evaluates `rows` greedily and at temperature 1, a share on every process. Without rows it does nothing.

    every: steps between evaluations (0: only before the first step and after the last). evaluated_at: the last step
    whose evaluation is recorded. observers: called with each recorded evaluation: its step, greedy rollouts, and
    success at temperature 1 if known.
    """

    trainer: Resumable
    runner: RolloutRunner
    recorder: StepRecorder
    progress: StepProgress
    rows: Sequence[Row]
    every: int
    seed: int
    evaluated_at: int = -1
    observers: list[Callable[[int, Sequence[Rollout], float | None], None]] = field(default_factory=list)
    _reported_graded: bool = False

    def on_train_begin(self, args: object, state: TrainerState, *_: object, **kwargs: object) -> None:
        if state.global_step == 0:
            self.evaluate(0)

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        step = state.global_step
        if step >= state.max_steps or (self.every and step % self.every == 0):
            self.evaluate(step)

    def evaluate(self, step: int) -> None:
        """Evaluate the policy of this step once, and record the result."""
        if not self.rows or self.evaluated_at == step:
            return
        self.evaluated_at = step
        self.recorder.event("phase", "evaluating", step=step, name="evaluating")
        started = time.perf_counter()
        accelerator = self.trainer.accelerator
        self.progress.acting = Phase.EVALUATION
        processes, agent = Processes(accelerator), self.runner.agent

        def measured(**sharing: Any) -> list[EvaluationOutcome]:
            results = []
            with acting(accelerator.unwrap_model(self.trainer.model)):
                for temperature, held_out in ((0.0, "greedy"), (1.0, "temperature 1")):
                    self.progress.held_out = f"held-out tasks, {held_out}"
                    settings = {"temperature": temperature, "seed": self.seed, "step": step, **sharing}
                    results.append(evaluate(self.runner, self.rows, **settings))
            return results

        with whole(self.trainer.model):
            if isinstance(agent, RemoteAgent):  # servers write for the main process
                found = processes.on_main(lambda: (agent.publish(step), measured())[1])
            else:
                found = measured(process_index=processes.index, num_processes=processes.number, gather=processes.gather)
        self.progress.acting = Phase.ROLLOUTS
        if accelerator.is_main_process and found:
            greedy, sampled = found
            self._record(step, greedy, sampled, time.perf_counter() - started)

    def _record(self, step: int, greedy: EvaluationOutcome, sampled: EvaluationOutcome, seconds: float) -> None:
        graded = greedy.graded or sampled.graded
        if graded:
            measured = {metric.REWARD_GREEDY: greedy.reward, metric.REWARD_SAMPLED: sampled.reward}
            values = {"reward_greedy": greedy.reward, "reward_sampled": sampled.reward}
            summary = f"held-out reward {greedy.reward:.2f} greedy, {sampled.reward:.2f}"
        else:
            values = {"greedy": greedy.success, "sampled": sampled.success}
            first, second = (rate_interval([float(bool(o)) for o in e.outcomes]) for e in (greedy, sampled))
            rates = [f"{i.estimate:.0%} ({i.low:.0%} to {i.high:.0%})" for i in (first, second)]
            summary = f"held-out success {rates[0]} greedy, {rates[1]}"
            values |= {"greedy_interval": [first.low, first.high], "sampled_interval": [second.low, second.high]}
            measured = {metric.SUCCESS_GREEDY: greedy.success, metric.SUCCESS_SAMPLED: sampled.success}
            measured |= {metric.SUCCESS_LOW: first.low, metric.SUCCESS_HIGH: first.high}
        judge = self.runner.judge
        logged = judge.take_metrics("eval_") if isinstance(judge, Judge) else {}
        self.recorder.values(step, {**measured, **logged, metric.EVALUATE_SECONDS: seconds})
        self.recorder.trajectories(step, greedy.rollouts, "eval")
        for observer in self.observers:
            observer(step, greedy.rollouts, None if graded else sampled.success)
        tasks = f"{summary} at temperature 1 ({count(greedy.n, 'task')})"
        self.recorder.event("eval", tasks, step=step, split="eval", n=greedy.n, **values)
        if graded and not self._reported_graded:
            self._reported_graded = True
            self.recorder.event("note", GRADED, step=step, detector="graded_reward", severity="hint")
