"""`grpo-tui bisect`: the training step at which a behaviour became common."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ...engine.imports.readers import open_reader
from ...engine.launch.settings import read_config
from ...engine.runs.health.checkpoints import checkpoint_folder, policies
from ...engine.runs.read.reader import RunReader
from ...engine.runs.search.query import Query
from ...engine.runs.types import RunInfo
from ..format import count
from .common import ExitCode, Home, Importers, JsonOption, Maps, RunOrDump, fail, json_line, say, warn
from .dumps import argument_of, run_or_dump


def bisect(
    reference: RunOrDump,
    behaviour: Annotated[str, typer.Option("--filter", help="A filter that matches the behaviour.")],
    common: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of rollouts that counts as common.")] = 0.5,
    tasks: Annotated[int | None, typer.Option(min=1, help="Number of held-out tasks per evaluation.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Rollouts per task in an evaluation.")] = 1,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Always evaluate checkpoints.")] = False,
    as_json: JsonOption = False,
    maps: Maps = None,
    importers: Importers = None,
    *,
    home: Home,
) -> None:
    """Find the training step at which a behaviour became common.

    The behaviour is any filter of `inspect`, such as 'action:READ_TEXT', 'penalised' or 'text:boxed'. If the recorded
    rollouts show a clear change, the command prints its step. Otherwise it evaluates the kept checkpoints of the run
    by binary search.
    """
    from ...engine.evaluation.bisect import ODDS, change_point
    from ...engine.runs.read.behavior import TRAINED, trained

    if not behaviour.strip():
        fail("--filter is empty and matches every rollout; give a filter such as 'penalised'", ExitCode.USAGE)
    info = run_or_dump(reference, home, maps, importers)
    with open_reader(Path(info.path)) as reader:
        notes = reader.rollouts.filter_notes(behaviour)
        shown = reader.rollouts.per_step(Query(trained(behaviour)))
        counts = [(s, n, shown.get(s, 0)) for s, n in reader.rollouts.per_step(Query(TRAINED)).items()]
    found = change_point(counts)
    if not evaluate and found is not None and found.odds >= ODDS:
        if as_json:
            say(json_line({"by": "record", **vars(found)}))
            return
        verb = "became more common" if found.after > found.before else "became less common"
        rollouts = count(sum(n for _, n, _ in counts), "rollout")
        say(f"step {found.step} (95 %: {found.low} to {found.high}): the behaviour {verb} ({rollouts})")
        say(f"  {found.before:.1%} of the rollouts before, {found.after:.1%} from this step on")
        say(f"  first seen at step {found.seen}")
        shown_by = f"({behaviour}) and step>={found.step}"
        say(f"  open them: grpo-tui inspect {argument_of(info)} --filter {quote(shown_by)}")
        return
    for note in notes:
        warn(note)
    if info.mode != "rft":
        fail("the recorded rollouts show no clear change, and only a training run has checkpoints to evaluate")
    if not as_json:
        say("the recorded rollouts show no clear change; evaluating the kept checkpoints")
    _by_evaluation(home, info, behaviour, common, tasks, samples, as_json)


def _by_evaluation(
    home: Path, info: RunInfo, behaviour: str, common: float, tasks: int | None, samples: int, as_json: bool
) -> None:
    """Evaluate checkpoints of a run until the first with the behaviour is known."""
    from ...engine.evaluation.bisect import first_common
    from ...engine.evaluation.subjects import BASE, find_subject
    from .evaluate import evaluated

    steps = [0, *(s for s in policies(checkpoint_folder(Path(info.path))) if s > 0)]
    if len(steps) == 1:
        fail(f"run {info.id} has no kept checkpoints; see training.keep_adapters")
    config, shares = read_config(info.path), dict[int, float]()

    def share_at(step: int) -> float:
        subject = find_subject(f"{info.id}@{step or BASE}", home)
        folder = evaluated(home, subject, config, tasks, samples, quiet=as_json)
        with RunReader(folder) as reader:
            total, shown = (sum(reader.rollouts.per_step(Query(f)).values()) for f in ("", behaviour))
        shares[step] = shown / max(total, 1)
        if not as_json:
            say(f"  step {step}: {shares[step]:.1%}")
        return shares[step]

    step = first_common(steps, share_at, common)
    before = None if step is None else max((s for s in steps if s < step), default=None)
    if as_json:
        say(json_line({"by": "evaluation", "step": step, "after": before, "shares": shares, "checkpoints": steps}))
    elif step is None:
        say(f"no checkpoint shows the behaviour in {common:.0%} of its rollouts")
    elif before is None:
        say(f"the policy shows the behaviour from the start ({info.id}@{BASE})")
    else:
        say(f"common from step {step} on; the previous kept checkpoint is from step {before}")
