"""Check micro-batches: their rollouts, ratios and masks, the loss, its gradient and its metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ...runs.updates import Block
from ..items import RecordedRollout
from ..ledger import SINGLE, Report
from .generation import within
from .loss import ExpectedLoss, LossRow, expected, metrics
from .settings import Settings

LOSS = 2e-4
"""Tolerance relative to the sum of absolute terms, for float32 sums over thousands of tokens of either sign."""
COARSER = {"bfloat16": 128.0, "float16": 16.0}
"""The factor on tolerances for coarser number formats."""
OLD_WINDOW = (1, 10)
"""The first TRL version known to divide token losses by one accumulation window."""
SAME_POLICY = {"float32": 2e-3}
"""The maximum mean difference between one policy's log-probs in two forward passes, by number format."""
COARSE = 0.1
KEPT = {True: "there", False: "missing"}
NOT_ZERO = "not 0 for some token"
KINDS = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")


class UpdateCheck:
    """Checks micro-batches one after another. resumed: whether the record begins in the middle of a training."""

    def __init__(self, report: Report, settings: Settings, resumed: bool) -> None:
        self.report = report
        self.settings = settings
        self.resumed = resumed
        self._uses: Counter[str] = Counter()
        self._generation: dict[str, Block] = {}
        """The last generation of each process."""
        self._moved: set[int] = set()
        """Steps whose gradient was not zero."""
        if settings.aux_loss:
            report.given["loss"] = "the loss of the router is not recorded; the gradient is checked"
        if settings.use_adaptive_entropy:
            report.given["loss"] = "the adaptive weight of the entropy is not followed; the gradient is checked"
        if settings.processes > 1:
            report.given["metrics of the loss"] = "they are means over several processes"

    def begin(self, blocks: Sequence[Block]) -> None:
        """Begin a new generation. blocks: the parts of the processes."""
        for block in blocks:
            last = self._generation.get(block.process)
            if last is not None and not self.resumed:
                for id_ in last.data["ids"]:
                    place = f"step {last.step}, rollout {id_}"
                    self.report.same(place, "uses in the loss", self._uses[id_], self.settings.num_iterations)
            self._generation[block.process] = block
            self.resumed = False
        self._uses.clear()

    def check(self, block: Block, number: int, items: Mapping[str, RecordedRollout]) -> None:
        """Check a micro-batch. number: its position in the step."""
        place = f"step {block.step}, micro-batch {number + 1}"
        rows = list(rows_of(block))
        for row in rows:
            self._uses[row.id] += 1
            item = items.get(row.id)
            self.report.same(place, "rollouts in the loss that were not sampled", int(item is None), 0)
            if item is None:
                continue
            where = f"{place}, rollout {row.id}"
            self.report.number(where, "advantage in the loss", row.advantage, item.record.advantage, tolerance=SINGLE)
            uses = self._uses[row.id]
            self.report.same(where, "uses in the loss", uses, min(uses, self.settings.num_iterations))
            self._policies(where, row, same_step=item.row.step == block.step)
        if block.data["by_token"] or self.settings.loss_type not in KINDS:
            self.report.given["loss"] = f"advantages by token, or loss {self.settings.loss_type}, are not TRL's"
            return
        if self.settings.corrected and self.settings.loss_type == "vespo":
            return
        uneven = self.settings.steps_per_generation != block.data["accumulated"]
        if uneven and self.settings.version < OLD_WINDOW and self.settings.loss_type in ("dapo", "cispo", "vespo"):
            self.report.given["loss"] = f"TRL {self.settings.trl} divides by the tokens of the whole generation"
            return
        # the generation holds the number of tokens that the loss divides by
        generation = self._generation.get(block.process, block)
        coarse = COARSER.get(block.data["dtype"], 1.0)
        result = expected(rows, self.settings, block.data["accumulated"], generation.data["items"], coarse)
        self._loss(place, block, rows, result, coarse)
        if self.settings.beta and not self.settings.sync_ref_model:
            self._reference(place, block.step, rows)
        if any(g for row in rows for g in row.gradient):
            self._moved.add(block.step)

    def _loss(self, place: str, block: Block, rows: Sequence[LossRow], result: ExpectedLoss, coarse: float) -> None:
        scale = block.data["scale"] or 1.0
        largest = max((abs(g) for own in result.gradients for g in own), default=0.0)
        if not self.settings.scaled and block.data["scale"] is not None:
            self.report.number(place, "factor of the loss", block.data["scale"], 1.0)
        for row, right, near in zip(rows, result.gradients, result.near, strict=True):
            where = f"{place}, rollout {row.id}"
            recorded = [r if close else g / scale for g, r, close in zip(row.gradient, right, near, strict=True)]
            self.report.numbers(
                where, "gradient of the loss for the log-prob", recorded, right, tolerance=LOSS * coarse, size=largest
            )
            self.report.number(where, "gradient of masked tokens", row.outside, 0.0, tolerance=1e-9, size=largest)
        if not self.settings.aux_loss and not self.settings.use_adaptive_entropy:
            size = result.size + 1e-6
            self.report.number(place, "loss", block.data["loss"], result.loss, tolerance=LOSS * coarse, size=size)
        if self.settings.processes == 1:
            for name, (low, high) in metrics(rows, result, self.settings).items():
                within(self.report, place, f"metric {name}", block.data["metrics"].get(name), low, high, coarse)

    def _policies(self, where: str, row: LossRow, same_step: bool) -> None:
        """Check that log-probs of other policies are present, and that old ones match this policy before its update."""
        if not self.settings.replaced:
            old, reference = KEPT[row.old is not None], KEPT[row.reference is not None]
            self.report.same(where, "log-probs of the sampling policy", old, KEPT[self.settings.keeps_old])
            self.report.same(where, "log-probs of the reference", reference, KEPT[self.settings.beta != 0])
        if row.old is None or not same_step or self.settings.dropout or not row.count:
            return
        pairs = list(_masked(row.old, row))
        mean = math.fsum(abs(a - b) for a, b in pairs) / len(pairs)
        mixed = self.settings.bf16 or self.settings.fp16
        limit = COARSE if mixed else SAME_POLICY.get(self.settings.dtype, COARSE)
        right = math.fsum(b for _, b in pairs)
        recorded = math.fsum(a for a, _ in pairs) if mean > limit else right
        self.report.number(where, "sum of log-probs before the update", recorded, right)

    def _reference(self, place: str, step: int, rows: Sequence[LossRow]) -> None:
        """Check that the reference did not move with the policy."""
        if self.settings.dtype != "float32" or len([s for s in self._moved if s < step]) < 2:
            return
        pairs = [pair for row in rows if row.reference is not None for pair in _masked(row.reference, row)]
        moves = bool(pairs) and max(abs(a - b) for a, b in pairs) < 1e-7
        self.report.same(place, "log π_ref − log π", "0 for all tokens" if moves else NOT_ZERO, NOT_ZERO)


def _masked(values: Sequence[float], row: LossRow) -> Iterator[tuple[float, float]]:
    for value, logp, mask in zip(values, row.logps, row.mask, strict=True):
        if mask and not math.isnan(value):
            yield value, logp


def rows_of(block: Block) -> Iterator[LossRow]:
    """Yield the rows of a micro-batch."""
    offset = 0
    for facts in block.data["rows"]:
        end = offset + facts["tokens"]
        part: Mapping[str, object] = {name: values[offset:end] for name, values in block.arrays.items()}
        offset = end
        yield LossRow(
            id=facts["id"],
            advantage=facts["advantage"],
            logps=part["logps"],
            mask=part["mask"] if "mask" in part else [1.0] * facts["tokens"],
            gradient=part["gradient"],
            outside=facts["outside"],
            old=part.get("old_per_token_logps"),
            reference=part.get("ref_per_token_logps"),
            sampled=part.get("sampling_per_token_logps"),
            weights=part.get("importance_sampling_ratio"),
            entropies=part.get("entropies"),
            entropy=facts["entropy"],
        )
