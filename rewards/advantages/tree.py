"""`tree`: `turn` for branching rollouts, with means over all rollouts that share a turn.

Some rollouts of a group repeat the first turns of another one and then continue on their own (`envs.tree`). For turn t
of rollout i, let v be the rollouts that share it, and u ⊃ v those that share the turns before the branch in which it
was sampled: all rollouts of the group if nothing branched off before turn t, else those that share the last turn that
more rollouts share than turn t. With Q[k, t] = Σ_{j ≥ t} r[k, j], and each mean over rollouts that reached turn t:

    A[i, t] = ½ · (mean_v Q − mean_G Q) / (σ_t + ε) + ½ · (mean_v Q − mean_u Q) / (σ_t + ε)

The terms are differences between node values: the first between the trees of the group, the second within a tree
(Tree-GRPO, arXiv 2509.21240; TreeRL, arXiv 2506.11902). σ_t is the same as in `turn`. A group without branches gets the
advantages of `turn`.

A rollout trains only on its own turns. A repeated turn has advantage 0, and its tokens are not agent tokens there, so
each sampled token counts once in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ..breakdown import AdvantageFormula, AdvantageTerm
from .base import Columns, Group, Scale, Terms, compared, spread
from .turn import TurnAdvantage

Node = tuple[int, int]
"""The rollout that sampled a turn, and the number of turns up to it."""
ROOT: Node = (-1, 0)
BRANCH, REPEATED = "branch", "repeated turn"
"""Names of terms. The second has weight 0."""


class TreeAdvantage(TurnAdvantage):
    """The value of a turn, relative to the rollouts that reached it and to those of the branch that it continues."""

    name = "tree"

    def sentence(self, formula: AdvantageFormula) -> str:
        std = {"group": "; each ÷ the std (n − 1) at this step", "batch": "; each ÷ the std (n − 1) of the batch"}
        return (
            "the mean return from this step on of the rollouts that share it, against the mean of the group and of "
            f"the rollouts that share the steps before its branch{std.get(formula.scale, '')}; a repeated step counts "
            "only where it was sampled"
        )

    def terms(self, groups: Sequence[Group], scale: Scale) -> list[list[list[Terms]]]:
        found = super().terms(groups, scale)
        for group, of_group in zip(groups, found, strict=True):
            tree = Tree(group, self.columns(group))
            for i, steps in enumerate(of_group):
                if steps:
                    of_group[i] = tree.terms(i, [term for (term,) in steps])
        return found


class Tree:
    """The rollouts of a group. columns: their returns from each turn on. shared: the rollouts that share each node."""

    def __init__(self, group: Group, columns: Columns) -> None:
        self.group = group
        self.columns = columns
        self.shared: dict[Node, list[int]] = {}
        for i, rollout in enumerate(group):
            for node in self.path(i) if rollout.scored else ():
                self.shared.setdefault(node, []).append(i)

    def path(self, rollout: int) -> list[Node]:
        """Return the nodes of a rollout of S turns [S + 1], from the root."""
        nodes = [ROOT, *((rollout, t + 1) for t in range(len(self.group[rollout].turns)))]
        branch = self.group[rollout].branch
        return nodes if branch is None else [*self.path(branch[0])[: branch[1] + 1], *nodes[branch[1] + 1 :]]

    def terms(self, rollout: int, turns: Sequence[AdvantageTerm]) -> list[Terms]:
        """Return the terms of each turn [S] of a rollout. turns: the terms of `turn` [S]."""
        path = [self.shared[node] for node in self.path(rollout)]
        repeated = (self.group[rollout].branch or (0, 0))[1]
        found: list[Terms] = []
        for t, (term, sharing) in enumerate(zip(turns, path[1:], strict=True)):
            returns = self.columns.values[t]
            term = replace(term, value=fmean(returns[k] or 0.0 for k in sharing))
            parent = next((before for before in path[t:0:-1] if len(before) > len(sharing)), None)
            if t < repeated:
                found.append((replace(term, weight=0.0, name=REPEATED),))
            elif parent is None:
                found.append((term,))
            else:
                peers = spread([returns[k] for k in parent])
                found.append((replace(term, weight=0.5), compared(term.value, peers, term.std, 0.5, BRANCH)))
        return found
