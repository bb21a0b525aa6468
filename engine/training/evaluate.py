"""`--mode eval`: rollouts of a policy on held-out tasks, recorded like those of training.

Tasks run in portions. A portion is recorded when its rollouts are complete, so a killed evaluation continues with the
missing tasks. A task's seed follows from its number, so its rollouts do not depend on the other tasks of its portion.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import cast

import torch

from ...configs import metric_names as metric
from ...configs.errors import count
from ...configs.schema import RunConfig
from ...configs.sections.data import holds_tasks
from ...rewards.orchestrator import RewardOrchestrator
from ..agents.chat_agent import ChatAgent
from ..agents.endpoint import EndpointAgent
from ..evaluation.results import TASK, finished_tasks, read_evaluation
from ..policy.prepared import acting
from ..record.step_recorder import StepRecorder
from ..rollouts.dataset import load_rows
from ..rollouts.judging import make_judge, special_texts
from ..rollouts.prompts import check_tasks, fitting
from ..rollouts.rollout import Rollout
from ..rollouts.runner import DataError, RolloutRunner, prepares
from ..rollouts.scoring import Scorer
from ..runs.control.requests import ControlChannel
from ..runs.write.writer import RecordWriter
from .acting import load_agent

PORTION_ROLLOUTS = 64
"""The most rollouts in one portion, unless a single task has more."""


def run_eval(
    config: RunConfig, run_dir: Path, writer: RecordWriter, control: ControlChannel | None = None, start: object = None
) -> bool:
    """Evaluate `config.model` on the held-out tasks. Returns False if stopped early.

    Raises errors whose message is one sentence (ModelLoadError, DataError, …).
    """
    spec = config.evaluation
    recorder = StepRecorder(writer, tokens=config.logging.record_tokens and not config.model.is_endpoint)
    recorder.event("phase", "loading the model and the data", name="loading", step=spec.step)
    torch.manual_seed(config.seed)
    agent = EndpointAgent(config) if config.model.is_endpoint else load_agent(config, run_dir, trainable=False)
    tokenizer = None if isinstance(agent, EndpointAgent) else agent.chat.tokenizer
    rows = load_rows(config.environment, "eval", config.seed, tokenizer, config.data)
    runner = RolloutRunner(agent, tokenizer, spec.samples, prepare=prepares(config.environment, writer))
    prompts = config.data.source is not None and not holds_tasks(config.data.source)
    kept = rows
    if prompts and not isinstance(agent, EndpointAgent):
        kept = fitting(rows, agent, runner.environment, config.training, config.data.long_prompts)
    # Another policy's tokenizer may drop other rows, and tasks are compared by number.
    numbers = {id(row): number for number, row in enumerate(rows)}
    tasks = [numbers[id(row)] for row in kept]
    if not rows:
        raise DataError("there are no held-out tasks: set environment.eval_tasks, or name a file in data.eval_source")
    check_tasks(kept, runner.environment, cast(ChatAgent, agent), config.training.max_trajectory_tokens)
    runner.judge = make_judge(config.environment, rows, special_texts(tokenizer) if tokenizer else ())
    runner.on_progress = lambda ended, total: writer.progress("evaluation", done + ended, len(tasks) * spec.samples)
    # Curiosity and coherence depend on the state of training. Task, reward functions and penalties do not.
    rewards = config.rewards.model_copy(update={"w_curiosity": 0.0, "w_coherence": 0.0})
    scorer = Scorer(spec.samples, RewardOrchestrator(config=rewards, seed=config.seed))
    if tokenizer is not None:
        recorder.vocabulary(tokenizer)
    finished = finished_tasks(run_dir, spec.samples)
    done = len(finished) * spec.samples
    writer.status("running", step=spec.step, total_steps=spec.step)
    with contextlib.ExitStack() as stack:
        if not isinstance(agent, EndpointAgent):
            stack.enter_context(acting(agent.model))
            stack.enter_context(agent.settings(temperature=spec.temperature))
        for portion in portions([task for task in tasks if task not in finished], spec.samples):
            if control is not None and stop_asked(control, "an evaluation"):
                return False
            rollouts = runner.run(
                [rows[task] for task in portion],
                first=portion[0],
                seed=config.seed,
                step=spec.step,
                split="eval",
                policy_version=spec.step,
            )
            scored, _ = scorer.rewards([_numbered(r) for r in rollouts], spec.step)
            recorder.counted = not isinstance(agent, EndpointAgent) or agent.counted
            recorder.trajectories(spec.step, scored, "eval")
            writer.flush(timeout=60.0)
            done += len(rollouts)
    _record_result(run_dir, recorder)
    return True


def portions(tasks: Sequence[int], samples: int) -> Iterator[Sequence[int]]:
    """Yield consecutive task numbers: at most `PORTION_ROLLOUTS` rollouts, at least one task."""
    size = max(1, PORTION_ROLLOUTS // samples)
    for _, run in groupby(enumerate(tasks), lambda pair: pair[1] - pair[0]):
        numbers = [task for _, task in run]
        yield from (numbers[i : i + size] for i in range(0, len(numbers), size))


def stop_asked(control: ControlChannel, subject: str) -> bool:
    """Answer requests to a process that can only be stopped. Return whether a request asks for a stop."""
    requests = control.poll()
    for request in requests:
        outcome = "stopping" if request.command == "stop" else f"{subject} can only be stopped"
        control.acknowledge(request, outcome)
    return any(request.command == "stop" for request in requests)


def _numbered(rollout: Rollout) -> Rollout:
    """Add the task's number, by which evaluations are compared."""
    if (trajectory := rollout.trajectory) is None:
        return rollout
    return replace(rollout, trajectory=replace(trajectory, extra={**trajectory.extra, TASK: rollout.group}))


def _record_result(run_dir: Path, recorder: StepRecorder) -> None:
    """Record the headline of the evaluation in the same form as evaluations during training."""
    result = read_evaluation(run_dir)
    step, greedy = result.spec.step, result.spec.temperature == 0
    how, reward = "greedy" if greedy else "sampled", result.reward
    if (success := result.success) is not None:
        facts = {how: success.estimate}
        text = f"success {success.estimate:.0%} ({success.low:.0%} to {success.high:.0%})"
        name = metric.SUCCESS_GREEDY if greedy else metric.SUCCESS_SAMPLED
        values = {name: success.estimate, metric.SUCCESS_LOW: success.low, metric.SUCCESS_HIGH: success.high}
    else:
        facts = {f"reward_{how}": reward.estimate}
        text = f"reward {reward.estimate:.3f}"
        text += f" ({reward.low:.3f} to {reward.high:.3f})" if len(result.tasks) > 1 else ""
        values = {metric.REWARD_GREEDY if greedy else metric.REWARD_SAMPLED: reward.estimate}
    recorder.values(step, {**values, metric.REWARD_MEAN: reward.estimate})
    samples = f", {result.spec.samples} samples each" if result.spec.samples > 1 else ""
    text += f" on {count(len(result.tasks), 'task')}{samples}"
    recorder.event("eval", text, step=step, split="eval", **facts)
