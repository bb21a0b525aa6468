"""How well advantages rank steps: `python -m benchmarks.credit [--seeds 20] [--groups 16]`.

The credit error is 1 − the rank correlation (Spearman) between the advantage that a method gives each step and its true
advantage Q(s, a) − V(s). 0 is a perfect order and 1 is none. Worlds and their policies are drawn from a seed and small
enough to solve exactly. Each row is a mean over seeds with its 95 % interval.

`tree` makes its own groups, in which rollouts branch, and is measured on the turns that it samples. `tree` has as many
rollouts as the others, and so fewer turns. `tree, equal` has further branches up to the same number of turns. `branch`
is no method of training: it is the estimate of `grpo-tui branch` from 16 continuations on each side of a step.
"""

from __future__ import annotations

import argparse
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from grpo_tui.configs.sections.training import METHODS
from grpo_tui.engine.evaluation.statistics import mean_interval
from grpo_tui.rewards.advantages import packaged_method
from grpo_tui.rewards.advantages.base import ComponentPart, Returns

ROLLOUTS = 8
CONTINUATIONS = 16
State = tuple[int, ...]
PLAIN = [name for name in METHODS if name != "tree"]
"""Methods whose rollouts are independent."""


class Outcome(NamedTuple):
    """A possible result of an action: its probability, the reward for the goal, the penalty, and the next state (None:
    the episode ends)."""

    chance: float
    goal: float
    penalty: float
    state: State | None


class World(ABC):
    """A finite decision process with a fixed random policy. A state starts with the prompt and the time, and every
    episode ends."""

    turns = 6
    actions = 3

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.policy, self.v, self.q = cache(self._policy), cache(self._v), cache(self._q)
        self.outcomes = cache(self._outcomes)

    @abstractmethod
    def start(self, prompt: int) -> State:
        """Return the first state of a prompt."""

    @abstractmethod
    def _outcomes(self, state: State, action: int) -> Sequence[Outcome]:
        """Return the possible results of an action."""

    def random(self, *about: object) -> random.Random:
        return random.Random(f"{self.seed} {type(self).__name__} {about}")

    def _policy(self, state: State) -> Sequence[float]:
        source = self.random("policy", state)
        drawn = [source.gammavariate(1.0, 1.0) + 0.05 for _ in range(self.actions)]
        return [d / sum(drawn) for d in drawn]

    def _q(self, state: State, action: int) -> float:
        """Return the exact value of an action: expected sum of all rewards to the end."""
        return sum(o.chance * (o.goal + o.penalty + self.v(o.state)) for o in self.outcomes(state, action))

    def _v(self, state: State | None) -> float:
        if state is None:
            return 0.0
        return sum(p * self.q(state, action) for action, p in enumerate(self.policy(state)))


class OneKey(World):
    """One of six turns decides; the others have no effect. The reward comes at the end."""

    def start(self, prompt: int) -> State:
        return prompt, 0, 0

    def _outcomes(self, state: State, action: int) -> Sequence[Outcome]:
        prompt, time, found = state
        if time == self.random(prompt).randrange(self.turns):
            found = int(action == 0)
        end = time + 1 == self.turns
        return [Outcome(1.0, float(end and found), 0.0, None if end else (prompt, time + 1, found))]


class Chain(World):
    """Every turn must be right. A wrong one fails the rollout at once."""

    def _policy(self, state: State) -> Sequence[float]:
        right = self.random("policy", state).uniform(0.6, 0.98)
        return [right, *[(1 - right) / (self.actions - 1)] * (self.actions - 1)]

    def start(self, prompt: int) -> State:
        return prompt, 0

    def _outcomes(self, state: State, action: int) -> Sequence[Outcome]:
        prompt, time = state
        if action:
            return [Outcome(1.0, 0.0, 0.0, None)]
        end = time + 1 == self.turns
        return [Outcome(1.0, float(end), 0.0, None if end else (prompt, time + 1))]


