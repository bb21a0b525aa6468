"""What serving and learning did with one rollout: the vote that it took part in, and the updates that used it.

Two facts, since they become known at different times. `Served` is known when the rollout is recorded. A `Use` is one
update's word on it: that of its own step is recorded with the rollout, later ones (a replay many steps on, an update of
the online worker) are added by the rollout's id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

from ...configs.plain_data import from_plain

OwnKind = Literal["trained", "filtered", "replaced", "unscored"]
"""What a rollout's own step did with it.

trained: it is in the step's batch. filtered: its group has no signal, so its advantage is 0 and it has no gradient.
replaced: filtered, and a replayed rollout took its place in the batch. unscored: its environment failed it.
"""
LaterKind = Literal["replayed", "applied", "taken_back", "refused", "stale"]
"""What a later update did with it.

replayed: drawn from the replay buffer into the batch of a later step. By the online worker: applied; taken_back
(applied, and undone because the policy moved too far); refused (it would have done harm); stale (answered by a policy
too many versions ago).
"""
UseKind = OwnKind | LaterKind

OWN_KINDS: tuple[str, ...] = get_args(OwnKind)
LATER_KINDS: tuple[str, ...] = get_args(LaterKind)
CLIPPED = "clipped"
MARKS = (*OWN_KINDS, *LATER_KINDS, CLIPPED)
"""Marks of a rollout in the order of their bits in the column `uses`; append only."""
BIT = {mark: 1 << i for i, mark in enumerate(MARKS)}
OWN_BITS = sum(BIT[kind] for kind in OWN_KINDS)
LATER_BITS = [BIT[mark] for mark in MARKS if mark not in OWN_KINDS]
LEARNED_FROM = ("trained", "replayed", "applied")

GateCode = Literal["open", "low_confidence", "unanimous", "no_label", "no_answer", "own_sampling"]
"""Whether a request could be learnt from: open, or why not."""


@dataclass(frozen=True)
class LossTerms:
    """What one rollout put into the loss of an update: sums over its agent tokens, in nats where they are log-probs.

    tokens: how many there are. ratio, low, high: for each turn, the sum of π/π_old over the tokens that were not
    clipped, and how many were clipped at the lower and the upper bound. policy: the sum of the policy-gradient term of
    the loss (None: not of the clipped kind). kl: the sum of the KL penalty's term, before beta. entropy: of the
    policy's distributions.
    """

    tokens: int
    ratio: tuple[float, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    policy: float | None
    kl: float
    entropy: float


@dataclass(frozen=True)
class Use:
    """What one update of the policy did with one rollout.

    step: on the axis of the record's steps (training: the optimiser step; online: the request's number). weight: the
    factor on its term of the loss; for a replayed rollout the probability with which it was drawn. advantage: the mean
    over its agent tokens with which it entered that update; None when it did not. clipped: the update's gradient or
    step was cut to its limit. facts: further numbers of the update (`update`, `kl`, `grad_norm`, `learning_rate`, …)
    and, as `message`, one sentence why it was not applied. loss: what it put into the loss (None: not recorded, or
    nothing).
    """

    kind: UseKind
    step: int
    weight: float | None = None
    advantage: float | None = None
    clipped: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    loss: LossTerms | None = None

    @property
    def mask(self) -> int:
        """Its marks as bits."""
        return BIT[self.kind] | (BIT[CLIPPED] if self.clipped else 0)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {**asdict(self), "facts": dict(self.facts)}


@dataclass(frozen=True)
class NeighbourVote:
    """An earlier request that voted, too: its answer and what its vote counted (a candidate's counts 1)."""

    id: str
    answer: str = ""
    weight: float | None = None


@dataclass(frozen=True)
class Served:
    """The place of one candidate in the vote over a request, and what the vote came to.

    answer: what went out to whoever asked; sent: this candidate gave it. pseudo_label: what the other candidates and
    the neighbours voted for (None: a tie, or nobody else answered); agrees: whether this candidate's answer is its
    label. confidence: the winner's share of all votes in [0, 1], which the gate looks at; votes: share of each
    answer, most first. gate: see `GateCode`; reason: in words. seconds: from the request to the answer.
    """

    request: int
    initial: bool
    answer: str | None = None
    sent: bool | None = None
    pseudo_label: str | None = None
    agrees: bool | None = None
    confidence: float | None = None
    votes: Mapping[str, float] = field(default_factory=dict)
    neighbours: tuple[NeighbourVote, ...] = ()
    gate: GateCode = "open"
    reason: str = ""
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {**asdict(self), "votes": dict(self.votes)}


USE_COLUMNS = "step, mask, weight, advantage, data"


def data_of(use: Use) -> dict[str, Any]:
    """The facts of a use and what it put into the loss: the column `data`."""
    return dict(use.facts) if use.loss is None else {**use.facts, "loss": asdict(use.loss)}


def use_of(step: int, mask: int, weight: float | None, advantage: float | None, data: str) -> Use | None:
    """A use from its columns in the table `uses`; None for a kind that only a later version knows."""
    kind = next((kind for kind in LATER_KINDS if mask & BIT[kind]), None)
    if kind is None:
        return None
    facts = json.loads(data)
    facts = facts if isinstance(facts, dict) else {}
    terms = facts.pop("loss", None)
    loss = from_plain(LossTerms, terms) if isinstance(terms, dict) else None
    return Use(cast(UseKind, kind), step, weight, advantage, bool(mask & BIT[CLIPPED]), facts, loss)


def marks_of(mask: int | None) -> tuple[str, ...]:
    """The marks whose bits are set; none when nothing was recorded."""
    return tuple(mark for mark in MARKS if mask and mask & BIT[mark])
