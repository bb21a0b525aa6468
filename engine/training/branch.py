"""Continuations of a recorded rollout: replay its turns up to a step, then let the policy act.

Each continuation is recorded when it ends, like a rollout of an evaluation. `engine.evaluation.branch` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...configs.schema import RunConfig
from ...configs.sections import RewardsConfig
from ...configs.sections.rewards import COMPONENTS
from ...envs.agent import AgentTurn
from ...envs.base import Env, env_name
from ...envs.content import text_of
from ...envs.multi_turn import MultiTurnEnv
from ...envs.seeds import seed_of, task_id
from ...envs.trajectory import StopReason, Trajectory
from ...rewards.orchestrator import RewardOrchestrator
from ..agents.chat import ChatBridge
from ..agents.session import TransformersSession
from ..agents.transformers_agent import TransformersAgent
from ..evaluation.branch import DIFFERS, PLACE, REPLAY, SIDE
from ..evaluation.results import EvaluationError
from ..policy.prepared import acting
from ..record.step_recorder import StepRecorder
from ..rollouts.dataset import load_rows
from ..rollouts.judging import Judge, make_judge, special_texts
from ..rollouts.rollout import Rollout
from ..rollouts.runner import RolloutRunner, Row, prepares
from ..rollouts.scoring import Scorer
from ..rollouts.trial import rollouts_from_trial
from ..runs.control.requests import ControlChannel
from ..runs.read.reader import RunReader
from ..runs.types import TokenArrays, TrajectoryRecord
from ..runs.write.writer import RecordWriter
from .acting import load_agent
from .evaluate import stop_asked


@dataclass(frozen=True)
class RecordedTurn:
    """The agent's tokens of a turn to repeat, int [n]. The policy completes an unfinished one."""

    tokens: np.ndarray
    stop_reason: str = "stop"
    unfinished: bool = False


class ReplaySession(TransformersSession):
    """Begins each row with the turns of `recorded`, of which only the last may be unfinished."""

    def __init__(self, *arguments: Any, recorded: Sequence[RecordedTurn]) -> None:
        super().__init__(*arguments)
        self.recorded = recorded

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        turns: dict[int, AgentTurn] = {}
        started = list[int]()
        for row in rows:
            number = int(self.history.turns[row])
            if number >= len(self.recorded) or row in self._refused or self._exhausted[row]:
                continue
            turn, start = self.recorded[number], int(self.history.length[row])
            self.history.append_turn_of(row, turn.tokens.tolist())
            if turn.unfinished:
                started.append(row)
                self.history.turns[row] = number
            else:
                span = start, int(self.history.length[row])
                turns[row] = AgentTurn(self.chat.decode(turn.tokens.tolist()), span, turn.stop_reason)
        free = [row for row in rows if row not in turns and row not in started]
        if free:
            turns |= zip(free, super().act(free), strict=True)
        if started:
            turns |= zip(started, self._complete(started, self.recorded[-1].tokens), strict=True)
        return [turns[row] for row in rows]

    def _complete(self, rows: list[int], tokens: np.ndarray) -> list[AgentTurn]:
        """Continue turns that begin with these tokens, within the limit of a turn."""
        settings = self.settings
        self.settings = replace(settings, max_turn_tokens=max(1, settings.max_turn_tokens - len(tokens)))
        try:
            rest = super().act(rows)
        finally:
            self.settings = settings
        completed = []
        for row, turn in zip(rows, rest, strict=True):
            start, end = turn.token_span[0] - len(tokens), turn.token_span[1]
            text = self.chat.decode(self.history.ids[row, start:end].tolist())
            completed.append(replace(turn, text=text, token_span=(start, end)))
        return completed


