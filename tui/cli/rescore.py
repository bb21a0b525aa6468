"""`grpo-tui rescore`: the advantages that a training run would have had with other rewards."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ...configs.errors import GrpoTuiError
from ...engine.launch.find import find_run
from ...engine.launch.settings import read_config
from ...engine.runs.paths import CONFIG_FILE
from ...engine.runs.read.reader import RunReader
from ..format import MINUS, count
from .common import ExitCode, Home, JsonOption, RunReference, SetOption, ask, fail, json_line, say
from .config import load
from .train import RewardOption, own

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ...engine.recompute.rescore import Judged, Rescored

SHOWN = 10
"""Changed advantages that are printed."""


def rescore(
    reference: RunReference,
    reward: RewardOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
    *,
    home: Home,
) -> None:
    """Recompute the rewards and advantages of a training run with other weights, penalties or reward functions.

    Prints the advantages that change sign, by component and group. The result is exact for the recorded rollouts. It
    does not predict later rollouts, which another policy would have sampled.
    """
    from ...engine.recompute.items import steps_of
    from ...engine.recompute.rescore import rescore as computed

    info = find_run(home, reference)
    if info.mode != "rft":
        fail(f"{info.id} has mode {info.mode or 'not recorded'}; only runs of mode rft can be rescored", ExitCode.USAGE)
    new = load(str(Path(info.path) / CONFIG_FILE), set_, options=own(None, None, reward))
    try:
        old = read_config(info.path)
        with RunReader(Path(info.path)) as reader:
            result = computed(steps_of(reader), old, new, judged(old, new, info.path))
    except GrpoTuiError as problem:
        fail(str(problem), ExitCode.USAGE)
    if as_json:
        say(json_line({**vars(result), "causes": result.causes}))
    else:
        _show(result, info.reference)


def judged(old: RunConfig, new: RunConfig, folder: str) -> Judged | None:
    """Return the scores of the new reward functions where they, their weights or the score of success changed."""
    before, after = old.environment, new.environment
    if (before.reward_funcs, before.success_score) == (after.reward_funcs, after.success_score):
        return None
    answer = ask("grpo_tui.engine.training.rejudging", new, folder, code=ExitCode.USAGE)
    return json.loads(answer.splitlines()[-1])


def _show(result: Rescored, reference: str) -> None:
    before, after = result.reward
    scored = f"{count(result.rollouts, 'rollout')} in {count(result.groups, 'group')}"
    say(f"{scored}: mean reward {before:.3f} → {after:.3f}")
    say(f"{len(result.gained):,} groups gain a signal, {len(result.lost):,} lose it")
    share = len(result.flips) / max(result.rollouts, 1)
    say(f"{len(result.flips):,} advantages change sign ({share:.1%} of the rollouts)")
    for cause, flips in result.causes.most_common():
        say(f"  {flips:,} because of {cause}")
    strongest = sorted(result.flips, key=lambda f: -abs(f.after - f.before))[:SHOWN]
    for f in strongest:
        change = f"{f.before:+.2f} → {f.after:+.2f}".replace("-", MINUS)
        say(f"  step {f.step}, group {f.group}: {change}, {f.cause}")
        say(f"    grpo-tui inspect {reference} --trajectory {quote(f.rollout)}")
    say("This is exact for the recorded rollouts. Later rollouts would have come from another policy.")
