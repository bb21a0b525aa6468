"""Check advantages: the terms of each comparison, their sum, and the advantages in the loss.

`rewards.advantages` computes the terms from the recorded rewards. They must equal the recorded terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...configs.sections.rewards import SHAPED
from ...configs.sections.training import METHODS, TrainingConfig
from ...rewards.advantages import AdvantageMethod, packaged_method
from ...rewards.advantages.base import Group, Returns, learnable, parts_of, states_of
from ...rewards.advantages.teacher import TEACHER, with_teacher
from ...rewards.breakdown import GOAL, AdvantageFormula, AdvantageTerm
from .items import RecordedRollout, groups_of
from .ledger import SINGLE, Report

BATCH = "batch"
"""The name of the term for the batch mean (`gdpo`)."""


class AdvantageCheck:
    """Checks advantages, one step after another."""

    def __init__(self, training: TrainingConfig, report: Report) -> None:
        self.training = training
        self.report = report
        self.filters = training.replay.mode != "off"
        self.on_last_token = training.advantages == "reward" and training.distillation.teacher is None
        """Whether only the last token of a turn carries its advantage."""
        self.method: AdvantageMethod | None = None
        if training.advantages in METHODS:
            self.method = packaged_method(training.advantages, training.compare_shaping)
        else:
            report.given["returns that are compared"] = (
                f"{training.advantages} computes them, and its code is not run here"
            )

    def step(self, items: Sequence[RecordedRollout], replayed: int) -> list[RecordedRollout]:
        """Check one step and return the rollouts of groups with signal. replayed: how many earlier rollouts it drew."""
        groups = groups_of(items)
        if self.method is None:
            uses = [[i.record.use for i in group] for group in groups]
            carry = [any(use is not None and use.kind == "trained" for use in group) for group in uses]
        else:
            returns = [[returns_of(item) for item in group] for group in groups]
            computed = self.method.compare(returns, self.training.scale_advantages)
            lead = _mean_lead([item for item in items if item.scorable])
            for group, formulas in zip(groups, computed, strict=True):
                for item, formula in zip(group, formulas, strict=True):
                    self._formula(item, self._taught(item, formula, lead))
            carry = signals(self.method, returns, self.training)
        return self._signal_of(groups, carry, replayed)

    def _taught(
        self, item: RecordedRollout, formula: AdvantageFormula | None, lead: tuple[float, int] | None
    ) -> AdvantageFormula | None:
        """Add the terms of the distillation teacher to the formula, if there is a teacher.

        lead: the teacher's mean lead over the step, and the number of rollouts (None: tokens were not recorded).
        """
        distillation = self.training.distillation
        if distillation.teacher is None or formula is None:
            return formula
        counts = item.tokens_by_turn
        if lead is not None and item.teacher_lead is not None and item.tokens is not None:
            sums = [0.0] * len(counts)
            for turn, value in zip(item.tokens.turn, item.teacher_lead, strict=True):
                sums[max(turn, 0)] += value
            leads = [s / max(n, 1) for s, n in zip(sums, counts, strict=True)]
            return with_teacher(formula, leads, *lead, distillation.weight, distillation.with_reward)
        self.report.given["the teacher's log-probs"] = "the tokens of this run were not recorded"
        recorded = item.record.formula
        steps = [() if recorded is None else recorded.terms(t) for t in range(len(counts))]
        terms = [next((term for term in step if term.name == TEACHER), None) for step in steps]
        leads, (mean, size) = [term.value if term else 0.0 for term in terms], (0.0, 0)
        if terms and terms[0] is not None:
            mean, size = terms[0].mean, terms[0].size
        return with_teacher(formula, leads, mean, size, distillation.weight, distillation.with_reward)

    def _formula(self, item: RecordedRollout, computed: AdvantageFormula | None) -> None:
        recorded = item.record.formula
        steps = () if computed is None else computed.steps
        self.report.same(item.place, "terms of the advantage", len(recorded.steps) if recorded else 0, len(steps))
        if recorded is None or len(recorded.steps) != len(steps):
            return
        self.report.same(item.place, "method of the advantage", recorded.method, self.training.advantages)
        for t, (terms, right) in enumerate(zip(recorded.steps, steps, strict=True)):
            place = item.place if len(steps) == 1 else f"{item.place}, turn {t + 1}"
            by_name = {term.name: term for term in right}
            self.report.same(place, "terms of the advantage", {term.name for term in terms}, {*by_name})
            for term in terms:
                if term.name in by_name and (term.name != BATCH or not self._several_batches):
                    self._term(place, term, by_name[term.name])
            # A plain return comes from float32. Divided by a small deviation, the sum has no reliable digits left.
            if right[0].name and not self._several_batches:
                sums = [sum(t.result(f.epsilon) for t in f.terms(t_)) for f, t_ in ((recorded, t), (computed, t)) if f]
                self.report.number(place, "sum of the terms", *sums, tolerance=1e-4, size=1.0)

    @property
    def _several_batches(self) -> bool:
        """Whether a step is scored in several batches, so that the common deviation is unknown."""
        return self.training.replay.mode == "dapo" and (
            self.training.scale_advantages == "batch" or self.training.advantages == "gdpo"
        )

    def _term(self, place: str, term: AdvantageTerm, right: AdvantageTerm) -> None:
        place = f"{place}, {term.name}" if term.name else place
        size = max(1.0, abs(right.value), abs(right.mean), right.std or 0.0)
        pairs: list[tuple[str, float | None, float | None]] = [
            ("return", term.value, right.value),
            ("mean of the group", term.mean, right.mean),
        ]
        if not (self._several_batches and (term.name in ("", GOAL) or self.training.advantages in ("gigpo", "tree"))):
            pairs.append(("std of the group", term.std, right.std))
        if not self._several_batches:
            pairs.append(("weight", term.weight, right.weight))
        for what, old, new in pairs:
            self.report.number(place, what, old, new, tolerance=SINGLE, size=size)
        self.report.same(place, "size of the group", term.size, right.size)

    def _signal_of(
        self, groups: Sequence[Sequence[RecordedRollout]], carry: Sequence[bool], replayed: int
    ) -> list[RecordedRollout]:
        """Check the advantages in the loss and return the rollouts of groups with signal (`carry`)."""
        signal: list[RecordedRollout] = []
        silent = 0
        for group, carries in zip(groups, carry, strict=True):
            signal += group if carries else []
            replaced = not carries and not all(item.record.trajectory.correct is True for item in group)
            for item in group:
                self._trained_on(item, carries, replaced=replaced and silent < replayed)
                silent += replaced
        return signal

    def _trained_on(self, item: RecordedRollout, signal: bool, replaced: bool) -> None:
        """Compare the advantages in the loss (by turn, by token, and as one number) and the rollout's mark."""
        kind = "trained"
        if not item.scorable:
            kind = "unscored"
        elif self.filters and not signal:
            kind = "replaced" if replaced and self.training.replay.mode == "ssr" else "filtered"
        own = item.record.use
        self.report.same(item.place, "use", own.kind if own else None, kind)
        counts, formula = item.tokens_by_turn, item.record.formula
        by_turn = [0.0] * len(counts)
        if kind == "trained" and formula is not None:
            by_turn = [formula.advantage(t) or 0.0 for t in range(len(counts))]
        shown = by_turn
        if self.on_last_token:
            shown = [a / max(n, 1) for a, n in zip(by_turn, counts, strict=True)]
        for t, (recorded, right) in enumerate(zip(item.record.step_advantages, shown, strict=False)):
            self.report.number(f"{item.place}, turn {t + 1}", "advantage", recorded, right, tolerance=SINGLE, size=1.0)
        tokens = sum(counts)
        mean = math.fsum(a * n for a, n in zip(shown, counts, strict=True)) / tokens if tokens else 0.0
        trained_on = mean if kind == "trained" else None
        for what, recorded, right in (
            ("advantage", item.record.advantage, mean),
            ("advantage in the list", item.row.advantage, mean),
            ("advantage trained on", None if own is None else own.advantage, trained_on),
        ):
            self.report.number(item.place, what, recorded, right, tolerance=SINGLE, size=1.0)
        self._tokens(item, by_turn)

    def _tokens(self, item: RecordedRollout, by_turn: Sequence[float]) -> None:
        tokens = item.tokens
        if tokens is None or tokens.advantages is None:
            return
        last = {turn: i for i, (turn, mask) in enumerate(zip(tokens.turn, tokens.agent_mask, strict=True)) if mask}
        lead, formula = item.teacher_lead, item.record.formula
        for i, (turn, mask, value) in enumerate(zip(tokens.turn, tokens.agent_mask, tokens.advantages, strict=True)):
            has = mask and turn >= 0 and (not self.on_last_token or last[turn] == i)
            right = by_turn[turn] if has else 0.0
            if has and lead is not None and formula is not None:
                turns = [t.value for t in formula.terms(turn) if t.name == TEACHER]
                right += self.training.distillation.weight * (lead[i] - sum(turns))
            self.report.number(f"{item.place}, token {i}", "advantage", value, right, tolerance=SINGLE, size=1.0)


