"""Tests for a rollout server that differs from the others: another policy, other log-probs, shorter turns.

Rollouts of a prompt go to a server for reasons unrelated to the prompt, so with honest servers the numbers of the
prompts are exchangeable. Each step ranks the first turns of each server's prompts among those of the others, within one
version of the policy (a later turn may go to a server because of what was written before). The p-value of the rank sum
is exact for any distribution; ties are broken at random. It becomes an e-value, whose mean under honest servers is at
most 1. E-values are multiplied until their product falls below 1, where it restarts (the CUSUM e-detector of Shin,
Ramdas and Rinaldo, "E-detectors", 2023). A server is suspected if a product exceeds 1 / `ALPHA`. By Ville's inequality,
this happens by chance within T steps, for S servers with four tests each, with a probability of at most 4 S T `ALPHA`,
0.0003 for 8 servers and 10,000 steps. The difference must also be large enough to matter.

Two more tests (raising the bound to 6 S T `ALPHA`) need few prompts. If tokens are drawn from the distribution μ whose
log-probs are reported, E[π / μ] = 1 for any policy π. The product of π / μ over a server's tokens is thus an e-value,
and grows if the server reports too little. If it reports too much, μ / π grows, whose mean under rounding alone is
below exp(`SLACK` × `max_mismatch`) per token.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .rollout import Rollout

ALPHA = 1e-9
MOST_PROMPTS = 20
"""The most prompts per side to rank, drawn at random: the exact distribution is fast up to this number."""
TIMES_APART, SHORTER, SLACK, FAR = 3.0, 0.7, 0.25, 10.0
"""Differences that matter: this multiple of the others' mismatch; turns below this fraction of the others' length; this
fraction of `max_mismatch` as a bias; this multiple of the best server's mismatch, within one step."""

Numbers = dict[str, float]
"""Of a prompt on a server: `apart` mean |log π − log μ| a token, `bias` mean log π − log μ (nats), `length` tokens."""


@dataclass
class _Evidence:
    """The product for one test of one server, and the means since it began."""

    log: float = 0.0
    prompts: int = 0
    mine: float = 0.0
    others: float = 0.0

    def add(self, mine: np.ndarray, others: np.ndarray, log_e: float) -> None:
        if self.log <= 0.0:
            self.log, self.prompts, self.mine, self.others = 0.0, 0, 0.0, 0.0
        self.log += log_e
        self.prompts += len(mine)
        self.mine += float(mine.sum())
        self.others += float(others.mean()) * len(mine)

    @property
    def means(self) -> tuple[float, float]:
        return self.mine / self.prompts, self.others / self.prompts


@dataclass
class ServerEvidence:
    """The evidence about the servers of a run so far.

    max_mismatch: `rollouts.max_mismatch`, nats per token. rounding: the largest mean mismatch that rounding explains.
    """

    max_mismatch: float
    rounding: float = math.inf
    _evidence: dict[tuple[str, str, int], _Evidence] = field(default_factory=lambda: defaultdict(_Evidence))
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, sampled: Sequence[Rollout], present: Sequence[Rollout], step: int) -> dict[str, str]:
        """Return the servers that are suspected after this step's rollouts (given as to `correction.corrected`), each
        with the end of a sentence on its difference from the others."""
        found: dict[str, str] = {}
        for version in {r.policy_version for r in sampled}:
            pairs = [(s, p) for s, p in zip(sampled, present, strict=True) if s.policy_version == version]
            for server, differences in _tokens(pairs).items():
                found |= self._test_ratio(server, differences, fresh=version == step)
            prompts = _prompts(pairs)
            if len(prompts) < 2:
                continue
            if version == step:
                found |= self._outliers(prompts)
            for server in prompts:
                for name, sign in (("apart", 1), ("bias", 1), ("bias", -1), ("length", -1)):
                    reason = self._test(prompts, server, name, sign)
                    if reason:
                        found.setdefault(server, reason)
        return found

    def _outliers(self, prompts: Mapping[str, Sequence[Numbers]]) -> dict[str, str]:
        """Return servers beyond what rounding explains while others are far within it, or beyond `max_mismatch` and far
        from the others. Honest servers at the limit are neither, even with one prompt each."""
        means = {server: float(np.mean([p["apart"] for p in found])) for server, found in prompts.items()}
        found, others = {}, min(means.values())
        for server, mean in means.items():
            odd = mean > self.rounding and FAR * others < self.rounding
            if odd or mean > max(self.max_mismatch, FAR * others):
                found[server] = (
                    f"its log-probs differ from the trainer's by {mean:.2g} nats per token, the best server's by "
                    f"{others:.2g}"
                )
        return found

    def _test_ratio(self, server: str, differences: np.ndarray, fresh: bool) -> dict[str, str]:
        """Run both tests of log π − log μ of all tokens [n] of a step, the second only for the current policy."""
        allowed = SLACK * self.max_mismatch
        for sign, log_e in ((1, differences.sum()), (-1, -(differences + allowed).sum()))[: 1 + fresh]:
            evidence = self._evidence[server, "ratio", sign]
            evidence.add(differences, np.zeros(1), float(log_e))
            bias = evidence.means[0]
            if evidence.log > -math.log(ALPHA) and sign * bias > allowed:
                return {server: f"its reported log-probs are {-bias:+.2g} nats per token from those of the trainer"}
        return {}

    def _test(self, prompts: Mapping[str, Sequence[Numbers]], server: str, name: str, sign: int) -> str:
        """Add the numbers of a step. Return the reason for suspicion, or an empty text."""
        own = self._subset([p[name] for p in prompts[server]])
        others = self._subset([p[name] for s, found in prompts.items() if s != server for p in found])
        evidence = self._evidence[server, name, sign]
        evidence.add(own, others, log_e_value(p_value(sign * own, sign * others, self._rng), len(own), len(others)))
        if evidence.log < -math.log(ALPHA):
            return ""
        mean, usual = evidence.means
        if name == "apart" and mean > TIMES_APART * usual and mean - usual > self.max_mismatch / 100:
            return (
                f"its log-probs differ from the trainer's by {mean:.2g} nats per token, those of others by {usual:.2g}"
            )
        if name == "bias" and abs(mean - usual) > self.max_mismatch / 4:
            return (
                f"its log-probs are {mean - usual:+.2g} nats per token from the trainer's, compared with those of "
                "others"
            )
        if name == "length" and mean < SHORTER * usual:
            return f"its first turns have {mean:.0f} tokens on average, those of others {usual:.0f}"
        return ""

    def _subset(self, values: Sequence[float]) -> np.ndarray:
        return self._rng.permutation(np.asarray(values, np.float64))[:MOST_PROMPTS]


