"""One unfinished rollout: its prompt, turns and answers so far, and the resulting trajectory.

Paces are the order in which the rollouts of a trial take their turns: all together, or each at its own pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .agent import AgentSession, AgentTurn, AsyncAgentSession, Message, ShownImage
from .base import Picture, StepResult, Verdict
from .calls import ToolCall, clean_text
from .content import text_of
from .guard import AsyncGuard, Outcome, guarded_map
from .tools import ToolSpec
from .trajectory import PARENT, SHARED, Overlay, PromptMessage, Step, StepContext, StopReason, TokenArrays, Trajectory

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""Called with the number of ended rollouts, and of all."""
OnGroup = Callable[[int, dict[str, Any]], None]
"""Called with the number of a task and the result of its rollouts."""


class Stopwatch(contextlib.AbstractContextManager[None]):
    """`seconds` during which at least one block was open, and the `spans` (`time.perf_counter`) that they add up."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.spans: list[tuple[float, float]] = []
        self._open = 0
        self._began = 0.0

    def __enter__(self) -> None:
        if self._open == 0:
            self._began = time.perf_counter()
        self._open += 1

    def __exit__(self, *error: object) -> None:
        self._open -= 1
        if self._open == 0:
            ended = time.perf_counter()
            self.seconds += ended - self._began
            self.spans.append((self._began, ended))


@dataclass(frozen=True)
class Turns:
    """The turns of a trial's rollouts, up to `max_turns` each.

    answer: the environment's reaction to a turn. If it raises or exceeds `timeout_s`, only that rollout fails. note:
    records the outcome of a turn. observe: gives the last answers of these rows to the agent. workers: threads for slow
    answers. on_end: called with each row that has ended, if rows advance independently; what it returns is called on a
    thread. generating, environment: seconds that the agent and the environment took.
    """

    rollouts: Sequence[RolloutUnderWay]
    answer: Callable[[RolloutUnderWay, AgentTurn], CheckedStep]
    note: Callable[[RolloutUnderWay, AgentTurn, Outcome[CheckedStep]], None]
    observe: Callable[[list[int]], None]
    max_turns: int
    timeout_s: float
    workers: int
    on_progress: OnProgress | None = None
    on_end: Callable[[int], Callable[[], None] | None] | None = None
    generating: Stopwatch = field(default_factory=Stopwatch)
    environment: Stopwatch = field(default_factory=Stopwatch)
    fresh: int | None = None

    def take(self, session: AgentSession) -> None:
        """Play all rollouts to their ends. Exceptions of the agent propagate."""
        if isinstance(session, AsyncAgentSession):
            asyncio.run(self._each_alone(session))
        else:
            self._together(session)

    def _together(self, session: AgentSession) -> None:
        for wave in (False, True):
            rows = [row for row, rollout in enumerate(self.rollouts) if self._later(rollout) is wave]
            while live := [row for row in rows if self._goes_on(self.rollouts[row])]:
                self._advance(session, live)
                self._tell()

    def _advance(self, session: AgentSession, live: list[int]) -> None:
        with self.generating:
            turns = dict(zip(live, session.act(live), strict=True))
            acting = [row for row in live if self._has_acted(self.rollouts[row], turns[row])]
        with self.environment:
            outcomes = guarded_map(
                lambda row: self.answer(self.rollouts[row], turns[row]),
                acting,
                timeout_s=self.timeout_s,
                workers=self.workers,
            )
            for row, outcome in zip(acting, outcomes, strict=True):
                self.note(self.rollouts[row], turns[row], outcome)
        with self.generating:
            going_on = [row for row in acting if self._goes_on(self.rollouts[row])]
            if going_on:
                self.observe(going_on)

    async def _each_alone(self, session: AsyncAgentSession) -> None:
        """Advance each rollout once its own turn and its own tool are done. Time in which any of them waits for a turn
        counts as generating."""
        guard = AsyncGuard(timeout_s=self.timeout_s, workers=self.workers)

        async def play(row: int) -> None:
            rollout = self.rollouts[row]
            if self._later(rollout):
                first = row - rollout.number
                await asyncio.gather(*(tasks[r] for r in range(first, first + (self.fresh or 0)) if r in tasks))
            while self._goes_on(rollout):
                if rollout.steps:
                    self.observe([row])
                with self.generating:
                    turn = await session.act_alone(row)
                if self._has_acted(rollout, turn):
                    self.note(rollout, turn, await guard(lambda said: self.answer(rollout, said), turn))
            self._tell()
            if self.on_end is not None and (work := self.on_end(row)) is not None:
                await asyncio.to_thread(work)

        began, generated = time.perf_counter(), self.generating.seconds
        tasks = {row: asyncio.create_task(play(row)) for row, rollout in enumerate(self.rollouts) if rollout.live}
        try:
            await asyncio.gather(*tasks.values())
        finally:  # what the agent raises for one ends the others, too
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        self.environment.seconds += time.perf_counter() - began - (self.generating.seconds - generated)

    def _later(self, rollout: RolloutUnderWay) -> bool:
        return self.fresh is not None and rollout.number >= self.fresh

    def _goes_on(self, rollout: RolloutUnderWay) -> bool:
        return rollout.live and len(rollout.steps) < self.max_turns

    def _has_acted(self, rollout: RolloutUnderWay, turn: AgentTurn) -> bool:
        """Return whether the agent wrote a turn. If it could not, the rollout has ended: there is no step."""
        if turn.stop_reason == "refused":
            rollout.refuse(turn.problem)
        elif turn.stop_reason == "token_limit" and turn.token_span[0] == turn.token_span[1]:
            rollout.stop_reason = StopReason.MAX_TOKENS
        return rollout.live

    def _tell(self) -> None:
        if self.on_progress is not None:
            self.on_progress(sum(not self._goes_on(rollout) for rollout in self.rollouts), len(self.rollouts))


@dataclass(frozen=True)
class CheckedStep:
    """A checked step: its context, the call, and the result."""

    call: ToolCall
    context: StepContext
    result: StepResult


@dataclass
class RolloutUnderWay:
    """One rollout of a task, from its first message to its verdict."""

    task: Any
    number: int = 0
    """Which rollout of its task."""
    state: Any = None
    messages: list[Message] | None = None
    context: StepContext = field(default_factory=StepContext)
    call: ToolCall | None = None
    resources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    answer: str | None = None
    correct: bool | None = None
    """Whether it was right at the last step that judged it."""
    knows_success: bool = True
    stop_reason: str | None = None
    done: bool = False
    """Whether the environment ended it; its last turn may have been cut by a limit all the same."""
    error: str | None = None
    detail: str = ""
    images: tuple[str, ...] = ()
    keep_images: bool = False
    answered_with: tuple[Picture, ...] = ()
    """Pictures of the last answer."""
    seconds: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)
    parent: RolloutUnderWay | None = None
    """The rollout whose first `shared` turns this one repeats (`tree`)."""
    shared: int = 0

    @property
    def live(self) -> bool:
        """Whether it has not ended yet. It may still be live after its last turn."""
        return self.stop_reason is None

    def fail(self, outcome: Outcome[Any], where: str) -> None:
        """End the rollout: the environment's code raised or was given up."""
        self.stop_reason = StopReason.TIMEOUT if outcome.timed_out else StopReason.ERROR
        self.error = f"{where}: {outcome.error}"
        self.detail = outcome.detail

    def refuse(self, problem: str) -> None:
        """End the rollout: the agent cannot continue it."""
        self.stop_reason = StopReason.ERROR
        self.error = f"{f'step {len(self.steps)}' if self.steps else 'prompt'}: {problem}"

    def note(
        self,
        turn: AgentTurn,
        outcome: Outcome[CheckedStep],
        images: tuple[str, ...] = (),
        overlay: Overlay | None = None,
    ) -> None:
        """Record a turn. `images` and `overlay` are the kept pictures of the answer."""
        self.seconds += outcome.seconds
        answer = outcome.value
        # Without an answer: the call as far as it was read before the environment failed.
        call = answer.call if answer else self.call or ToolCall(None, {}, turn.text, "", "could not be read")
        step = Step(
            index=len(self.steps),
            text=turn.text,
            stop_reason=turn.stop_reason,
            token_span=turn.token_span,
            seconds=outcome.seconds,
            policy_version=turn.policy_version,
            server=turn.server,
            thought=call.thought,
            action=call.name,
            arguments=call.arguments,
            parse_error=call.error,
            context=answer.context if answer else self.context,
        )
        if answer is None:
            self.fail(outcome, f"step {step.index + 1}")
            self.steps.append(replace(step, error=outcome.error))
            return
        result = answer.result
        for kind, ids in result.produced.items():
            self.resources[kind] = (*self.resources.get(kind, ()), *map(str, ids))
        self.answered_with = result.images
        self.steps.append(
            replace(
                step,
                observation=clean_text(result.observation),
                images=images,
                overlay=overlay,
                reward=float(result.reward),
                error=None if call.name is None else result.error,
                calls=result.calls,
                display=tuple(result.display),
            )
        )
        if turn.stop_reason == "token_limit":
            self.stop_reason = StopReason.MAX_TOKENS
        elif result.done:
            cut = turn.stop_reason == "turn_limit"
            self.stop_reason = StopReason.TURN_LIMIT if cut else StopReason.ANSWER
        if result.done:
            self.done, self.answer = True, result.answer
        if result.done or result.correct is not None:
            self.correct = result.correct

    def judged(self, verdict: Verdict) -> None:
        self.verdict = verdict
        if verdict.error is not None:
            self.stop_reason, self.error = StopReason.ERROR, verdict.error
        elif self.steps:
            self.steps[-1] = replace(self.steps[-1], scores=(*self.steps[-1].scores, *verdict.scores))

    @property
    def outcome(self) -> bool | None:
        """Whether it was right, by the verdict or the last step: False after the limit of turns or tokens, None if it
        failed."""
        if self.error is not None:
            return None
        if self.verdict.correct is not None:
            return self.verdict.correct
        return self.correct if self.done or not self.knows_success else bool(self.correct)

    def trajectory(
        self,
        prompt: Sequence[Message],
        *,
        env: str,
        prompt_id: str,
        group: str,
        tools: Sequence[ToolSpec],
        expected: str | None,
        meta: Mapping[str, object],
    ) -> Trajectory:
        branch = {} if self.parent is None else {PARENT: self.parent.number, SHARED: self.shared}
        said = [PromptMessage(m.get("role", ""), text_of(m.get("content", ""))) for m in prompt]
        return Trajectory(
            id=f"{group}-{self.number}",
            env=env,
            prompt_id=prompt_id,
            group=group,
            rollout=self.number,
            prompt="\n\n".join(message.text for message in said),
            steps=tuple(self.steps),
            task=dict(self.task) if isinstance(self.task, Mapping) else {"task": self.task},
            tools=tuple(tools),
            answer=self.answer,
            expected=expected,
            correct=self.outcome,
            env_reward=float(sum(s.reward or 0.0 for s in self.steps)),
            modality=self.context.modality,
            images=self.images,
            stop_reason=self.stop_reason or StopReason.MAX_TURNS,
            error=self.error,
            seconds=self.seconds,
            meta=meta,
            messages=tuple(said) if len(said) > 1 else (),
            extra={**self.verdict.extra, **branch},
            judged_by=self.verdict.judged_by,
        )