def _mean_lead(items: Sequence[RecordedRollout]) -> tuple[float, int] | None:
    """Return the teacher's mean lead over the agent tokens of these rollouts, and the number of rollouts."""
    leads = [item.teacher_lead for item in items]
    if any(lead is None for lead in leads):
        return None
    tokens = sum(item.agent_tokens for item in items)
    return math.fsum(math.fsum(lead or ()) for lead in leads) / max(tokens, 1), len(items)


def signals(method: AdvantageMethod, returns: Sequence[Group], training: TrainingConfig) -> list[bool]:
    """Return which groups carry signal under these settings."""
    filters = training.replay.mode != "off"
    if training.distillation.teacher is not None:
        return [True] * len(returns)
    return learnable(
        method,
        returns,
        training.replay.min_group_std * filters,
        goal_only=filters and training.replay.signal == "task",
        solved=training.compare_shaping == "peers" and training.replay.mode == "ssr",
    )


def returns_of(item: RecordedRollout) -> Returns:
    """Return the returns of a recorded rollout that advantages compare."""
    breakdown = item.record.breakdown
    return Returns(
        turns=item.turn_rewards,
        unshaped=item.unshaped_rewards,
        parts=None if breakdown is None else parts_of(breakdown, SHAPED),
        right=item.record.trajectory.correct is True,
        scored=item.scorable,
        states=states_of(item.record.trajectory, len(item.tokens_by_turn)),
        branch=item.record.trajectory.branch,
    )
