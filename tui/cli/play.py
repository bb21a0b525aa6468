"""`grpo-tui play`: play the tasks by hand and get the policy's rewards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .common import Home, SetOption, fail, on_terminal, say
from .config import ConfigArgument, load
from .train import DatasetOption, ModelOption, RewardOption, RunIdOption, own

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ...engine.launch.play import Play, Situation
    from ...engine.runs.types import TrajectoryRecord


def play(
    config: ConfigArgument = None,
    model: ModelOption = None,
    dataset: DatasetOption = None,
    reward: RewardOption = None,
    set_: SetOption = None,
    run_id: RunIdOption = None,
    *,
    home: Home,
) -> None:
    """Play tasks by hand instead of the policy, and see the rewards that the policy would get.

    A turn is a call such as LOOK(x=1), several calls, or plain text. The rollouts are recorded as a run. `grpo-tui
    export RUN --format messages` writes them as demonstrations for --mode sft.

    Without a terminal, each line of standard input is a turn, or one of /model, /again, /next and /quit.
    """
    from ...engine.launch.play import Play
    from .follow import crash_reason

    settings = for_play(load(config, set_, "rft", options=own(model, dataset, reward), paths=True))
    game = Play(settings, home, run_id)
    try:
        if on_terminal():
            from ..app.app import run_app
            from ..app.destinations import Playing

            run_app(home, Playing(Path(game.run.path), game))
        else:
            play_in_lines(game)
    finally:
        ended = game.close()
    if ended.status == "crashed":
        fail(crash_reason(ended) or "the process ended without a message")
    say(f"run {ended.id}: grpo-tui inspect {ended.reference} · grpo-tui export {ended.reference} --format messages")


def for_play(config: RunConfig) -> RunConfig:
    """Return the same configuration with the policy in the process and without held-out tasks."""
    from ...configs.sections import RolloutsConfig

    own = config.model_copy(deep=True)
    own.environment.eval_tasks, own.rollouts = 0, RolloutsConfig()
    own.logging.wandb, own.logging.report_to = "off", []
    return own


def play_in_lines(game: Play) -> None:
    """Take turns from standard input until it ends."""
    from ...engine.launch.play import Continuation, Refusal

    shown: int | None = None
    for event in game.events():
        if isinstance(event, Refusal):
            say(event.message)
        elif isinstance(event, Continuation):
            if not event.over:
                continue
            say()
            say("the model's continuation")
            for line in rollout_lines(event.record, event.step):
                say(line)
        else:
            steps = len(event.record.trajectory.steps)
            for line in situation_lines(event, shown if steps else None):
                say(line)
            shown = None if event.over else steps
        if not _send_next(game):
            return


def _send_next(game: Play) -> bool:
    """Send the next line of standard input; False at its end."""
    for typed in sys.stdin:
        line = typed.rstrip("\n")
        if line == "/quit":
            return False
        if line.strip():
            command = {"/model": {"model": True}, "/again": {"again": True}, "/next": {"next": True}}.get(line)
            game.send(**(command or {"turn": line}))
            return True
    return False


def situation_lines(now: Situation, seen: int | None) -> Iterator[str]:
    """The steps from number `seen` on, and the end; before them the task where `seen` is None."""
    from ..text import wrap

    t = now.record.trajectory
    if seen is None:
        yield ""
        yield f"task {now.task + 1} of {now.tasks}  {t.env}"
        yield from wrap(t.prompt, 110, limit=len(t.prompt))
        for number, tool in enumerate(now.tools):
            yield f"{'' if number else 'tools':<9}{tool.signature}  {tool.description}".rstrip()
    yield from rollout_lines(now.record, seen or 0, now.over)
    if now.over:
        yield "the rollout is over: /again, /next or /quit"


def rollout_lines(record: TrajectoryRecord, step: int, over: bool = True) -> Iterator[str]:
    """The steps of a rollout from `step` on, and its end if it is `over`."""
    from ..app.printed import end_lines, step_lines
    from ..plain import Whole

    rollout = Whole(0, record)
    for position in range(step, len(record.trajectory.steps)):
        yield from step_lines(rollout, position)
    if over:
        yield from end_lines(rollout)