def by_server(sampled: Sequence[Rollout], present: Sequence[Rollout], step: int) -> dict[str, tuple[float, float]]:
    """Return the mean |log π − log μ| of the tokens of each server, in nats, and the mean age of its turns in steps."""
    turns: dict[str, list[int]] = defaultdict(list)
    for rollout in sampled:
        for turn in rollout.trajectory.steps if rollout.trajectory is not None else ():
            if turn.server:
                turns[turn.server].append(step - rollout.policy_version)
    differences = _tokens(list(zip(sampled, present, strict=True)))
    return {server: (float(np.abs(d).mean()), float(np.mean(turns[server]))) for server, d in differences.items()}


def _tokens(pairs: Sequence[tuple[Rollout, Rollout]]) -> dict[str, np.ndarray]:
    """Return, by server, log π − log μ of all the tokens that it wrote, float64 [n]."""
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    for rollout, now in pairs:
        if rollout.trajectory is None or rollout.logprobs is None or now.logprobs is None:
            continue
        differences = now.logprobs.astype(np.float64) - rollout.logprobs
        for number, turn in enumerate(rollout.trajectory.steps):
            if turn.server:
                found[turn.server].append(differences[rollout.agent_mask & (rollout.turn_ids == number)])
    return {server: every for server, parts in found.items() if len(every := np.concatenate(parts))}


def _prompts(pairs: Sequence[tuple[Rollout, Rollout]]) -> dict[str, list[Numbers]]:
    """Return, by server, the numbers of each prompt: means over the first turns that it wrote for the prompt."""
    turns: dict[tuple[str, int], list[np.ndarray]] = defaultdict(list)
    for rollout, now in pairs:
        server = (
            rollout.trajectory.steps[0].server if rollout.trajectory is not None and rollout.trajectory.steps else ""
        )
        first = rollout.agent_mask & (rollout.turn_ids == 0)
        if server and first.any() and rollout.logprobs is not None and now.logprobs is not None:
            turns[server, rollout.group].append((now.logprobs.astype(np.float64) - rollout.logprobs)[first])
    found: dict[str, list[Numbers]] = defaultdict(list)
    for (server, _), parts in turns.items():
        every = np.concatenate(parts)
        found[server].append(
            {"apart": float(np.abs(every).mean()), "bias": float(every.mean()), "length": len(every) / len(parts)}
        )
    return found


def p_value(own: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> float:
    """Return P(a rank sum at least as large as that of `own`), exact under exchangeability."""
    from scipy.stats import mannwhitneyu  # takes half a second, which runs without servers save

    every = np.concatenate([own, others])
    ranks = np.argsort(np.lexsort((rng.random(len(every)), every)))
    return float(mannwhitneyu(ranks[: len(own)], ranks[len(own) :], alternative="greater", method="exact").pvalue)


def log_e_value(p: float, m: int, n: int) -> float:
    """Return the log of an e-value: half of a bet on p ** -0.5 and half of one on complete separation, never all."""
    smallest = 1 / math.comb(m + n, m)
    separated = 0.5 + (0.5 / smallest if p <= smallest * (1 + 1e-9) else 0.0)
    return math.log(0.5 * separated + 0.25 / math.sqrt(p))
