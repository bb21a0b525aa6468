"""`grpo-tui check`: find problems of a run, or of rollouts of another framework, for people and for CI."""

from __future__ import annotations

from collections.abc import Iterator
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
from ..format import count
from .common import ExitCode, Home, Importers, Maps, RunOrDump, fail, json_line, say, warn
from .dumps import argument_of, run_or_dump

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ...engine.recompute.ledger import Report
    from ...engine.runs.read.reader import RunReader
    from ...rewards.diagnosis import Found


def check(
    reference: RunOrDump,
    as_json: Annotated[bool, typer.Option("--json", help="Print one finding per line, as JSON.")] = False,
    again: Annotated[bool, typer.Option("--recompute", help="Recompute every recorded number.")] = False,
    formula: Annotated[
        str, typer.Option(metavar="NAME", help="With --recompute: the formula of a dump's advantages, e.g. grpo.")
    ] = "",
    maps: Maps = None,
    importers: Importers = None,
    *,
    home: Home,
) -> None:
    """Find reward problems in a run, or in a dump of another framework.

    Prints each finding with the rollouts that show it. Exits with 1 if a finding is a warning or a failure, or if a
    part of the record cannot be read, so a CI job can fail on it. A training run reports the same findings live.
    Detectors that lack data are listed as not checked.

    --recompute computes every number of a training run again from the record: rewards, group statistics,
    advantages, masks and loss. It prints each number that differs. For rollouts of other frameworks, it recomputes
    weighted sums and advantages.
    """
    from ...engine.imports.check import diagnose

    info = run_or_dump(reference, home, maps, importers)
    if again:
        return _recompute(reference, info, formula, as_json)
    try:
        with open_reader(Path(info.path)) as reader:
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
    named = argument_of(info)
    for result in found:
        for line in _finding_lines(result, named, as_json):
            say(line)
    for problem in problems:
        warn(f"not read: {problem}")
    if not (found or as_json or (problems and not total)):
        say(f"nothing found in {count(total, 'rollout') if total or not measured else count(measured, 'metric')}")
    for name, needs in diagnosis.unchecked().items():
        message = f"not checked: {name} needs {needs}"
        lacking = {"detector": name, "severity": "not checked", "message": message, "trajectories": [], "step": None}
        say(json_line(lacking) if as_json else message)
    unread = [s for s in info.facts.get("skipped") or () if NO_FORMAT not in s["why"]]  # as printed above
    if problems or unread or any(result.finding.severity in ("warning", "failure") for result in found):
        raise typer.Exit(ExitCode.FAILED)


def config_of(info: RunInfo) -> RunConfig | None:
    """Return the configuration of a run of our own; None for other records. Raises ConfigError."""

    own = info.mode != "dump" and (Path(info.path) / CONFIG_FILE).is_file()
    return read_config(info.path) if own else None


def _finding_lines(found: Found, named: str, as_json: bool) -> Iterator[str]:
    """Yield the lines of a finding. named: the arguments that name its run or dump to another command."""
    finding = found.finding
    helps = suggestion(finding.detector, finding.subject, finding.severity)
    if as_json:
        steps = {"step": found.step, "strongest": found.strongest, "steps": found.count}
        steps |= {"began": found.began, "cause": found.cause}
        yield json_line({**vars(finding), "suggestion": helps, **steps})
        return
    yield f"{finding.severity}: {_steps(found)}{finding.message}"
    if found.cause:
        yield f"  likely a symptom of {found.cause}"
    elif helps:
        yield f"  suggestion: {helps}"
    for id_ in finding.trajectories:
        yield f"  grpo-tui inspect {named} --trajectory {quote(id_)}"


def _steps(found: Found) -> str:
    if found.step is None:
        return ""
    began = found.step if found.began is None else found.began
    later = {"found": found.step, "strongest": found.strongest}
    others = ", ".join(f"{name} at {step}" for name, step in later.items() if step != began)
    return f"step {began} ({others}): " if others else f"step {began}: "


def _recompute(reference: str, info: RunInfo, formula: str, as_json: bool) -> None:
    """Print each number that differs from its recomputation. Exits with 1 if there is one."""
    try:
        with open_reader(Path(info.path)) as reader:
            report = report_of(info, reader, formula)
            problems = reader.problems
    except (RecordError, ConfigError) as error:
        fail(f"{reference} cannot be recomputed: {error}")
    for wrong in report.wrong:
        say(json_line(vars(wrong)) if as_json else f"wrong: {wrong}")
    for problem in problems:
        warn(f"not read: {problem}")
    if not as_json:
        for what, reason in report.given.items():
            say(f"taken as recorded: {what} ({reason})")
        say(f"{report.compared.total():,} numbers recomputed, {len(report.wrong):,} wrong")
    if report.wrong or problems:
        raise typer.Exit(ExitCode.FAILED)


def report_of(info: RunInfo, reader: RunReader, formula: str) -> Report:
    """Recompute the numbers of a record: of this program, of TRL, or rollouts of another framework."""
    from ...engine.recompute.check import recompute
    from ...engine.recompute.dumps import FORMULAS, recompute_dump
    from ...engine.recompute.trl.check import is_trl, recompute_trl

    if formula and formula not in FORMULAS:
        fail(f"--formula {formula} is unknown; use one of {', '.join(FORMULAS)}", ExitCode.USAGE)
    if info.mode == "recorded" and not formula and is_trl(reader):
        return recompute_trl(reader)
    if info.mode in ("recorded", "dump"):
        return recompute_dump(reader, formula)
    config = read_config(info.path)
    if config.mode != "rft":
        fail(f"{info.id} has mode {config.mode}: only runs of mode rft can be recomputed")
    return recompute(reader, config)
