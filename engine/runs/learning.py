"""The influence of one rollout on learning: the vote that it took part in, and the updates that used it.

`Served` is known when the rollout is recorded. A `Use` describes one update. The use by the rollout's own step is
recorded together with the rollout. Later uses (a replay many steps later, an update of the online worker) are added by
the rollout's id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ...configs.plain_data import from_plain


class UseKind(StrEnum):
    """How an update used a rollout."""

    TRAINED = "trained"
    """Own step: it is in the batch."""
    FILTERED = "filtered"
    """Own step: its group has no signal, so its advantage is 0 and it has no gradient."""
    REPLACED = "replaced"
    """Own step: filtered, and a replayed rollout took its slot in the batch."""
    UNSCORED = "unscored"
    """Own step: its environment failed."""
    REPLAYED = "replayed"
    """Later step: drawn from the replay buffer into the batch."""
    APPLIED = "applied"
    """Online worker: an update used it."""
    TAKEN_BACK = "taken_back"
    """Online worker: an update used it but was undone because the policy moved too far."""
    REFUSED = "refused"
    """Online worker: the update would have been harmful."""
    STALE = "stale"
    """Online worker: the policy that answered was too many versions old."""


OWN_KINDS = (UseKind.TRAINED, UseKind.FILTERED, UseKind.REPLACED, UseKind.UNSCORED)
"""The kinds of a rollout's own step."""
LATER_KINDS = tuple(kind for kind in UseKind if kind not in OWN_KINDS)
CLIPPED = "clipped"
MARKS = (*UseKind, CLIPPED)
"""Marks of a rollout in the order of their bits in the column `uses`. Append only."""
BIT = {mark: 1 << i for i, mark in enumerate(MARKS)}
OWN_BITS = sum(BIT[kind] for kind in OWN_KINDS)
LATER_BITS = [BIT[mark] for mark in MARKS if mark not in OWN_KINDS]
LEARNED_FROM = (UseKind.TRAINED, UseKind.REPLAYED, UseKind.APPLIED)


class GateCode(StrEnum):
    """Whether learning can use a request, and why not."""

    OPEN = "open"
    LOW_CONFIDENCE = "low_confidence"
    """The vote is not confident enough."""
    NO_LABEL = "no_label"
    """For every candidate, the other candidates tie."""
    NO_ANSWER = "no_answer"
    """No candidate answered."""
    OWN_SAMPLING = "own_sampling"
    """The client requested its own sampling settings."""


SAME_POLICY = 1e-3
"""The distance of the mean ratio π/π_old from 1 within which π and π_old count as the same policy."""


@dataclass(frozen=True)
class LossTerms:
    """The terms of one rollout in the loss of an update: sums over its agent tokens, log-probs in nats.

    tokens: their number. ratio: the sum of π/π_old over unclipped tokens, per turn. low, high: the number of tokens
    clipped at the lower and the upper bound, per turn. policy: the sum of the policy-gradient term (None: not of the
    clipped kind). kl: the sum of the KL penalty before beta. entropy: of the policy's distributions.
    """

    tokens: int
    ratio: tuple[float, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    policy: float | None
    kl: float
    entropy: float

    @property
    def advantage(self) -> float | None:
        """The mean advantage of the tokens; None unless π equals π_old, because only then the policy term gives it."""
        if self.policy is None or not self.tokens or any(self.low) or any(self.high):
            return None
        return -self.policy / self.tokens if abs(sum(self.ratio) - self.tokens) < SAME_POLICY * self.tokens else None


@dataclass(frozen=True)
class Use:
    """How one update of the policy used one rollout.

    step: the record's step (training: the optimiser step; online: the request's number). weight: the factor on the
    rollout's loss term, or the draw probability of a replayed rollout. advantage: the mean over its agent tokens in
    that update; None if it did not enter the loss. clipped: whether the update's gradient or step was clipped. facts:
    more numbers of the update (`update`, `kl`, `grad_norm`, `learning_rate`, …) and, as `message`, why it was not
    applied. loss: its terms in the loss (None: not recorded, or none).
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
        return BIT[self.kind] | (BIT[CLIPPED] if self.clipped else 0)


@dataclass(frozen=True)
class NeighbourVote:
    """An earlier request that also voted: its answer and the weight of its vote (a candidate's vote weighs 1)."""

    id: str
    answer: str = ""
    weight: float = 0.0


@dataclass(frozen=True)
class Served:
    """One candidate's part in the vote over a request, and the result of the vote.

    answer: the answer sent to the client. sent: whether this candidate gave it. pseudo_label: the vote of the other
    candidates and the neighbours (None: a tie, or no other answered). agrees: whether this candidate's answer equals
    its label. confidence: the winner's share of all votes in [0, 1], which the gate compares. votes: the share of each
    answer, largest first. gate: see `GateCode`. reason: in words. seconds: from the request to the answer.
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
    gate: GateCode = GateCode.OPEN
    reason: str = ""
    seconds: float | None = None


USE_COLUMNS = "step, mask, weight, advantage, data"


def data_of(use: Use) -> dict[str, object]:
    """Return the column `data` of a use: its facts and its loss terms."""
    return dict(use.facts) if use.loss is None else {**use.facts, "loss": asdict(use.loss)}


def use_of(step: int, mask: int, weight: float | None, advantage: float | None, data: str) -> Use | None:
    """Build a use from its columns in the table `uses`; None for an unknown kind."""
    kind = next((kind for kind in LATER_KINDS if mask & BIT[kind]), None)
    if kind is None:
        return None
    facts = json.loads(data)
    facts = facts if isinstance(facts, dict) else {}
    terms = facts.pop("loss", None)
    loss = from_plain(LossTerms, terms) if isinstance(terms, dict) else None
    return Use(kind, step, weight, advantage, bool(mask & BIT[CLIPPED]), facts, loss)


def marks_of(mask: int | None) -> tuple[str, ...]:
    """Return the marks whose bits are set; none if nothing was recorded."""
    return tuple(mark for mark in MARKS if mask and mask & BIT[mark])
