"""The runs of a folder as a list: read, filtered and sorted, with means over seeds. Nothing here draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...engine.runs.control.status import look
from ...engine.runs.errors import RecordError
from ...engine.runs.health import headline
from ...engine.runs.health.headline import Headline
from ...engine.runs.types import RunInfo
from ..format import number, percent, percent_number, within

SORTS = ("created", "status", "success", "reward", "step", "mode", "environment", "model", "id")
DUMPS = 50
"""Maximum number of dumps that are listed with the runs."""
LARGEST_FIRST = ("created", "success", "reward", "step")
"""Columns that sort from the largest value on."""
_STATUS = ("running", "starting", "paused", "stopping", "crashed", "stopped", "finished")
NOTHING = Headline()


@dataclass(frozen=True)
class RunRow:
    """One run of the list."""

    info: RunInfo
    headline: Headline = NOTHING

    @property
    def dump(self) -> bool:
        return self.info.mode == "dump"

    @property
    def name(self) -> str:
        """The run's name, or the last folders of a dump's path, because many dumps have the same file name."""
        if self.info.name or not self.dump:
            return self.info.name
        return "/".join(Path(str(self.info.facts.get("dump", ""))).parts[-3:-1])


def is_branch(info: RunInfo) -> bool:
    """Return whether a run holds continuations of a step (`start_branch` names its folder)."""
    return info.mode == "eval" and info.id.startswith("branch-")


def load(folder: Path) -> list[tuple[RunInfo, Headline | None]]:
    """Return the runs of a folder and recent dumps, with the headlines of their status files. Raises PermissionError if
    all that is there cannot be read."""
    from ...engine.imports.cache import recent  # imported here to keep the first paint fast
    from ...engine.launch.find import check_readable, list_runs

    runs = [*list_runs(folder), *map(look, recent()[:DUMPS])]
    if not runs:
        check_readable(folder)
    return [(info, headline.of_status(info)) for info in runs]


def looked_into(info: RunInfo) -> Headline:
    """Return the headline of a run from its record. A damaged record has none."""
    from ...engine.imports.readers import open_reader  # imported here: most lists need none

    try:
        with open_reader(Path(info.path)) as reader:
            return headline.of_record(reader)
    except (RecordError, OSError):
        return NOTHING


def arranged(rows: Iterable[RunRow], text: str, column: str, descending: bool) -> list[RunRow]:
    """Return the rows that contain every word of `text`, sorted by a column, then by age. Dumps follow runs."""
    words = text.casefold().split()

    def matches(row: RunRow) -> bool:
        i = row.info
        searched = f"{i.id} {row.name} {'' if row.dump else i.status} {i.mode} {i.environment} {i.model}".casefold()
        return all(word in searched for word in words)

    found = [row for row in rows if matches(row)]
    found.sort(key=lambda row: (_key(row, column), row.info.created), reverse=descending)
    return sorted(found, key=lambda row: row.dump)


def _key(row: RunRow, column: str) -> object:
    if column in ("success", "reward"):
        value = getattr(row.headline, column)
        return (value is not None, value or 0.0)
    if column == "status":
        return _STATUS.index(row.info.status)
    return getattr(row.info, column)


def by_configuration(runs: Iterable[RunInfo]) -> list[list[RunInfo]]:
    """Group finished runs by configuration: the newest run of each seed, for configurations with two seeds or more."""
    found: dict[str, dict[int, RunInfo]] = {}
    for run in sorted(runs, key=lambda run: run.created):
        if run.status == "finished" and (name := run.facts.get("configuration")):
            found.setdefault(name, {})[run.facts.get("seed", 0)] = run
    return [list(seeds.values()) for seeds in found.values() if len(seeds) > 1]


def seeds_line(headlines: Sequence[Headline], what: str = "seeds", names: Sequence[str] = ("success", "reward")) -> str:
    """Format means with Student's t intervals: `3 seeds: success 62 % (41 to 83), reward 0.58 (0.4 to 0.76)`."""
    from ...engine.evaluation.statistics import mean_interval  # imported here: most lists show no seeds

    parts = []
    for name in names:
        values = [value for h in headlines if (value := getattr(h, name)) is not None]
        if len(values) == len(headlines) > 1:
            i = mean_interval(values)
            written, bound = (percent, percent_number) if name == "success" else (number, number)
            parts.append(f"{name} {written(i.estimate)}{within((i.low, i.high), bound)}")
    return f"{len(headlines)} {what}" + (f": {', '.join(parts)}" if parts else "")


def over_seeds(row: RunRow, rows: Mapping[str, RunRow]) -> str:
    """Return the mean over the seeds of a run's configuration, among `rows` by path. Empty for a single seed."""
    name = row.info.facts.get("configuration")
    if not name:  # keeps the key press fast: without seeds, there is no need to sort all runs
        return ""
    same = (r.info for r in rows.values() if r.info.facts.get("configuration") == name)
    for seeds in by_configuration(same):
        if row.info in seeds:
            return seeds_line([rows[run.path].headline for run in seeds])
    return ""
