"""`grpo-tui check`: find problems of a run, or of rollouts of another framework, for people and for CI."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ...configs.errors import ConfigError
from ...engine.imports.coverage import NO_FORMAT
from ...engine.imports.readers import open_reader
from ...engine.launch.settings import read_config
from ...engine.runs.control.alerts import suggestion
from ...engine.runs.errors import RecordError
from ...engine.runs.paths import CONFIG_FILE
from ...engine.runs.types import RunInfo
from .common import ExitCode, Home, Importers, Maps, fail, json_line, say, warn
from .dumps import argument_of, run_or_dump

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ...rewards.diagnosis import Found


def check(
    reference: Annotated[str, typer.Argument(metavar="RUN_OR_DUMP", help="A run, or a file or folder of rollouts.")],
    as_json: Annotated[bool, typer.Option("--json", help="One finding a line, as JSON.")] = False,
    again: Annotated[bool, typer.Option("--recompute", help="Compute every recorded number again.")] = False,
    formula: Annotated[
        str, typer.Option(metavar="NAME", help="With --recompute: the formula of a dump's advantages, e.g. grpo.")
    ] = "",
    maps: Maps = None,
    importers: Importers = None,
    *,
    home: Home,
) -> None:
    """Look for problems of rewards, in a run or in a dump of another framework.

    Prints each finding with the rollouts that show it, and exits with 1 when one is a warning or a failure, or when a
    part of the record cannot be read, so that a job in CI can stop on it. These are the findings that a training
    reports while it runs. Detectors without the data that they need are listed as not checked.

    With --recompute every number of a recorded training is computed again from the record: rewards, group statistics,
    advantages, masks, loss. Each number that differs is named. Of rollouts of other frameworks, weighted sums and
    advantages are computed again.
    """
    from ...engine.imports.check import diagnose

    if again:
        from .recompute import recompute

        return recompute(reference, as_json, home, maps or (), importers or (), formula)
    info = run_or_dump(reference, home, maps or (), importers or ())
    try:
        with closing(open_reader(Path(info.path))) as reader:
            try:
                config = config_of(info)
            except ConfigError as error:
                warn(f"config.yaml of {info.id} cannot be read, so the default limits are used: {error}")
                config = None
            diagnosis = diagnose(reader, config)
            total, measured = reader.rollouts.total(), len(reader.metrics.names())
            problems = reader.problems
    except RecordError as error:
        fail(f"{reference} cannot be read: {error}")
    found = diagnosis.found()
    named = argument_of(info) if info.mode == "dump" else quote(reference)
    for each in found:
        finding = each.finding
        helps = "" if finding.severity == "good" else suggestion(finding.detector, finding.subject)
        if as_json:
            steps = {"step": each.step, "strongest": each.strongest, "steps": each.count}
            steps |= {"began": each.began, "cause": each.cause}
            say(json_line({**vars(finding), "suggestion": helps, **steps}))
            continue
        say(f"{finding.severity}: {_steps(each)}{finding.message}")
        if each.cause:
            say(f"  likely a symptom of {each.cause}")
        elif helps:
            say(f"  what helps: {helps}")
        for id_ in finding.trajectories:
            say(f"  grpo-tui inspect {named} --trajectory {quote(id_)}")
    for problem in problems:
        warn(f"not read: {problem}")
    if not (found or as_json or (problems and not total)):
        say(
            f"nothing found in {total:,} rollouts"
            if total or not measured
            else f"nothing found in {measured:,} metrics"
        )
    for name, needs in diagnosis.unchecked().items():
        message = f"not checked: {name} needs {needs}"
        lacking = {"detector": name, "severity": "not checked", "message": message, "trajectories": [], "step": None}
        say(json_line(lacking) if as_json else message)
    unread = [s for s in info.facts.get("skipped") or () if NO_FORMAT not in s["why"]]  # as printed above
    if problems or unread or any(each.finding.severity in ("warning", "failure") for each in found):
        raise typer.Exit(ExitCode.FAILED)


def config_of(info: RunInfo) -> RunConfig | None:
    """Return the configuration of a run of our own; None for other records. Raises ConfigError."""

    own = info.mode != "dump" and (Path(info.path) / CONFIG_FILE).is_file()
    return read_config(info.path) if own else None


def _steps(found: Found) -> str:
    if found.step is None:
        return ""
    began = found.step if found.began is None else found.began
    later = {"found": found.step, "strongest": found.strongest}
    told = ", ".join(f"{name} at {step}" for name, step in later.items() if step != began)
    return f"step {began} ({told}): " if told else f"step {began}: "
