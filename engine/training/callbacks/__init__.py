"""Callbacks around the optimiser steps of a run.

| callback | task |
|---|---|
| `CheckpointSchedule` | decides when a checkpoint is due |
| `GRPORecording`, `SFTRecording` | record each step, and show it to observers (`Findings`, the log) |
| `AutomaticBeta` | moves beta |
| `HeldOutEvaluation` | measures success |
| `StepProgress` | reports the progress inside a step |
| `RunRequests` | pauses, saves, stops |

Every process has all of them, in this order. Only the main process records and listens to requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...agents.chat_agent import ChatAgent
from ...agents.remote.agent import RemoteAgent
from ...rollouts.runner import RolloutRunner, Row
from ...runs.control.requests import ControlChannel
from .beta import AutomaticBeta
from .evaluation import HeldOutEvaluation
from .progress import StepProgress
from .recording import StepRecording
from .requests import CheckpointSchedule, RunRequests


class RunCallbacks:
    """Makes the callbacks of a run, and adds them and its recording to the trainer.

    runner: plays the held-out tasks `eval_rows`. eval_every, save_every, save_minutes: steps between evaluations, and
    steps and minutes between checkpoints (0: only before the first step and after the last). channel: requests from
    users (None: none).
    """

    def __init__(
        self,
        recording: StepRecording,
        runner: RolloutRunner,
        *,
        eval_rows: Sequence[Row] = (),
        eval_every: int = 0,
        save_every: int = 0,
        save_minutes: float = 0.0,
        channel: ControlChannel | None = None,
        seed: int = 0,
        beta: AutomaticBeta | None = None,
    ) -> None:
        trainer, recorder = recording.trainer, recording.recorder
        self.recording = recording
        self.progress = progress = StepProgress(recorder)
        runner.on_progress, runner.watch = progress.rollouts, progress
        if isinstance(runner.agent, ChatAgent):
            runner.agent.watcher = live = progress.live
            if live is not None and isinstance(runner.agent, RemoteAgent):
                live.servers = runner.agent.pool.states
        self.evaluation = HeldOutEvaluation(trainer, runner, recorder, progress, eval_rows, eval_every, seed)
        checkpoints = CheckpointSchedule(trainer, recorder, save_every, save_minutes)
        listening = channel if trainer.accelerator.is_main_process else None
        self.requests = RunRequests(trainer, recorder, progress, listening)
        for callback in (checkpoints, recording, beta, self.evaluation, progress, self.requests):
            if callback is not None:
                trainer.add_callback(callback)