class Dense(World):
    """Every turn pays at once and has no lasting effect."""

    def start(self, prompt: int) -> State:
        return prompt, 0

    def _outcomes(self, state: State, action: int) -> Sequence[Outcome]:
        prompt, time = state
        pays = self.random(state, action).random()
        after = None if time + 1 == self.turns else (prompt, time + 1)
        return [Outcome(pays, 1.0, 0.0, after), Outcome(1 - pays, 0.0, 0.0, after)]


class Walk(World):
    """A walk on a line with slips. A wrong step can be undone. The reward is for reaching the end in time."""

    turns = 8
    actions = 2

    def start(self, prompt: int) -> State:
        return prompt, 0, self.random(prompt).choice([1, 2, 3])

    def _outcomes(self, state: State, action: int) -> Sequence[Outcome]:
        prompt, time, place = state

        def at(new: int, chance: float) -> Outcome:
            if new == 5:
                return Outcome(chance, 1.0, 0.0, None)
            return Outcome(chance, 0.0, 0.0, None if time + 1 == self.turns else (prompt, time + 1, max(0, new)))

        ahead, back = (0.9, 0.1) if action == 0 else (0.1, 0.9)
        return [at(place + 1, ahead), at(place - 1, back)]


class Tools(World):
    """Looking improves the answer. Broken calls cost a penalty and have no other effect. Actions: look, broken call,
    answer."""

    turns = 5

    def start(self, prompt: int) -> State:
        return prompt, 0, 0

    def _outcomes(self, state: State, action: int) -> Sequence[Outcome]:
        prompt, time, looked = state
        last = time + 1 == self.turns
        if action == 2:
            right = min(0.95, 0.15 + 0.4 * looked)
            return [Outcome(right, 1.0, 0.0, None), Outcome(1 - right, 0.0, 0.0, None)]
        after = None if last else (prompt, time + 1, min(2, looked + (action == 0)))
        return [Outcome(1.0, 0.0, -0.1 if action == 1 else 0.0, after)]


WORLDS = (OneKey, Chain, Dense, Walk, Tools)


@dataclass(frozen=True)
class Turn:
    """One turn of an episode. truth: its true advantage."""

    state: State
    action: int
    goal: float
    penalty: float
    after: State | None
    truth: float


def play(world: World, state: State | None, source: random.Random) -> list[Turn]:
    """Sample an episode that starts at a state."""
    turns = []
    while state is not None:
        action = source.choices(range(world.actions), world.policy(state))[0]
        results = world.outcomes(state, action)
        result = source.choices(results, [r.chance for r in results])[0]
        truth = world.q(state, action) - world.v(state)
        turns.append(Turn(state, action, result.goal, result.penalty, result.state, truth))
        state = result.state
    return turns


Branch = tuple[int, int] | None
"""The index of the parent and the number of repeated turns."""


def play_tree(
    world: World, start: State, source: random.Random, *, rollouts: int = 0, turns: int = 0
) -> list[tuple[list[Turn], Branch]]:
    """Sample a group as in training, with half of `ROLLOUTS` fresh, until it has enough rollouts and sampled turns."""
    fresh = ROLLOUTS // 2
    group: list[tuple[list[Turn], Branch]] = [(play(world, start, source), None) for _ in range(fresh)]
    sampled = sum(len(episode) for episode, _ in group)
    able = [i for i, (episode, _) in enumerate(group) if len(episode) > 1]
    while len(group) < rollouts or sampled < turns:
        branch = (able[(len(group) - fresh) % len(able)], 0) if able else None
        if branch is not None:
            branch = branch[0], source.randrange(1, len(group[branch[0]][0]))
        before = [] if branch is None else group[branch[0]][0][: branch[1]]
        new = play(world, before[-1].after if before else start, source)
        group.append(([*before, *new], branch))
        sampled += len(new)
    return group


def tree_error(groups: Sequence[Sequence[tuple[list[Turn], Branch]]]) -> float:
    """Return the credit error of `tree` over the sampled turns."""
    batch = [[replace(returns(episode), branch=branch) for episode, branch in group] for group in groups]
    found: list[tuple[float, float]] = []
    for group, formulas in zip(groups, packaged_method("tree").compare(batch, "group"), strict=True):
        for (episode, branch), formula in zip(group, formulas, strict=True):
            new = range(branch[1] if branch else 0, len(episode))
            found += [((formula.advantage(t) or 0.0) if formula else 0.0, episode[t].truth) for t in new]
    return credit_error(*zip(*found, strict=True))


