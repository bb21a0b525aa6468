"""`grpo-tui branch`: continue a recorded rollout from a step, and measure the value of the step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...engine.evaluation.statistics import Interval
from ...engine.launch.find import find_run
from ...engine.runs.read.reader import RunReader
from ..format import fixed
from .common import ExitCode, Home, JsonOption, fail, json_line, say, warn

if TYPE_CHECKING:
    from ...engine.evaluation.branch import Branch, Side

_AT = re.compile(r"(.+?)[:/](\d{1,9})(?:[:/](\d{1,9}))?")


def branch(
    reference: Annotated[str, typer.Argument(metavar="RUN", help="A run: id, name or path.")],
    at: Annotated[
        str,
        typer.Option(
            metavar="ROLLOUT:STEP", help="Rollout number or id, and step. A third number keeps that many of its tokens."
        ),
    ],
    samples: Annotated[
        int, typer.Option("-n", "--samples", min=2, help="Continuations on each side of the step.")
    ] = 16,
    policy: Annotated[
        str, typer.Option(help="The policy, as in eval. Default: the kept policy nearest to the rollout's.")
    ] = "",
    as_json: JsonOption = False,
    *,
    home: Home,
) -> None:
    """Measure the value of a step of a recorded rollout.

    The command replays the recorded turns in new environments. Half of the continuations start before the step, so the
    policy writes it again. The other half start after it. The difference of their mean rewards estimates the true
    advantage of the step. The continuations are recorded as a separate run.
    """
    from ...engine.evaluation.branch import branch_config, read_branch, start_branch
    from .follow import follow_to_end

    found = _AT.fullmatch(at)
    if found is None:
        fail("--at: give a rollout and a step, such as 812:3", ExitCode.USAGE)
    rollout, step, token = found[1], int(found[2]), None if found[3] is None else int(found[3])
    try:
        source = Path(find_run(home, reference).path)
        config = branch_config(source, rollout, step, token=token, samples=samples, policy=policy)
        run = start_branch(config)
    except LookupError as problem:
        fail(str(problem), ExitCode.NOT_FOUND)
    if run.active:
        follow_to_end(run, out=warn)
    with RunReader(run.path) as reader:
        result = read_branch(reader, config.evaluation)
    if as_json:
        say(json_line(_plain(result, run.path)))
        return
    for line in _lines(result):
        say(line)
    say(f"open the continuations: grpo-tui inspect {run.reference}")


def _plain(result: Branch, path: str) -> dict[str, object]:
    def side(s: Side) -> dict[str, object]:
        rollouts = [
            {"n": r.n, "reward": r.reward, "correct": r.correct, "turns": r.turns, "stop_reason": r.stop_reason}
            for r in s.rows
        ]
        return {"reward": s.reward, "success": s.success, "differing": s.differing, "rollouts": rollouts}

    return {
        "run": path,
        "rollout": result.spec.branch.rollout,
        "step": result.spec.branch.step,
        "token": result.spec.branch.token,
        "policy": result.spec.subject,
        "policy_step": result.spec.step,
        "rollout_policy_step": result.version,
        "before": side(result.before),
        "after": side(result.after),
        "worth": result.worth,
        "advantage": result.advantage,
        "replay": result.replay,
    }


def _lines(result: Branch) -> Iterator[str]:
    source, spec = result.spec.branch, result.spec
    where = f"step {source.step}" + ("" if source.token is None else f" after token {source.token}")
    yield f"rollout {source.rollout} of {Path(source.run).name}, {where}"
    yield f"policy {spec.subject} (step {spec.step}; the rollout was sampled at step {result.version})"
    if result.replay is not None:
        turn = result.replay["turn"]
        total = len(result.before.rows) + len(result.after.rows)
        yield f"! {result.before.differing + result.after.differing} of {total} replays differ from the record, first"
        yield f"  {f'in the observation of turn {turn}' if turn else 'in the prompt'}:"
        yield f"  recorded: {result.replay['recorded']}"
        yield f"  now:      {result.replay['now']}"
    for name, side in (("before the step", result.before), ("after the step", result.after)):
        success = "" if side.success is None else f"   success {_interval(side.success)}"
        yield f"{name:<23}reward {_interval(side.reward)}{success}   n = {side.reward.n}"
    yield f"{'value of the step':<23}{_interval(result.worth, signed=True)}"
    if result.advantage is not None:
        yield f"{'advantage in training':<23}{fixed(result.advantage, signed=True)}"
    yield "Intervals are 95 %. Training scales advantages: compare only signs and ranks."


def _interval(i: Interval, signed: bool = False) -> str:
    return f"{fixed(i.estimate, signed=signed)} ({fixed(i.low, signed=signed)} to {fixed(i.high, signed=signed)})"
