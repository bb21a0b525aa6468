"""Advantages: what each return was compared with, what came of it, and what was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...configs.sections.rewards import SHAPED
from ...configs.sections.training import TrainingConfig
from ...rewards.breakdown import GOAL
from .items import Item, groups_of
from .ledger import SINGLE, Report

METHODS = ("group", "turn", "reward", "gdpo")
EPSILON = 1e-4
ROUNDING = 1e-6


class Advantages:
    """Checks the advantages of step after step. One scored batch a step, or several (`dapo`), whose common standard
    deviation is then not known."""

    def __init__(self, training: TrainingConfig, report: Report) -> None:
        self.training = training
        self.report = report
        self.filters = training.replay.mode != "off"
        self.by_task = self.filters and training.replay.signal == "task"
        if training.advantages not in METHODS:
            report.given["returns that are compared"] = (
                f"{training.advantages} computes them, and its code is not run here"
            )

    def step(self, items: Sequence[Item], replayed: int) -> list[Item]:
        """Everything of one step; replayed: how many earlier rollouts it drew. Returns the rollouts of groups that
        carry signal."""
        groups = groups_of(items)
        if self._apart(items):
            carry = self._parts(groups)
            if self.by_task:
                carry = [self._task_differs(g) or (self._solved(g) and by) for g, by in zip(groups, carry, strict=True)]
            return self._signal_of(groups, carry, replayed)
        every = [v for group in groups for column in self._columns(group) for _, v in column]
        batch_std = _std(every) if self.training.replay.mode != "dapo" else None
        carry = [self._formulas(group, batch_std) for group in groups]
        if self.by_task and self.training.advantages in METHODS:
            carry = [self._task_differs(group) for group in groups]
        return self._signal_of(groups, carry, replayed)

    def _task_differs(self, group: Sequence[Item]) -> bool:
        """Whether the rewards of task and environment are a reason to learn from a group."""
        rewards = [item.unshaped_rewards for item in group if item.scorable]
        if self.training.advantages == "reward":
            return any(v != 0 for row in rewards for v in row)
        columns = [[math.fsum(row) for row in rewards]]
        if self.training.advantages == "turn":
            longest = max(map(len, rewards), default=0)
            columns = [[math.fsum(row[t:]) for row in rewards if t < len(row)] for t in range(longest)]
        return self._spread(columns)

    def _solved(self, group: Sequence[Item]) -> bool:
        """Whether shaping alone is a reason to learn from a group, since all of it is right and it decides between
        equals."""
        equals = self.training.compare_shaping == "equals" and self.training.replay.mode == "ssr"
        totals = [math.fsum(item.unshaped_rewards) for item in group if item.scorable]
        return equals and _right(group) and max(totals) - min(totals) <= ROUNDING

    def _spread(self, columns: Sequence[Sequence[float]]) -> bool:
        differ = any(abs(v - math.fsum(c) / len(c)) > ROUNDING for c in columns for v in c)
        return (
            differ and max((_std(c) for c in columns), default=0.0) >= self.training.replay.min_group_std * self.filters
        )

    def _signal_of(self, groups: Sequence[Sequence[Item]], carry: Sequence[bool], replayed: int) -> list[Item]:
        """What was trained on; carry: which groups carry signal. Returns the rollouts of those."""
        signal: list[Item] = []
        silent = 0
        for group, carries in zip(groups, carry, strict=True):
            signal += group if carries else []
            gone = not carries and not _right(group)
            for item in group:
                self._trained_on(item, carries, replaced=gone and silent < replayed)
                silent += gone
        return signal

    def _apart(self, items: Sequence[Item]) -> bool:
        """Whether components are compared on their own; by `group` only where something shapes."""
        if self.training.advantages != "group" or self.training.compare_shaping == "group":
            return self.training.advantages == "gdpo"
        return any(name in SHAPED for item in items for name in _components(item))

    def _compared(self, item: Item) -> dict[str, tuple[float, float]]:
        """Weight and value of all that is compared on its own."""
        found = _components(item)
        if self.training.advantages == "gdpo":
            return found
        goal = {GOAL: (1.0, math.fsum(item.unshaped_rewards))}
        return goal | {name: value for name, value in found.items() if name in SHAPED}

    def _parts(self, groups: Sequence[Sequence[Item]]) -> list[bool]:
        """Each component of each rollout beside its equals, and by `gdpo` the sums over the batch."""
        carry: list[bool] = []
        sums: dict[str, float] = {}
        summed, dapo = self.training.advantages == "gdpo", self.training.replay.mode == "dapo"
        scale = "group" if summed else self.training.scale_advantages
        least = self.training.replay.min_group_std * self.filters
        whole = [math.fsum(i.unshaped_rewards) for group in groups for i in group if i.scorable]
        for group in groups:
            scored = [item for item in group if item.scorable]
            compared = {id(item): self._compared(item) for item in scored}
            carries = False
            for item in scored:
                names = compared[id(item)]
                formula = item.record.formula
                terms = {t.name: t for t in formula.steps[0]} if formula is not None and formula.steps else {}
                self.report.same(item.place, "terms of the advantage", {*terms} - {"batch"}, {*names})
                if formula is not None:
                    self.report.same(item.place, "method of the advantage", formula.method, self.training.advantages)
                total = 0.0
                for name in names:
                    having = [o for o in scored if name in compared[id(o)]]
                    alike = [o for o in having if name not in SHAPED or self._equals(o, item)]
                    values = [compared[id(o)][name][1] for o in alike]
                    weight, value = names[name]
                    mean = math.fsum(values) / len(values) if len(values) > 1 else value
                    std: float | None = _std(values)
                    carries |= abs(value - mean) > ROUNDING and weight * std >= least
                    term = terms.get(name)
                    if name == GOAL and scale == "none":
                        std = None
                    elif name == GOAL and scale == "batch":
                        std = term.std if dapo and term is not None else _std(whole)
                    total += weight * (value - mean) / (1.0 if std is None else std + EPSILON)
                    if term is not None:
                        place, largest = f"{item.place}, {name}", max(1.0, *map(abs, values))
                        for what, old, new in (("return", term.value, value), ("mean of the group", term.mean, mean)):
                            self.report.number(place, what, old, new, tolerance=SINGLE, size=largest)
                        self.report.number(place, "std of the group", term.std, std, tolerance=SINGLE, size=largest)
                        self.report.same(place, "size of the group", term.size, len(values))
                        if not summed:
                            self.report.number(place, "weight", term.weight, weight, tolerance=SINGLE, size=1.0)
                sums[item.row.id] = total
            carry.append(carries)
        if sums and not (summed and dapo):
            mean = math.fsum(sums.values()) / len(sums) if summed else 0.0
            divisor = _std(list(sums.values())) + EPSILON if summed else 1.0
            for item in (i for group in groups for i in group if i.scorable and i.record.formula is not None):
                computed, formula = (sums[item.row.id] - mean) / divisor, item.record.formula
                assert formula is not None
                right = formula.advantage(0) or 0.0
                self.report.number(item.place, "sum of the terms", right, computed, tolerance=1e-4, size=1.0)
        return carry

    def _equals(self, one: Item, other: Item) -> bool:
        return self.training.compare_shaping == "group" or _is_right(one) == _is_right(other)

    def _returns(self, item: Item) -> list[float]:
        """What is compared: one number a turn, or one for all."""
        rewards = item.turn_rewards
        if self.training.advantages == "group":
            return [math.fsum(rewards)]
        if self.training.advantages == "turn":
            return [math.fsum(rewards[t:]) for t in range(len(rewards))]
        return rewards

    def _columns(self, group: Sequence[Item]) -> list[list[tuple[Item, float]]]:
        """For each turn that has an advantage of its own, the returns of the rollouts that got there."""
        returns = [(item, self._returns(item)) for item in group if item.scorable]
        turns = max((len(r) for _, r in returns), default=0)
        return [[(item, r[t]) for item, r in returns if t < len(r)] for t in range(turns)]

    def _formulas(self, group: Sequence[Item], batch_std: float | None) -> bool:
        """Compare each term of each rollout. Returns whether the group carries signal."""
        if self.training.advantages not in METHODS:
            return any(item.own is not None and item.own.kind == "trained" for item in group)
        columns = self._columns(group)
        alone, scale = self.training.advantages == "reward", self.training.scale_advantages
        for item in group:
            formula = item.record.formula
            own = [t for t, column in enumerate(columns) if any(other is item for other, _ in column)]
            self.report.same(item.place, "terms of the advantage", len(formula.steps) if formula else 0, len(own))
            if formula is None or len(formula.steps) != len(own):
                continue
            self.report.same(item.place, "method of the advantage", formula.method, self.training.advantages)
            for t, terms in zip(own, formula.steps, strict=True):
                values = [v for _, v in columns[t]]
                value = next(v for other, v in columns[t] if other is item)
                mean, std, size = value, _std(values), len(values)
                if size > 1:
                    mean = math.fsum(values) / size
                if alone:
                    mean, std, size = 0.0, None, 1
                elif scale == "none":
                    std = None
                elif scale == "batch":
                    std = terms[0].std if batch_std is None else batch_std
                place, largest = f"{item.place}, turn {t + 1}", max(1.0, *map(abs, values))
                report = self.report.number
                report(place, "return", terms[0].value, value, tolerance=SINGLE, size=largest)
                report(place, "mean of the group", terms[0].mean, mean, tolerance=SINGLE, size=largest)
                report(place, "std of the group", terms[0].std, std, tolerance=SINGLE, size=largest)
                self.report.same(place, "size of the group", terms[0].size, size)
        if alone:
            return any(v != 0 for column in columns for _, v in column)
        return self._spread([[v for _, v in column] for column in columns])

    def _trained_on(self, item: Item, signal: bool, replaced: bool) -> None:
        """What the loss was given, by turn, by token, and as one number; and what the rollout is marked with."""
        kind = "trained"
        if not item.scorable:
            kind = "unscored"
        elif self.filters and not signal:
            kind = "replaced" if replaced and self.training.replay.mode == "ssr" else "filtered"
        own = item.own
        self.report.same(item.place, "use", own.kind if own else None, kind)
        counts, formula = item.tokens_by_turn, item.record.formula
        by_turn = [0.0] * len(counts)
        if kind == "trained" and formula is not None:
            by_turn = [formula.advantage(t) or 0.0 for t in range(len(counts))]
        if self.training.advantages == "reward":  # on the last token of the turn alone
            shown = [a / max(n, 1) for a, n in zip(by_turn, counts, strict=True)]
        else:
            shown = by_turn
        for t, (recorded, right) in enumerate(zip(item.record.step_advantages, shown, strict=False)):
            self.report.number(f"{item.place}, turn {t + 1}", "advantage", recorded, right, tolerance=SINGLE, size=1.0)
        tokens = sum(counts)
        mean = math.fsum(a * n for a, n in zip(shown, counts, strict=True)) / tokens if tokens else 0.0
        self.report.number(item.place, "advantage", item.record.advantage, mean, tolerance=SINGLE, size=1.0)
        self.report.number(item.place, "advantage in the list", item.row.advantage, mean, tolerance=SINGLE, size=1.0)
        used = None if own is None else own.advantage
        right = mean if kind == "trained" else None
        self.report.number(item.place, "advantage trained on", used, right, tolerance=SINGLE, size=1.0)
        if item.tokens is not None and item.tokens.advantages is not None:
            self._tokens(item, by_turn)

    def _tokens(self, item: Item, by_turn: Sequence[float]) -> None:
        tokens = item.tokens
        assert tokens is not None and tokens.advantages is not None
        last = {turn: i for i, (turn, mask) in enumerate(zip(tokens.turn, tokens.agent_mask, strict=True)) if mask}
        only_last = self.training.advantages == "reward"
        for i, (turn, mask, value) in enumerate(zip(tokens.turn, tokens.agent_mask, tokens.advantages, strict=True)):
            has = mask and turn >= 0 and (not only_last or last[turn] == i)
            right = by_turn[turn] if has else 0.0
            self.report.number(f"{item.place}, token {i}", "advantage", value, right, tolerance=SINGLE, size=1.0)


def _components(item: Item) -> dict[str, tuple[float, float]]:
    """Weight and sum of the normalised values of each component that carries weight."""
    found: dict[str, tuple[float, float]] = {}
    for step in item.record.breakdown.steps if item.record.breakdown is not None else ():
        for name, value in step.components.items():
            if value.weight and value.normalized is not None:
                found[name] = (value.weight, found.get(name, (0.0, 0.0))[1] + value.normalized)
    return found


def _right(group: Sequence[Item]) -> bool:
    return all(map(_is_right, group))


def _is_right(item: Item) -> bool:
    return item.record.trajectory.correct is True


def _std(values: Sequence[float]) -> float:
    """With Bessel's correction; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
