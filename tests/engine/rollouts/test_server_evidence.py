"""A server that writes something else than the others is found, and honest ones never are."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.rollouts.server_evidence import ServerEvidence, by_server, log_e_value, p_value
from grpo_tui.envs.trajectory import Step, Trajectory

GROUPS, SIZE = 8, 4


def test_the_p_value_is_the_share_of_orders_with_at_least_this_rank_sum():
    rng = np.random.default_rng(0)
    for m, n in ((1, 1), (2, 3), (4, 4), (1, 6)):
        orders = list(itertools.combinations(range(m + n), m))
        for own in orders:
            others = np.setdiff1d(np.arange(m + n), own)
            share = sum(sum(order) >= sum(own) for order in orders) / len(orders)
            assert p_value(np.array(own, float), others.astype(float), rng) == pytest.approx(share, rel=1e-12)


def test_ties_are_broken_at_random():
    rng = np.random.default_rng(0)
    found = {round(p_value(np.zeros(2), np.zeros(2), rng), 6) for _ in range(100)}
    assert len(found) == 5  # every rank sum


def ways(m: int, n: int) -> list[int]:
    """Count the ways in which m of m + n ranks give each U from 0 to m n: the Gaussian binomial coefficient."""
    found = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):
            found[u] -= found[u - n - i]
        for u in range(i, m * n + 1):
            found[u] += found[u - i]
    return found


@pytest.mark.parametrize("n", [4, 20])
def test_the_least_p_value_counts_as_complete_separation(n: int):
    p = p_value(np.arange(n, 2.0 * n), np.arange(0.0, n), np.random.default_rng(0))
    assert log_e_value(p, n, n) > log_e_value(p * 1.001, n, n) + 1.0


@pytest.mark.parametrize(("m", "n"), [(1, 1), (4, 4), (2, 9), (20, 20)])
def test_the_mean_of_the_e_value_is_at_most_one(m: int, n: int):
    counts = ways(m, n)
    tails = np.cumsum(counts[::-1], dtype=object)[::-1] / sum(counts)
    mean = sum(w / sum(counts) * math.exp(log_e_value(float(p), m, n)) for w, p in zip(counts, tails, strict=True))
    assert mean <= 1 + 1e-9


def step_of(
    rng: np.random.Generator, step: int, noise: float, groups: int = GROUPS, shift: float = 0.0, old: float = 0.0,
    half: bool = False,
) -> tuple[list[Rollout], list[Rollout]]:  # fmt: skip
    """Rollouts of two servers, of which the second may be a bad one, and the trainer's log-probs of them. Prompts
    differ in the length of their turns and in the size of the rounding, as real ones do."""
    sampled, present = [], []
    for group in range(groups):
        bad = group % 2
        length, rounding = rng.lognormal(3.5, 0.6), noise * rng.lognormal(0.0, 0.5)
        for index in range(SIZE):
            n = max(2, int(rng.poisson(length) * (0.5 if half and bad else 1)))
            true = -rng.exponential(1.0, n) - 0.1
            error = (
                rounding * rng.standard_normal(n)
                - rounding**2 / 2
                + (old * rng.standard_normal(n) - old**2 / 2 if bad else 0.0)
            )
            mask = np.array([False] + [True] * n)
            turn = Step(0, "", server="http://bad" if bad else "http://good", policy_version=step)
            facts = {
                "token_ids": np.zeros(n + 1, np.int64), "agent_mask": mask, "group": group, "index": index,
                "turn_ids": np.array([-1] + [0] * n, np.int16), "rewards": np.zeros(n + 1, np.float32),
                "final_reward": 0.0, "policy_version": step,
                "trajectory": Trajectory("", "", "", "", index, "", (turn,)),
            }  # fmt: skip
            written = np.concatenate([[0.0], true + (shift if bad else 0.0)]).astype(np.float32)
            sampled.append(Rollout(logprobs=written, **facts))
            present.append(Rollout(logprobs=np.concatenate([[0.0], true + error]).astype(np.float32), **facts))
    return sampled, present


def test_the_mismatch_and_the_age_of_each_servers_turns():
    sampled, present = step_of(np.random.default_rng(3), 4, 0.02, shift=0.5)
    older = [replace(r, policy_version=r.policy_version - r.group) for r in sampled]
    apart: dict[str, list[float]] = {"http://good": [], "http://bad": []}
    ages: dict[str, list[int]] = {"http://good": [], "http://bad": []}
    for made, now in zip(older, present, strict=True):
        server = "http://bad" if made.group % 2 else "http://good"
        ages[server].append(6 - made.policy_version)
        assert made.logprobs is not None and now.logprobs is not None
        apart[server] += [abs(float(b) - float(a)) for a, b in zip(made.logprobs, now.logprobs, strict=True)][1:]
    expected = {
        server: (sum(apart[server]) / len(apart[server]), sum(ages[server]) / len(ages[server])) for server in apart
    }
    found = by_server(older, present, 6)
    assert found.keys() == expected.keys() and found["http://bad"][0] > 10 * found["http://good"][0]
    for server in found:
        assert found[server] == pytest.approx(expected[server], rel=1e-6)
    assert by_server([], [], 6) == {}


def first_suspicion(seed: int, steps: int, *, noise: float = 0.01, rounding: float = math.inf, **how: object) -> int:
    """The first step at which a server is suspected, which must be the bad one; `steps` where none is."""
    rng, evidence = np.random.default_rng(seed), ServerEvidence(0.1, rounding)
    for step in range(steps):
        found = evidence.add(*step_of(rng, step, noise, **how), step)  # type: ignore[arg-type]
        if found:
            assert list(found) == ["http://bad"], found
            return step
    return steps


@pytest.mark.parametrize("steps", [50, pytest.param(500, marks=pytest.mark.stress)])
def test_honest_servers_are_never_suspected(steps: int):
    for seed, (noise, groups) in enumerate(((1e-5, 8), (0.01, 8), (0.02, 2), (0.05, 16))):
        assert first_suspicion(seed, steps, noise=noise, groups=groups) == steps


def test_rounding_that_is_just_as_large_as_allowed_is_no_reason():
    for seed in range(4):
        assert first_suspicion(seed, 60, noise=0.01, rounding=0.009, groups=2) == 60


@pytest.mark.parametrize(
    ("how", "within"),
    [
        ({"shift": -0.08}, 3),
        ({"shift": 0.08}, 5),
        ({"shift": -0.08, "groups": 2}, 8),
        ({"old": 0.06}, 15),
        ({"half": True, "groups": 24}, 25),
        ({"old": 0.01, "noise": 1e-5, "rounding": 3e-3, "groups": 2}, 1),
    ],
)
def test_a_bad_server_is_found(how: dict, within: int):
    for seed in range(3):
        assert first_suspicion(seed, within + 1, **how) < within
