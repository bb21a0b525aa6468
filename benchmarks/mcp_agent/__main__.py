"""Copy recorded trainings under neutral names, and let the agent find the cause of each."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from benchmarks.diagnosis.recipes import HEALTHY, RECIPES, Recipe
from benchmarks.diagnosis.training import Trained, trained

from . import __doc__ as about
from .agent import Conclusion, agent

COPIED = ("config.yaml", "run.json", "record.sqlite")


async def ask(runs: Mapping[str, Trained]) -> dict[str, Conclusion]:
    """Return the agent's conclusions by the names of the copies."""
    with tempfile.TemporaryDirectory() as folder:
        for name, run in runs.items():
            (Path(folder) / name).mkdir()
            for file in COPIED:
                shutil.copy(run.folder / file, Path(folder) / name / file)
        async with agent(Path(folder)) as asked:
            return {name: await asked.conclude(name) for name in await asked.runs()}


def _right(recipe: Recipe, cause: str) -> bool:
    return cause in recipe.causes if recipe.family != HEALTHY else not cause


def main() -> None:
    """Print a line for each run, then the totals."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="faults; 0: all, and the healthy kinds")
    parser.add_argument("--seed", type=int, default=0, help="which are drawn, and in which order")
    given = parser.parse_args()
    faults = [recipe for recipe in RECIPES.values() if recipe.family != HEALTHY or not given.runs]
    kept = [run for recipe in faults if (run := trained(recipe, 0)) is not None]
    if not kept:
        sys.exit("there are no trainings: run `python -m benchmarks.diagnosis train --seeds 1` first")
    drawn = random.Random(given.seed).sample(kept, min(given.runs, len(kept)) or len(kept))
    runs = {f"run-{number:02}": run for number, run in enumerate(drawn)}
    found = asyncio.run(ask(runs))
    print(f"{'fault':18}{'cause':26}{'right':>6}{'calls':>7}{'kB':>7}  evidence")
    for name, run in runs.items():
        f, right = found[name], _right(run.recipe, found[name].cause)
        print(
            f"{run.recipe.name:18}{f.cause or '-':26}{'yes' if right else 'no':>6}{f.calls:>7}{f.size / 1e3:>7.0f}",
            end="",
        )
        print(f"  {f.support or 'none'}")
    for kind, split in (("faults", False), ("healthy", True)):
        of = [(run.recipe, found[name]) for name, run in runs.items() if (run.recipe.family == HEALTHY) == split]
        if of:
            right, first = (sum(_right(r, getattr(f, name)) for r, f in of) for name in ("cause", "first"))
            print(
                f"{kind}: {right} of {len(of)} right ({first} by the first finding alone), "
                f"{sum(bool(f.support) for _, f in of)} with evidence of the agent's own, "
                f"{fmean(f.calls for _, f in of):.1f} calls and {fmean(f.size for _, f in of) / 1e3:.0f} kB a run"
            )


if __name__ == "__main__":
    main()
