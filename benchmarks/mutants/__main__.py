"""The share of arithmetic faults in TRL's GRPOTrainer that `check --recompute` finds in the record of `attach`.

    python -m benchmarks.mutants

Each mutant is a one-line change of the installed trainer's source. A small training with it runs in a process of its
own, `attach` records it, and `check --recompute` judges the record alone. Unmodified trainings measure false alarms:
ten configurations, and the settings of each mutant. A mutant that leaves the weights as they were counts as well: the
share is over all of them. Outcomes are kept in ~/.cache/grpo-tui/mutants.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .catalogue import CONFIGURATIONS, MUTATIONS, Mutation
from .training import Outcome, run, source_of

ROWS = Path("~/.cache/grpo-tui/mutants.jsonl").expanduser()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="mutants and configurations whose name contains this")
    parser.add_argument("--keep", type=Path, help="a folder for the records")
    given = parser.parse_args()
    mutants = [(family, m) for family, all_ in MUTATIONS.items() for m in all_ if given.only in m.name]
    for _, mutation in mutants:
        source_of(mutation)
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(given.keep or Path(folder))
        clean = list(runner.unmodified(given.seeds, given.only))
        rows = [row for seed in range(given.seeds) for row in runner.mutants(mutants, seed)]
    report(rows, clean + runner.plain)


class Runner:
    """Runs trainings one after another and stores their outcomes. folder: for the records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain: list[dict[str, Any]] = []
        """Unmodified trainings with the settings of mutants."""
        self._plain: dict[str, Outcome] = {}
        self._count = 0

    def unmodified(self, seeds: int, only: str) -> Iterator[dict[str, Any]]:
        for name, settings in CONFIGURATIONS.items():
            if only in name:
                for seed in range(seeds):
                    yield self._row("unmodified", name, settings, seed, self._run(None, settings, seed))

    def mutants(self, mutants: list[tuple[str, Mutation]], seed: int) -> Iterator[dict[str, Any]]:
        for family, mutation in mutants:
            settings = mutation.settings
            key = json.dumps([seed, dict(settings)], sort_keys=True)
            if key not in self._plain:
                self._plain[key] = self._run(None, settings, seed)
                self.plain.append(self._row("unmodified", "settings of mutants", settings, seed, self._plain[key]))
            outcome = self._run(mutation, settings, seed)
            changed = outcome.weights != self._plain[key].weights
            yield {**self._row(family, mutation.name, settings, seed, outcome), "changed": changed}

    def _run(self, mutation: Mutation | None, settings: Mapping[str, Any], seed: int) -> Outcome:
        self._count += 1
        return run(mutation, settings, seed, self.folder / f"{self._count:03}")

    def _row(self, family: str, name: str, settings: Mapping[str, Any], seed: int, outcome: Outcome) -> dict[str, Any]:
        row = {"family": family, "name": name, "seed": seed, **asdict(outcome), "settings": dict(settings)}
        ROWS.parent.mkdir(parents=True, exist_ok=True)
        with ROWS.open("a") as file:
            file.write(json.dumps({**row, "time": time.time(), "record": f"{self._count:03}"}) + "\n")
        mark = outcome.error or outcome.found or "nothing differs"
        print(f"{family:11} {name:46} {outcome.seconds:5.1f} s  {outcome.numbers:6,}  {mark}", flush=True)
        return row


def report(rows: list[dict[str, Any]], clean: list[dict[str, Any]]) -> None:
    """Print the share of mutants that were found, by family, and the false alarms."""
    print(f"\n{'family':11} {'found':>9}  95 % interval (Wilson)")
    for family in [*MUTATIONS, "all"]:
        mine = [row for row in rows if family in (row["family"], "all")]
        if mine:
            found = sum(bool(row["found"]) for row in mine)
            low, high = wilson(found, len(mine))
            print(f"{family:11} {found:4} / {len(mine):2}  {found / len(mine):.2f} ({low:.2f} to {high:.2f})")
    for row in rows:
        if not row["found"]:
            why = row["error"] or ("the weights differ" if row["changed"] else "the weights are the same")
            print(f"missed: {row['family']}: {row['name']} ({why})")
    alarms = [row for row in clean if row["found"] or row["error"]]
    low, high = wilson(len(alarms), len(clean))
    print(f"unmodified trainings with an alarm: {len(alarms)} of {len(clean)} ({low:.2f} to {high:.2f})")


def wilson(found: int, of: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    z, share = 1.96, found / of
    centre = share + z * z / (2 * of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (centre - half) / (1 + z * z / of), (centre + half) / (1 + z * z / of)


if __name__ == "__main__":
    main()
