"""Runs of one configuration with several seeds, and their mean with Student's t interval over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..engine.runs.health.headline import Headline
from ..engine.runs.types import RunInfo
from .format import number, percent, percent_number, within


def by_configuration(runs: Iterable[RunInfo]) -> list[list[RunInfo]]:
    """Group finished runs by configuration: the newest run of each seed, for configurations with two seeds or more."""
    found: dict[str, dict[int, RunInfo]] = {}
    for run in sorted(runs, key=lambda run: run.created):
        if run.status == "finished" and (name := run.facts.get("configuration")):
            found.setdefault(name, {})[run.facts.get("seed", 0)] = run
    return [list(seeds.values()) for seeds in found.values() if len(seeds) > 1]


def seeds_line(headlines: Sequence[Headline], what: str = "seeds", names: Sequence[str] = ("success", "reward")) -> str:
    """Format `3 seeds: success 62 % (41 to 83), reward 0.58 (0.4 to 0.76)`."""
    from ..engine.evaluation.statistics import mean_interval  # imported here: most lists show no seeds

    parts = []
    for name in names:
        values = [value for h in headlines if (value := getattr(h, name)) is not None]
        if len(values) == len(headlines) > 1:
            i = mean_interval(values)
            written, bound = (percent, percent_number) if name == "success" else (number, number)
            parts.append(f"{name} {written(i.estimate)}{within((i.low, i.high), bound)}")
    return f"{len(headlines)} {what}" + (f": {', '.join(parts)}" if parts else "")
