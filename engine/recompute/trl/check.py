"""Check the record of a TRL training step by step: groups and advantages, then each micro-batch and each log."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ...runs.durable import read_json
from ...runs.paths import RUN_FILE
from ...runs.read.reader import RunReader
from ...runs.updates import FOLDER, Block, read_updates
from ..items import RecordedRollout, steps_of
from ..ledger import SINGLE, Report
from .generation import GenerationCheck
from .settings import FORMULAS, Settings, settings_of
from .update import UpdateCheck


def is_trl(reader: RunReader) -> bool:
    """Return whether a record declares TRL settings."""
    return (reader.run_dir / FOLDER).is_dir() or "scale_rewards" in _config(reader)


def _config(reader: RunReader) -> Mapping[str, object]:
    facts = read_json(reader.run_dir / RUN_FILE).get("facts")
    config = facts.get("config") if isinstance(facts, Mapping) else None
    return config if isinstance(config, Mapping) else {}


def recompute_trl(reader: RunReader) -> Report:
    """Recompute every number of a training run that `grpo_tui.trl.attach` recorded."""
    blocks = list(read_updates(reader.run_dir))
    declared = [block.data for block in blocks if block.kind == "settings"]
    settings = settings_of(declared[0] if declared else _config(reader))
    report = Report()
    report.given["log-probs and rewards of functions"] = "they come from models and code that are not run here"
    if not declared:
        report.given["loss"] = "the record lacks its inputs"
    if settings.replaced:
        names = ", ".join(settings.replaced)
        report.given["formulas"] = f"{settings.trainer} replaces {names}: they are compared with TRL's"
    if settings.version < FORMULAS:
        report.given["formulas"] = f"they are those of TRL 1.16, and the training had TRL {settings.trl}"
    by_step: dict[int, list[Block]] = defaultdict(list)
    for block in blocks:
        by_step[block.step].append(block)
    walk = Walk(report, settings, resumed=bool(declared) and min(by_step) > 1)
    for step, items in steps_of(reader):
        for missing in [s for s in sorted(by_step) if s < step]:
            walk.step(missing, [], by_step.pop(missing))
        walk.step(step, items, by_step.pop(step, []))
    for step in sorted(by_step):
        walk.step(step, [], by_step[step])
    return report


@dataclass
class Walk:
    """The checks and their state from earlier steps. resumed: whether the record begins in the middle of a training."""

    report: Report
    settings: Settings
    resumed: bool
    items: dict[str, RecordedRollout] = field(default_factory=dict)
    """Rollouts by id that micro-batches may still use."""
    sums: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Metrics since the last log, by name."""
    losses: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """The loss of each step since the last log."""

    def __post_init__(self) -> None:
        self.generations = GenerationCheck(self.report, self.settings)
        self.updates = UpdateCheck(self.report, self.settings, self.resumed)

    def step(self, step: int, items: Sequence[RecordedRollout], blocks: Sequence[Block]) -> None:
        lag = self.settings.steps_per_generation * self.settings.num_iterations
        self.items = {id_: i for id_, i in self.items.items() if (i.row.step or 0) >= step - lag}
        self.items |= {item.row.id: item for item in items}
        together = merged([b for b in blocks if b.kind == "generation"])
        if not together and items:
            self.generations.rollouts(items)
        for number, block in enumerate(together):
            self.generations.check(block, self.items)
            own = blocks_of(blocks, "generation")
            self.updates.begin([per[number] for per in own if number < len(per)])
            self._keep(block.data["metrics"])
        for per in blocks_of(blocks, "loss"):
            for number, block in enumerate(per):
                self.updates.check(block, number, self.items)
                if self.settings.processes == 1:
                    self._keep(block.data["metrics"])
                    self.losses[step] += float(block.data["loss"])
        for block in blocks:
            if block.kind == "log":
                self._log(block)

    def _keep(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.sums[name].append(float(value))

    def _log(self, block: Block) -> None:
        """Compare logged numbers with the means since the last log."""
        logged: Mapping[str, float] = block.data["metrics"]
        place = f"step {block.step}"
        if self.settings.processes == 1:
            for name, values in self.sums.items():
                known = [v for v in values if not math.isnan(v)]
                if known and name in logged and name != "num_tokens":
                    self.report.number(place, f"logged {name}", logged[name], fmean(known), tolerance=SINGLE)
            if self.losses and "loss" in logged and all(map(math.isfinite, self.losses.values())):
                right = fmean(self.losses.values())
                self.report.number(place, "logged loss", logged["loss"], right, tolerance=1e-4, size=1.0)
        self.sums.clear()
        self.losses.clear()


def blocks_of(blocks: Sequence[Block], kind: str) -> list[list[Block]]:
    """Return one list per process with its blocks of a kind, in order."""
    found: dict[str, list[Block]] = {}
    for block in blocks:
        if block.kind == kind:
            found.setdefault(block.process, []).append(block)
    return list(found.values())


def merged(blocks: Sequence[Block]) -> list[Block]:
    """Join the parts of a generation that processes scored together. Keep the metrics of the first process."""
    joined = []
    for parts in zip(*blocks_of(blocks, "generation"), strict=False):
        first = parts[0].data
        lists = {
            k: [v for part in parts for v in part.data[k]] for k, value in first.items() if isinstance(value, list)
        }
        joined.append(Block("generation", parts[0].step, {**first, **lists}, process=parts[0].process))
    return joined
