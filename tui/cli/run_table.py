"""The list of runs as plain lines or JSON. Without Typer: parsing two options would cost more than the list."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ...engine.launch.find import check_readable, list_runs
from ...engine.runs.health.headline import Headline, of_status
from ...engine.runs.paths import runs_dir as resolve_runs_dir
from ...engine.runs.types import RunInfo
from ..app.run_list import by_configuration, looked_into, seeds_line
from ..format import ago, number, step_text, within
from ..text import line
from .output import json_line, say

HEADS = ("run", "status", "mode", "environment", "model", "step", "reward", "success", "age")


def facts(run: RunInfo) -> dict[str, Any]:
    """Return a run as plain data, with its reward, and its success with the interval of an evaluation."""
    summary = headline(run)
    return {**vars(run), "reward": summary.reward, "success": summary.success, "interval": summary.interval}


def headline(run: RunInfo) -> Headline:
    """Return reward and success of a run. The record is opened only if the status file lacks them."""
    return of_status(run) or looked_into(run)


def print_runs(runs_dir: Path | None, *, as_json: bool = False) -> None:
    """Print the runs of a folder, newest first."""
    home = resolve_runs_dir(runs_dir)
    found = list_runs(home)
    if as_json:
        for run in found:
            say(json_line(facts(run)))
        return
    if not found:
        check_readable(home)
        say(f"no runs in {home} yet; start one with `grpo-tui train`")
        return
    rows: list[tuple[str, ...]] = [HEADS]
    for run in found:
        data = facts(run)
        environment = run.environment.rpartition(".")[2].rpartition(":")[2]
        age = ago(time.time() - run.created) if run.created else "–"
        rows.append(
            (
                line(run.id, 40),
                run.status,
                line(run.mode, 8),
                line(environment, 24),
                line(run.model, 28),
                step_text(run),
                number(data["reward"]),
                number(data["success"]) + within(data["interval"], number),
                age,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if any(run.facts.get("configuration") for run in found):
        for seeds in by_configuration(found):
            say(f"{seeds_line([headline(run) for run in seeds])} · {', '.join(line(run.id, 40) for run in seeds)}")
