"""Report progress inside a step as it happens. A step of a large model takes minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import TrainerState, TrainingArguments

from ...record.step_recorder import StepRecorder
from ...rollouts.rollout import Rollout
from ...runs.control.live import LiveTexts
from ...runs.types import Phase
from .base import RunCallback


@dataclass(eq=False)
class StepProgress(RunCallback):
    """Turns progress reports within a step into the run's `Progress`.

    Phases in order: `rollouts` (ended, of how many), `log-probs` (rollouts), `scoring`, `backward` (micro-batches).
    Between steps: `evaluation` (held-out rollouts) and `checkpoint`. It is also the runner's `RolloutWatch`, so viewers
    see for which step texts are written, and their rewards.

    acting: what rollouts are made for, `rollouts` of a step or an `evaluation`. held_out: how held-out tasks are
    currently answered, in a few words. micro_batches: those of an optimiser step.
    """

    recorder: StepRecorder
    acting: Phase = Phase.ROLLOUTS
    held_out: str = ""
    micro_batches: int = 0
    _updated: int = 0
    _scored: bool = False

    def on_train_begin(self, args: object, state: TrainerState, *_: object, **kwargs: object) -> None:
        self.recorder.event("phase", "training", step=state.global_step, name="training")

    def on_step_begin(self, args: TrainingArguments, *_: object, **kwargs: object) -> None:
        self.micro_batches, self._updated, self._scored = args.gradient_accumulation_steps, 0, False

    def on_substep_end(self, *_: object, **kwargs: object) -> None:
        self._updated += 1
        self._tell(Phase.BACKWARD, self._updated, self.micro_batches)

    def rollouts(self, ended: int, total: int) -> None:
        self._scored = False
        self._tell(self.acting, ended, total)

    @property
    def live(self) -> LiveTexts | None:
        """The shared file of live texts; None in a process without a record."""
        live = self.recorder.writer.live
        return live if isinstance(live, LiveTexts) else None

    def begins(self, split: str, step: int, turns: int, total: int) -> None:
        if (live := self.live) is not None:
            live.purpose(self.held_out if split == "eval" else "", step, turns, total)

    def ended(self, count: int) -> None:
        if (live := self.live) is not None and live.batch is not None:
            live.batch.finished(count)

    def made(self, rollouts: Sequence[Rollout]) -> None:
        """Report the reward of the environment and the reward functions, without shaping."""
        if (live := self.live) is not None and live.batch is not None:
            ended = [None if r.trajectory is None or r.trajectory.error else r.trajectory for r in rollouts]
            rewards = [None if t is None else t.own_reward for t in ended]
            live.batch.judged(rewards, [None if t is None else t.correct for t in ended])

    def scored(self, done: int, total: int) -> None:
        self._tell(Phase.LOG_PROBS, done, total)

    def phase(self, name: str) -> None:
        """Show a phase of `PhaseClock`. Log-probs after the rewards belong to the update."""
        if name == "reward":
            self._scored = True
            self._tell(Phase.SCORING)
        elif name == "logprobs" and self._scored:
            self._tell(Phase.BACKWARD, self._updated, self.micro_batches)
        elif name == "logprobs":
            self._tell(Phase.LOG_PROBS)

    def checkpoint(self) -> None:
        self._tell(Phase.CHECKPOINT)

    def _tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        self.recorder.guard("progress", lambda: self.recorder.writer.progress(phase, done, total))