def run_branch(
    config: RunConfig, run_dir: Path, writer: RecordWriter, control: ControlChannel | None = None, start: object = None
) -> bool:
    """Sample the continuations of `config.evaluation.branch`. Returns False if stopped early.

    Raises errors whose message is one sentence.
    """
    spec = config.evaluation
    source = spec.branch
    recorder = StepRecorder(writer, tokens=config.logging.record_tokens)
    recorder.event("phase", "loading the model and the data", name="loading", step=spec.step)
    with RunReader(source.run) as reader:
        record, tokens = reader.bodies.trajectory(source.rollout), reader.bodies.tokens(source.rollout)
    with RunReader(run_dir) as reader:
        rows = reader.rollouts.page(limit=max(1, reader.rollouts.total()))
    torch.manual_seed(config.seed)
    agent = load_agent(config, run_dir, trainable=False)
    assert isinstance(agent, TransformersAgent)
    tokenizer = agent.tokenizer
    runner = RolloutRunner(agent, tokenizer, spec.samples, prepare=prepares(config.environment, writer))
    row = _task(record, load_rows(config.environment, record.split, config.seed, tokenizer, config.data), runner)
    recorder.vocabulary(tokenizer)
    turns = turns_of(record.trajectory, tokens, agent.chat)
    before = turns[: source.step - 1]
    if source.token is not None:
        before = [*before, _truncated(turns[source.step - 1], source.token, known=tokens is not None)]
    continuations = Continuations(
        recorder,
        runner,
        make_judge(config.environment, [row], special_texts(tokenizer)),
        Scorer(spec.samples, RewardOrchestrator(config=_repeatable(config.rewards), seed=config.seed)),
        row,
        record.trajectory,
        spec.step,
        control,
        {(str(r.extra.get(SIDE)), int(r.extra.get(PLACE, 0))) for r in rows},
    )
    try:
        with acting(agent.model), agent.settings(temperature=spec.temperature):
            for side, recorded in (("before", before), ("after", turns[: source.step])):
                continuations.sample(side, recorded, seed_of(config.seed, "branch", source.rollout, source.step, side))
    except Stopped:
        return False
    return True


def _repeatable(config: RewardsConfig) -> RewardsConfig:
    """Keep only rewards that depend on the rollout itself, not on its batch or the state of training."""
    extra = {
        name: component.model_copy(update={"normalization": "none"})
        for name, component in config.extra_components.items()
        if not component.embeddings
    }
    raw = config.normalization.model_copy(update=dict.fromkeys((*COMPONENTS, "functions"), "none"))
    changed = {"w_curiosity": 0.0, "w_coherence": 0.0, "extra_components": extra, "normalization": raw}
    return config.model_copy(update=changed)


def _task(record: TrajectoryRecord, rows: Sequence[Row], runner: RolloutRunner) -> Row:
    """Return the task of a recorded rollout. Raises EvaluationError."""
    original = record.trajectory
    found: list[Row] = []
    for row in rows:
        env = runner.environment(row)
        name = env_name(env) if isinstance(env, Env) else type(env).__name__
        if task_id(name, row.task_data) == original.prompt_id and row.key not in {r.key for r in found}:
            found.append(row)
    if not found:
        raise EvaluationError(
            f"the task of rollout {original.id} is not among the {len(rows)} {record.split} tasks that the run's "
            "environment and data now provide, so it cannot be replayed"
        )
    for row in found[1:] and found:  # environments with other options phrase the same task differently
        env = runner.environment(row)
        if isinstance(env, MultiTurnEnv):
            messages, _ = env.opening(row.task_data, runner.agent)
            if original.prompt == "\n\n".join(text_of(m.get("content", "")) for m in messages):
                return row
    return found[0]


def turns_of(trajectory: Trajectory, tokens: TokenArrays | None, chat: ChatBridge) -> list[RecordedTurn]:
    """Return the agent's turns: the recorded tokens, or the tokenised texts if no tokens were recorded."""
    turns = []
    for number, step in enumerate(trajectory.steps):
        if tokens is not None:
            chosen = np.asarray(tokens.agent_mask) & (np.asarray(tokens.turn) == number)
            written = np.asarray(tokens.token_ids)[chosen]
        else:
            end = [chat.end_of_turn] if chat.end_of_turn is not None and step.stop_reason == "stop" else []
            written = np.array([*chat.encode(step.text), *end])
        turns.append(RecordedTurn(written, step.stop_reason))
    return turns


def _truncated(turn: RecordedTurn, count: int, *, known: bool) -> RecordedTurn:
    """Cut a turn to its first tokens, for the policy to complete. Raises EvaluationError."""
    if not known:
        raise EvaluationError("the run recorded no tokens (logging.record_tokens): branch at a whole step")
    available = len(turn.tokens) - (turn.stop_reason == "stop")
    if count > available:
        raise EvaluationError(f"the step has {available} tokens before its end, and no token {count} to branch after")
    return RecordedTurn(turn.tokens[:count], unfinished=True)


class Stopped(Exception):
    """The user requested a stop."""


