"""Run the product's `check` on the corpus and count the causes that it finds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean, median, stdev

from grpo_tui.engine.imports.check import diagnose
from grpo_tui.engine.launch.settings import read_config
from grpo_tui.engine.runs.read.reader import RunReader

from .corpus import CORPUS
from .others import OTHERS
from .recipes import HEALTHY, SMALL_MODELS, Recipe
from .training import Trained, trained

WARNINGS = ("warning", "failure")
RESAMPLES = 10_000


@dataclass(frozen=True)
class Judged:
    """The findings of one training: detectors with a warning, in order, and the step at which each began."""

    run: Trained
    found: Sequence[tuple[str, int]]
    others: Mapping[str, Sequence[str]]

    @property
    def hits(self) -> list[tuple[str, int]]:
        """The findings that name the cause."""
        return [(name, step) for name, step in self.found if name in self.run.recipe.causes]

    @property
    def first(self) -> bool:
        """Whether the first finding names the cause."""
        return bool(self.found) and self.found[0][0] in self.run.recipe.causes


def evaluate(names: Sequence[str], seeds: int) -> None:
    """Print a line for each recipe, then the means of each split."""
    runs = [run for name in names for seed in range(seeds) if (run := trained(CORPUS[name], seed)) is not None]
    judged: dict[str, list[Judged]] = {}
    for run in runs:
        judged.setdefault(run.recipe.name, []).append(_judge(run))
    tuned = (HEALTHY, "development", "test", "unseen", "later", "fresh", "withheld", "trackers")
    for split in (*tuned, "field", "reports", "threads", "issues", "practice", *SMALL_MODELS):
        rows = [j for j in judged.values() if j[0].run.recipe.split == split]
        if rows and split.startswith(HEALTHY):
            _healthy(rows)
        elif rows:
            _faults(split, rows, judged)


def _judge(run: Trained) -> Judged:
    with closing(RunReader(run.folder)) as reader:
        causes = [f for f in diagnose(reader, read_config(run.folder)).found() if f.finding.severity in WARNINGS]
        others = {name: read(reader) for name, read in OTHERS.items()}
    return Judged(run, [(f.finding.detector, f.step or 0) for f in causes], others)


def admitted(recipe: Recipe, judged: Mapping[str, Sequence[Judged]]) -> bool:
    """Return whether a fault lowers held-out success by more than three standard deviations of its world's healthy
    trainings."""
    every = [j.run for row in judged.values() for j in row]
    healthy = [r.after for r in every if r.recipe.family.startswith(HEALTHY) and r.recipe.world == recipe.world]
    if len(healthy) < 3:
        return False
    return fmean(j.run.after for j in judged[recipe.name]) < fmean(healthy) - 3 * stdev(healthy)


def _healthy(rows: Sequence[Sequence[Judged]]) -> None:
    print(f"{'healthy':16}{'seeds':>6}{'held-out':>16}{'false warnings a run':>22}")
    for row in rows:
        names = sorted({name for j in row for name, _ in j.found})
        print(f"{_line(row)}{fmean(len(j.found) for j in row):>22.2f}  {', '.join(names)}")
    every = [j for row in rows for j in row]
    print(f"{'all':16}{len(every):>6}{'':16}{fmean(len(j.found) for j in every):>22.2f}")
    for name in OTHERS:
        print(f"  {name}: {fmean(len(j.others[name]) for j in every):.2f} false warnings a run")


def _faults(split: str, rows: Sequence[Sequence[Judged]], judged: Mapping[str, Sequence[Judged]]) -> None:
    print(f"\n{split:16}{'seeds':>6}{'held-out':>16}{'recall':>8}{'first':>7}{'delay':>7}")
    kept = []
    for row in rows:
        fits = admitted(row[0].run.recipe, judged)
        kept += [row] if fits else []
        steps = [max(min(step for _, step in j.hits) - 1, 0) for j in row if j.hits]
        delay = f"{median(steps):.0f}" if steps else "-"
        seen = sorted({name for j in row for name, _ in j.found})
        print(
            f"{_line(row)}{_recall(row):>8.2f}{fmean(j.first for j in row):>7.2f}{delay:>7}"
            f"  {', '.join(seen)}{'' if fits else '  (not admitted)'}"
        )
    if not kept:
        return
    every = [j for row in kept for j in row]
    steps = [max(min(step for _, step in j.hits) - 1, 0) for j in every if j.hits]
    found, first = [_recall(row) for row in kept], [fmean(j.first for j in row) for row in kept]
    print(
        f"{'all admitted':16}{len(every):>6}{'':16}{fmean(found):>8.2f}{fmean(first):>7.2f}{median(steps or [0]):>7.0f}"
        f"  95 % over {len(kept)} faults: found {_interval(found)}, first {_interval(first)}"
    )
    for name in OTHERS:
        any_ = fmean(fmean(bool(j.others[name]) for j in row) for row in kept)
        named = [fmean(OTHERS[name].names(j.others[name], j.run.recipe.causes) for j in row) for row in kept]
        print(f"  {name}: a warning in {any_:.2f}, the cause in {fmean(named):.2f} ({_interval(named)})")


def _interval(values: Sequence[float]) -> str:
    """Return the 95 % interval of the mean by bootstrap over faults."""
    draw = random.Random(0)
    means = sorted(fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return f"{means[RESAMPLES // 40]:.2f} to {means[-RESAMPLES // 40]:.2f}"


def _line(row: Sequence[Judged]) -> str:
    run = row[0].run
    held_out = f"{fmean(j.run.before for j in row):.2f} -> {fmean(j.run.after for j in row):.2f}"
    return f"{run.recipe.name:16}{len(row):>6}{held_out:>16}"


def _recall(row: Sequence[Judged]) -> float:
    return fmean(bool(j.hits) for j in row)