def prompts_of(rollouts: Sequence[RolloutUnderWay], num_rollouts: int) -> list[list[Message]]:
    """Return one prompt a task. A rollout whose prompt differs from its group's fails: it could not be compared."""
    prompts: list[list[Message]] = []
    for start in range(0, len(rollouts), num_rollouts):
        group = rollouts[start : start + num_rollouts]
        prompt = next((r.messages for r in group if r.messages), None)
        for rollout in group:
            if rollout.live and rollout.messages != prompt:
                rollout.stop_reason = StopReason.ERROR
                rollout.error = "reset: gave this rollout another prompt than its group"
        prompts.append(prompt or [{"role": "user", "content": "(no task)"}])
    return prompts


def log_failures(rollouts: Sequence[RolloutUnderWay], name: str) -> None:
    """Log each kind of failure once, with its traceback: a broken environment must not flood the log."""
    failures: dict[str, list[RolloutUnderWay]] = {}
    for rollout in rollouts:
        if rollout.error is not None:
            failures.setdefault(rollout.error, []).append(rollout)
    for error, failed in failures.items():
        count = f"{len(failed)} rollouts" if len(failed) > 1 else "a rollout"
        logger.warning("%s failed %s at %s\n%s", name, count, error, failed[0].detail.rstrip())


def trial_result(
    trajectories: Sequence[Trajectory], tokens: Sequence[TokenArrays], shown: Sequence[Sequence[ShownImage]]
) -> dict[str, Any]:
    """Return the result of `MultiTurnEnv.run_trial` without its timings."""
    return {
        "final_rewards": np.asarray([t.env_reward for t in trajectories], dtype=np.float32),
        "trajectories": trajectories,
        "tokens": tokens,
        "images": shown,
    }


def trial_timings(generating: Stopwatch, environment: Stopwatch) -> dict[str, Any]:
    """Return the `timings` of a result of `MultiTurnEnv.run_trial`. Both watches have stopped."""
    return {
        "generate_s": generating.seconds,
        "environment_s": environment.seconds,
        "spans": {"generate": generating.spans, "environment": environment.spans},
    }