@dataclass
class Continuations:
    """Samples and records the continuations of one rollout. step: optimiser steps of the policy. done: side and number
    of the recorded ones. told: whether a difference from the record was reported."""

    recorder: StepRecorder
    runner: RolloutRunner
    judge: Judge | None
    scorer: Scorer
    row: Row
    original: Trajectory
    step: int
    control: ControlChannel | None
    done: set[tuple[str, int]]
    told: bool = False

    def sample(self, side: str, recorded: Sequence[RecordedTurn], seed: int) -> None:
        """Repeat these turns in a new environment for each continuation, then let the policy continue."""
        agent, env = self.runner.agent, self.runner.environment(self.row)
        assert isinstance(agent, TransformersAgent)
        finished_turns = sum(not turn.unfinished for turn in recorded)
        sessions: list[ReplaySession] = []

        def open_session(*arguments: object) -> ReplaySession:
            sessions.append(ReplaySession(*arguments, recorded=recorded))
            return sessions[-1]

        def turned(trajectory: Trajectory) -> None:
            """Record a continuation that ended. If the environment judges several together, wait for the last one."""
            if self.control is not None and stop_asked(self.control, "a branch"):
                raise Stopped
            assert isinstance(env, MultiTurnEnv)
            steps = len(trajectory.steps)
            ended = trajectory.stop_reason != StopReason.MAX_TURNS or steps >= env.max_turns
            if steps and ended and type(env).finish is Env.finish:
                tokens = sessions[-1].tokens(trajectory.rollout)
                (replayed,) = rollouts_from_trial({"trajectories": [trajectory], "tokens": [tokens]}, [0], 1, self.step)
                self.keep(side, finished_turns, [replace(replayed, index=trajectory.rollout)])

        agent.sessions = open_session
        if isinstance(env, MultiTurnEnv):
            env.on_turn = turned
        self.keep(
            side, finished_turns, self.runner.run([self.row], seed=seed, step=self.step, policy_version=self.step)
        )

    def keep(self, side: str, finished_turns: int, rollouts: Sequence[Rollout]) -> None:
        """Score and record the rollouts not yet recorded. finished_turns: recorded turns that they repeat."""
        new = [r for r in rollouts if (side, r.index + 1) not in self.done]
        if any(r.trajectory is None for r in new):
            raise EvaluationError(f"{self.row.env_class_path} returns no trajectories: its rollouts cannot be replayed")
        if not new:
            return
        if self.judge is not None:
            new = self.judge(new, [self.row] * len(new), self.step)
        scored, _ = self.scorer.rewards(new, self.step)
        self.recorder.trajectories(self.step, [self._marked(r, side, finished_turns) for r in scored], "eval")
        self.recorder.writer.flush(timeout=60.0)
        self.done |= {(side, r.index + 1) for r in new}
        self.recorder.writer.progress("continuations", len(self.done), 2 * self.runner.num_rollouts)

    def _marked(self, rollout: Rollout, side: str, finished_turns: int) -> Rollout:
        trajectory = rollout.trajectory
        assert trajectory is not None
        found = first_difference(self.original, trajectory, finished_turns)
        if found is not None and not self.told:
            turn, recorded, now = found
            where = f"the observation of turn {turn}" if turn else "the prompt"
            message = f"the environment is not deterministic: {where} differs from the record"
            self.recorder.event("phase", message, name=REPLAY, turn=turn, recorded=recorded, now=now)
            self.told = True
        marks = {SIDE: side, PLACE: rollout.index + 1} | ({} if found is None else {DIFFERS: found[0]})
        marked = replace(trajectory, group=side, id=f"{side}-{rollout.index + 1}", extra={**trajectory.extra, **marks})
        return replace(rollout, trajectory=marked)


def first_difference(recorded: Trajectory, now: Trajectory, turns: int) -> tuple[int, str, str] | None:
    """Return the first turn whose observation differs, from 1 (0: the prompt), with the recorded text and the new one.

    turns: how many were repeated. A rollout that ended earlier or later than the recorded one also differs.
    """
    if recorded.prompt != now.prompt:
        return 0, recorded.prompt, now.prompt
    for number in range(turns):
        old = recorded.steps[number]
        if number >= len(now.steps):
            return number, old.observation, f"(the rollout ended: {now.error or now.stop_reason})"
        new = now.steps[number]
        if (old.observation, old.error) != (new.observation, new.error):
            return number + 1, old.observation or old.error or "", new.observation or new.error or ""
    if turns == len(recorded.steps) < len(now.steps):
        return turns, f"(the rollout ended: {recorded.stop_reason})", "(the rollout continued)"
    return None
