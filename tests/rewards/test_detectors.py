"""Each detector on a run that has the trouble, and on one that has not."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from grpo_tui.configs.sections.rewards import DiagnosisConfig
from grpo_tui.rewards.detectors import DETECTORS, Batch, Finding, RolloutSummary, advantage_shares
from grpo_tui.rewards.diagnosis import Diagnosis, batch_of

from .episodes import good

WINDOW = DiagnosisConfig(window=10)


def batch(
    step: int,
    *,
    task: Callable[[int], float] = lambda i: float(i % 2),
    coherence: Callable[[int], float] = lambda i: 0.0,
    actions: tuple[str, ...] = ("LOOK", "ANSWER"),
    tokens: int = 40,
    **metrics: float,
) -> Batch:
    """Two groups of four rollouts."""
    rollouts = [
        RolloutSummary(
            f"{step}-{i}",
            f"{step}-g{i // 4}",
            task(i) + coherence(i),
            {"task": task(i), "coherence": coherence(i)},
            task(i) > 0.5,
            actions,
            tokens,
        )
        for i in range(8)
    ]
    return Batch(step, rollouts, {name.replace("__", "/"): value for name, value in metrics.items()})


def find(detector: str, batches: Sequence[Batch]) -> list[Finding]:
    return DETECTORS[detector](batches, WINDOW)


HEALTHY = [batch(s, train__entropy=1.0) for s in range(10)]


@pytest.mark.parametrize("detector", sorted(DETECTORS))
def test_a_healthy_run_gives_no_finding(detector: str):
    for n in range(1, 11):
        assert find(detector, HEALTHY[:n]) == []


def test_shares_of_the_advantage_add_up_to_one():
    batches = [batch(0, coherence=lambda i: 0.3 * (i % 3))]
    shares = advantage_shares(batches[0].rollouts)
    assert sum(shares.values()) == pytest.approx(1.0)
    # By hand: one group, task 0/1, coherence 0/2 in the same direction. A = c_task + c_coherence = 3 c_task.
    simple = [RolloutSummary(str(i), "g", 3.0 * i, {"task": float(i), "coherence": 2.0 * i}) for i in (0, 1)]
    assert advantage_shares(simple) == pytest.approx({"task": 1 / 3, "coherence": 2 / 3})
    assert advantage_shares([RolloutSummary("a", "g", 1.0, {"task": 1.0})]) == {}


def test_a_component_that_makes_most_of_the_advantage():
    batches = [batch(s, coherence=lambda i: 4.0 * (i % 3)) for s in range(5)]
    [finding] = find("advantage_share", batches)
    assert finding.subject == "coherence"
    assert finding.value > finding.threshold == 0.5
    assert finding.message.startswith("coherence") and "lower w_coherence" in finding.message[:80]
    assert finding.grade == "warning"
    assert finding.trajectories == ("4-2", "4-5", "4-1", "4-4", "4-7")  # those with most of it first
    apart = frozenset({"coherence"})
    between_equals = [replace(b, rollouts=[replace(r, apart=apart) for r in b.rollouts]) for b in batches]
    assert find("advantage_share", between_equals) == []


def test_reward_rising_while_success_does_not():
    batches = [batch(s, coherence=lambda i, s=s: 0.4 * s) for s in range(10)]
    [finding] = find("reward_without_success", batches)
    assert finding.subject == "coherence"
    assert finding.message.startswith("reward rises, success does not: over 10 steps the mean reward went up by 2 ")
    assert "coherence makes 100% of the rise" in finding.message
    assert all(int(t.split("-")[1]) % 2 == 0 for t in finding.trajectories)  # wrong answers that were paid
    assert find("reward_without_success", batches[:9]) == []  # not before the window is full


def test_reward_that_rises_with_success_is_fine():
    def task(s: int) -> Callable[[int], float]:
        return lambda i: float(i < s)

    assert find("reward_without_success", [batch(s, task=task(s)) for s in range(10)]) == []


def test_action_collapse():
    fell = [*HEALTHY[:5], batch(5, actions=("ANSWER",))]
    [finding] = find("action_collapse", fell)
    assert (finding.subject, finding.value) == ("ANSWER", 1.0)
    assert find("action_collapse", [batch(s, actions=("ANSWER",)) for s in range(5)]) == []  # there is no other tool


def test_entropy_collapse():
    fell = [*HEALTHY[:5], batch(5, train__entropy=0.1)]
    [finding] = find("entropy_collapse", fell)
    assert finding.value == pytest.approx(0.1)


def test_logprob_mismatch():
    apart = [*HEALTHY[:5], batch(5, rollout__logprob_mismatch=0.2, rollout__staleness=2.0)]
    [finding] = find("logprob_mismatch", apart)
    assert finding.value == pytest.approx(0.2)
    assert "lower rollouts.max_staleness" in finding.message
    assert find("logprob_mismatch", HEALTHY) == []


def test_length_collapse():
    [finding] = find("length_collapse", [*HEALTHY[:5], batch(5, tokens=10)])
    assert "shrank to 10 tokens" in finding.message
    [in_turns] = find("length_collapse", [*(batch(s, tokens=0) for s in range(4)), batch(5, tokens=0, actions=())])
    assert "turns" in in_turns.message


def test_groups_without_variance():
    flat = [batch(s, task=lambda i: 1.0) for s in range(5, 10)]
    [finding] = find("groups_without_variance", [*HEALTHY[:5], *flat])
    assert finding.value == 1.0
    assert finding.grade == "good" and finding.message.startswith("solved"), "all right is no trouble"
    [wrong] = find("groups_without_variance", [*HEALTHY[:5], *(batch(s, task=lambda i: 0.0) for s in range(5, 10))])
    assert wrong.grade == "warning" and "easier tasks" in wrong.message
    assert find("groups_without_variance", flat) == []  # always so, not rising


def test_what_is_not_finite():
    [finding] = find("not_finite", [batch(0, train__loss=math.nan, rewards__nonfinite=3.0)])
    assert finding.message == "NaN or infinity in train/loss; 3 raw reward values, which count as 0."
    [finding] = find("not_finite", [batch(0, task=lambda i: math.inf if i == 3 else 0.0)])
    assert finding.trajectories == ("0-3",)


def test_a_finding_is_reported_once_and_again_after_a_window():
    diagnosis = Diagnosis(WINDOW)
    reported = [s for s in range(25) if diagnosis.observe(batch(s, coherence=lambda i: 4.0 * (i % 3)))]
    assert reported == [2, 12, 22]
    for s in range(25, 35):
        diagnosis.observe(batch(s))  # the window forgets
    assert not any(diagnosis.observe(batch(s)) for s in range(35, 40))
    again = [s for s in range(40, 60) if diagnosis.observe(batch(s, coherence=lambda i: 4.0 * (i % 3)))]
    assert again  # it went away and came back


def test_a_detector_that_fails_costs_nothing_else(caplog: pytest.LogCaptureFixture):
    def broken(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
        raise ZeroDivisionError

    diagnosis = Diagnosis(WINDOW, {"broken": broken, "not_finite": DETECTORS["not_finite"]})
    with caplog.at_level(logging.ERROR):
        assert len(diagnosis.observe(batch(0, train__loss=math.nan))) == 1
    assert "detector broken failed at step 0" in caplog.text


def test_a_batch_from_trajectories_and_their_breakdowns():
    from grpo_tui.rewards import RewardOrchestrator

    found = [good("a", correct=True), good("b", correct=False)]
    result = RewardOrchestrator(0, 0, 1).calculate_total_reward(found, [True, False])
    made = batch_of(3, found, result.breakdowns, result.metrics, tokens=[5, 6])
    assert [r.contributions["task"] for r in made.rollouts] == [1.0, 0.0]
    assert [(r.correct, r.tokens, r.actions[-1]) for r in made.rollouts] == [(True, 5, "ANSWER"), (False, 6, "ANSWER")]
    assert made.metrics["behavior/action_distribution/ANSWER"] == pytest.approx(1 / 3)