def returns(turns: Sequence[Turn]) -> Returns:
    """Return an episode's rewards as training passes them to a method: a goal, and a penalty as shaping."""
    goal, penalty = sum(t.goal for t in turns), sum(t.penalty for t in turns)
    parts = {"task": ComponentPart(1.0, goal), "penalty": ComponentPart(1.0, penalty, shaping=True)}
    return Returns(
        [t.goal + t.penalty for t in turns],
        [t.goal for t in turns],
        parts,
        right=goal >= 1.0,
        states=[str(t.state) for t in turns],
    )


def estimates(world: World, groups: Sequence[Sequence[Sequence[Turn]]], source: random.Random) -> Mapping[str, list]:
    """Return the advantages of all turns, in order, by method."""
    found: dict[str, list[float]] = {}
    for name in PLAIN:
        formulas = packaged_method(name).compare([[returns(e) for e in group] for group in groups], "group")
        pairs = [(f, e) for fs, group in zip(formulas, groups, strict=True) for f, e in zip(fs, group, strict=True)]
        found[name] = [(f.advantage(t) or 0.0) if f is not None else 0.0 for f, e in pairs for t in range(len(e))]

    def value(state: State | None) -> float:
        return fmean(sum(t.goal + t.penalty for t in play(world, state, source)) for _ in range(CONTINUATIONS))

    turns = [t for group in groups for episode in group for t in episode]
    found["branch"] = [t.goal + t.penalty + value(t.after) - value(t.state) for t in turns]
    return found


def credit_error(advantages: Sequence[float], truths: Sequence[float]) -> float:
    """Return 1 − Spearman's rank correlation; 1 where one side is constant."""
    if len(set(advantages)) < 2 or len(set(truths)) < 2:
        return 1.0
    return 1.0 - float(np.asarray(spearmanr(rounded(advantages), rounded(truths)))[0])


def rounded(values: Sequence[float]) -> list[float]:
    """Round away differences in the order of summation."""
    return [round(v, 9) for v in values]


def measure(kind: type[World], seed: int, groups: int) -> dict[str, float]:
    """Return the credit error of each method on one batch of a world."""
    world, source = kind(seed), random.Random(seed)
    batch = [[play(world, world.start(p), source) for _ in range(ROLLOUTS)] for p in range(groups)]
    truths = [t.truth for group in batch for episode in group for t in episode]
    found = {name: credit_error(a, truths) for name, a in estimates(world, batch, source).items()}
    turns = [sum(map(len, group)) for group in batch]
    trees = [play_tree(world, world.start(p), source, rollouts=ROLLOUTS) for p in range(groups)]
    equal = [play_tree(world, world.start(p), source, turns=turns[p]) for p in range(groups)]
    return {**found, "tree": tree_error(trees), "tree, equal": tree_error(equal)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--groups", type=int, default=16, help=f"prompts of a batch, with {ROLLOUTS} rollouts each")
    given = parser.parse_args()
    names = [*METHODS, "tree, equal", "branch"]
    print("| world | " + " | ".join(f"`{name}`" for name in names) + " |")
    print("|---|" + "---|" * len(names))
    everywhere: dict[str, list[float]] = {name: [0.0] * given.seeds for name in names}
    for kind in WORLDS:
        errors = [measure(kind, seed, given.groups) for seed in range(given.seeds)]
        cells = [shown([e[name] for e in errors]) for name in names]
        print(f"| {kind.__name__} | " + " | ".join(cells) + " |", flush=True)
        for name in names:
            for seed, e in enumerate(errors):
                everywhere[name][seed] += e[name] / len(WORLDS)
    print("| mean | " + " | ".join(shown(everywhere[name]) for name in names) + " |")


def shown(values: Sequence[float]) -> str:
    """Format a mean with the half width of its interval."""
    interval = mean_interval(values)
    return f"{interval.estimate:.2f} ± {interval.high - interval.estimate:.2f}"


if __name__ == "__main__":
    main()
