"""One running rollout: its prompt, turns and observations so far, and the resulting trajectory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .agent import AgentTurn, Message
from .base import Picture, StepResult, Verdict
from .calls import ToolCall, clean_text
from .content import text_of
from .guard import Outcome
from .trajectory import PARENT, SHARED, Overlay, PromptMessage, Step, StepContext, StopReason, Trajectory

logger = logging.getLogger(__name__)


@dataclass
class LiveRollout:
    """One rollout of a task, from its first message to its verdict."""

    task: Any
    number: int = 0
    """The index of the rollout within its task."""
    state: Any = None
    messages: list[Message] | None = None
    context: StepContext = field(default_factory=StepContext)
    """The facts before the last step."""
    call: ToolCall | None = None
    """The last call, as far as it could be parsed."""
    resources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    answer: str | None = None
    correct: bool | None = None
    """Whether the rollout was right, according to the last step that set it."""
    knows_success: bool = True
    stop_reason: str | None = None
    done: bool = False
    """Whether the environment ended the rollout. A limit may still have cut its last turn."""
    error: str | None = None
    detail: str = ""
    images: tuple[str, ...] = ()
    keep_images: bool = False
    answered_with: tuple[Picture, ...] = ()
    """Pictures of the last observation."""
    seconds: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)
    parent: LiveRollout | None = None
    """The rollout whose first `shared` turns this one repeats (`tree`)."""
    shared: int = 0

    @property
    def live(self) -> bool:
        """Whether the rollout has not ended. It may still be live after its last turn."""
        return self.stop_reason is None

    def fail(self, outcome: Outcome[Any], where: str) -> None:
        """End the rollout because the environment's code raised or timed out."""
        self.stop_reason = StopReason.TIMEOUT if outcome.timed_out else StopReason.ERROR
        self.error = f"{where}: {outcome.error}"
        self.detail = outcome.detail

    def refuse(self, problem: str) -> None:
        """End the rollout because the agent cannot continue it."""
        self.stop_reason = StopReason.ERROR
        self.error = f"{f'step {len(self.steps)}' if self.steps else 'prompt'}: {problem}"

    def note(
        self,
        turn: AgentTurn,
        outcome: Outcome[StepResult],
        images: tuple[str, ...] = (),
        overlay: Overlay | None = None,
    ) -> None:
        """Record a turn. `images` and `overlay` are the saved pictures of the observation."""
        self.seconds += outcome.seconds
        call = self.call or ToolCall(None, {}, turn.text, "", "could not be read")
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
            context=self.context,
        )
        result = outcome.value
        if result is None:
            self.fail(outcome, f"step {step.index + 1}")
            self.steps.append(replace(step, error=outcome.error))
            return
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
            self.done, self.answer = True, None if result.answer is None else clean_text(result.answer)
        if result.done or result.correct is not None:
            self.correct = result.correct

    def with_resources(self, context: StepContext) -> StepContext:
        """Add the resources that the steps have produced to the environment's context."""
        merged = {kind: tuple(map(str, ids)) for kind, ids in context.resources.items()}
        for kind, ids in self.resources.items():
            merged[kind] = tuple(dict.fromkeys((*merged.get(kind, ()), *ids)))
        return replace(context, resources=merged) if merged != context.resources else context

    def judged(self, verdict: Verdict) -> None:
        self.verdict = verdict
        if verdict.error is not None:
            self.stop_reason, self.error = StopReason.ERROR, verdict.error
        elif self.steps:
            self.steps[-1] = replace(self.steps[-1], scores=(*self.steps[-1].scores, *verdict.scores))

    @property
    def outcome(self) -> bool | None:
        """Whether the rollout was right, by the verdict or the last step that set it: False after a limit if no step
        did, None if the environment failed or success is unknown."""
        if self.error is not None:
            return None
        if self.verdict.correct is not None:
            return self.verdict.correct
        return self.correct if self.done or not self.knows_success else bool(self.correct)

    def trajectory(self, prompt: Sequence[Message], group: str, **facts: Any) -> Trajectory:
        """Return the trajectory. facts: its fields that the environment knows (`env`, `prompt_id`, `tools`, …)."""
        branch = {} if self.parent is None else {PARENT: self.parent.number, SHARED: self.shared}
        messages = [PromptMessage(m.get("role", ""), text_of(m.get("content", ""))) for m in prompt]
        return Trajectory(
            id=f"{group}-{self.number}",
            group=group,
            rollout=self.number,
            prompt="\n\n".join(message.text for message in messages),
            steps=tuple(self.steps),
            task=dict(self.task) if isinstance(self.task, Mapping) else {"task": self.task},
            answer=self.answer,
            correct=self.outcome,
            env_reward=float(sum(s.reward or 0.0 for s in self.steps)),
            modality=self.context.modality,
            images=self.images,
            stop_reason=self.stop_reason or StopReason.MAX_TURNS,
            error=self.error,
            seconds=self.seconds,
            messages=tuple(messages) if len(messages) > 1 else (),
            extra={**self.verdict.extra, **branch},
            judged_by=self.verdict.judged_by,
            **facts,
        )


def prompts_of(rollouts: Sequence[LiveRollout], num_rollouts: int) -> list[list[Message]]:
    """Return one prompt per task. Fail rollouts whose prompt differs from their group's: they are not comparable."""
    prompts: list[list[Message]] = []
    for start in range(0, len(rollouts), num_rollouts):
        group = rollouts[start : start + num_rollouts]
        prompt = next((r.messages for r in group if r.messages), None)
        for rollout in group:
            if rollout.live and rollout.messages != prompt:
                rollout.stop_reason = StopReason.ERROR
                rollout.error = "reset: this rollout has another prompt than the rest of its group"
        prompts.append(prompt or [{"role": "user", "content": "(no task)"}])
    return prompts


def log_failures(rollouts: Sequence[LiveRollout], name: str) -> None:
    """Log each kind of failure once, with its traceback, so that a broken environment does not flood the log."""
    failures: dict[str, list[LiveRollout]] = {}
    for rollout in rollouts:
        if rollout.error is not None:
            failures.setdefault(rollout.error, []).append(rollout)
    for error, failed in failures.items():
        count = f"{len(failed)} rollouts" if len(failed) > 1 else "a rollout"
        logger.warning("%s failed %s at %s\n%s", name, count, error, failed[0].detail.rstrip())
