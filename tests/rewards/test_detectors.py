"""Each detector on a run that has the trouble, and on one that has not."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grpo_tui.configs.sections.rewards import DiagnosisConfig
from grpo_tui.envs.tools import ToolSpec
from grpo_tui.envs.trajectory import Trajectory
from grpo_tui.rewards.batch_statistics import advantage_shares, covariances, flat_at
from grpo_tui.rewards.batches import Batch, HeldOut, RolloutSummary
from grpo_tui.rewards.breakdown import RewardBreakdown
from grpo_tui.rewards.detectors import Detector, Finding
from grpo_tui.rewards.diagnosis import DETECTORS, Diagnosis

from .episodes import batch_of, good

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
    flat = {name.replace("__", "/"): value for name, value in metrics.items()}
    return Batch(step, rollouts, flat, HeldOut(step, rollouts, 0.5))


def find(detector: str, batches: Sequence[Batch]) -> list[Finding]:
    return DETECTORS[detector](batches, WINDOW)


RUNS_WELL: dict[str, Any] = {
    "train__entropy": 1.0,
    "rollout__logprob_mismatch": 0.001,
    "sampler__kl": 3e-4,
    "train__grad_norm": 1.0,
}
HEALTHY = [batch(s, **RUNS_WELL, kl__mean=0.001 * s) for s in range(10)]


@pytest.mark.parametrize("detector", sorted(DETECTORS))
def test_a_healthy_run_gives_no_finding(detector: str):
    for n in range(1, 11):
        assert find(detector, HEALTHY[:n]) == []


def test_entropy_that_doubles_is_found_unless_success_rises():
    rising = [batch(s, train__entropy=0.3 * 1.3**s) for s in range(10)]
    assert [f.detector for f in find("entropy_rise", rising)] == ["entropy_rise"]
    better = [batch(s, task=lambda i, s=s: float(i < s), train__entropy=0.3 * 1.3**s) for s in range(10)]
    assert not find("entropy_rise", better)
    certain = [batch(s, train__entropy=1e-6 * 1.3**s) for s in range(10)]
    assert not find("entropy_rise", certain), "rollouts hardly differ"


def test_a_bonus_on_entropy_is_the_cause_of_an_entropy_and_a_kl_that_rise():
    def causes(bonus: float) -> list[str]:
        diagnosis = Diagnosis(WINDOW)
        for s in range(1, 11):
            entropy, kl = 0.3 * 1.4 ** max(0, s - 3), 0.5 * max(0, s - 2)
            metrics: dict[str, Any] = {"train__entropy": entropy, "kl__mean": kl, "train__entropy_weight": bonus}
            diagnosis.observe(batch(s, task=lambda i, s=s: float(i > s), **metrics))
        return [f.finding.detector for f in diagnosis.found() if f.finding.severity == "warning"]

    assert causes(0.3)[:2] == ["entropy_rise", "kl_rise"]
    assert causes(0.0)[0] == "kl_rise"


def test_groups_of_two_are_too_small_where_larger_ones_would_differ():
    def found(size: int, rate: Callable[[float], float]) -> list[tuple[str, str]]:
        draw = random.Random(0)
        rollouts = []
        for g in range(80):
            success = rate(draw.random())
            verdicts = [draw.random() < success for _ in range(size)]
            rollouts += [RolloutSummary(f"{g}-{i}", str(g), float(v), {}, v) for i, v in enumerate(verdicts)]
        return [(f.subject, f.severity) for f in find("groups_without_variance", [Batch(1, rollouts)])]

    assert found(2, lambda x: 0.4 + 0.4 * x) == [("size", "warning")]
    assert found(8, lambda x: 0.4 + 0.4 * x) == [], "these are large enough"
    assert found(2, lambda x: float(x < 0.8)) == [("solved", "good")], "tasks that are solved, or out of reach"


@pytest.mark.parametrize("size", [2, 8])
def test_the_expected_share_of_flat_groups_is_that_of_a_simulation(size: int):
    draw = np.random.default_rng(0)
    rates = draw.beta(1.5, 1.0, 20_000)
    pairs = [[RolloutSummary("", "", None, {}, bool(v)) for v in draw.random(2) < p] for p in rates]
    right = draw.binomial(size, rates)
    assert flat_at(size, pairs) == pytest.approx(np.mean((right == 0) | (right == size)), abs=0.01)


def test_shares_of_the_advantage_add_up_to_one():
    batches = [batch(0, coherence=lambda i: 0.3 * (i % 3))]
    shares = advantage_shares([covariances(batches[0].rollouts)])
    assert sum(shares.values()) == pytest.approx(1.0)
    # By hand: one group, task 0/1, coherence 0/2 in the same direction. A = c_task + c_coherence = 3 c_task.
    simple = [RolloutSummary(str(i), "g", 3.0 * i, {"task": float(i), "coherence": 2.0 * i}) for i in (0, 1)]
    assert advantage_shares([covariances(simple)]) == pytest.approx({"task": 1 / 3, "coherence": 2 / 3})
    assert advantage_shares([covariances([RolloutSummary("a", "g", 1.0, {"task": 1.0})])]) == {}


def test_a_component_that_makes_most_of_the_advantage():
    batches = [batch(s, coherence=lambda i: 4.0 * (i % 3)) for s in range(5)]
    [finding] = find("advantage_share", batches)
    assert finding.subject == "coherence"
    assert finding.value > finding.threshold == 0.5
    assert finding.message.startswith("coherence") and "lower w_coherence" in finding.message[:80]
    assert finding.severity == "warning"
    assert finding.trajectories == ("4-2", "4-5", "4-1", "4-4", "4-7")  # those with most of it first
    apart = frozenset({"coherence"})
    between_equals = [replace(b, rollouts=[replace(r, apart=apart) for r in b.rollouts]) for b in batches]
    assert find("advantage_share", between_equals) == []


def test_reward_rising_while_success_does_not():
    batches = [batch(s, coherence=lambda i, s=s: 0.4 * s) for s in range(10)]
    [finding] = find("reward_without_success", batches)
    assert finding.subject == "coherence"
    assert finding.message.startswith("reward rises, success does not: over 10 steps the mean reward rose by 2 ")
    assert "coherence accounts for 100% of the rise" in finding.message
    assert all(int(t.split("-")[1]) % 2 == 0 for t in finding.trajectories)  # wrong answers that were paid
    assert find("reward_without_success", batches[:9]) == []  # not before the window is full
    without = [replace(b, rollouts=[replace(r, contributions={}) for r in b.rollouts]) for b in batches]
    [finding] = find("reward_without_success", without)
    assert "of the rise" not in finding.message, "the shares of unknown components"


def test_reward_that_rises_with_success_is_fine():
    def task(s: int) -> Callable[[int], float]:
        return lambda i: float(i < s)

    assert find("reward_without_success", [batch(s, task=task(s)) for s in range(10)]) == []


def test_action_collapse():
    fell = [*HEALTHY[:5], batch(5, actions=("ANSWER",))]
    [finding] = find("action_collapse", fell)
    assert (finding.subject, finding.value) == ("ANSWER", 1.0)
    assert find("action_collapse", [batch(s, actions=("ANSWER",)) for s in range(5)]) == []  # there is no other tool
    always = [batch(s, actions=("LOOK",) * 19 + ("ANSWER",)) for s in range(5)]
    assert find("action_collapse", always) == []  # nothing has changed
    rare = [
        replace(
            b, rollouts=[replace(r, actions=("LOOK", "LOOK", "ANSWER")) for r in b.rollouts[:n]] + [*b.rollouts[n:]]
        )
        for b, n in zip([batch(s, actions=("LOOK",) * 3) for s in range(5)], (2, 1, 2, 1, 0), strict=True)
    ]
    assert find("action_collapse", rare) == []  # by chance, a step does not use a rare tool


def test_no_action_collapse_with_one_tool():
    def tried(episode: Trajectory, n: int) -> Trajectory:
        step = replace(episode.steps[0], action="TRY", parse_error=None)
        silent = replace(step, action=None, parse_error="no call")
        tools = (ToolSpec("TRY", ""), ToolSpec("ANSWER", "", final=True))
        return replace(episode, steps=(silent,) * (20 - n) + (step,) * n, tools=tools)

    fell = [batch_of(s, [tried(good("a"), 3 + 4 * s)], [RewardBreakdown("a", (), 1.0)], {}) for s in range(5)]
    assert fell[-1].rollouts[0].actions == ("TRY",) * 19  # turns without a readable call are no action
    assert find("action_collapse", fell) == []


def test_entropy_collapse():
    fell = [*HEALTHY[:5], batch(5, train__entropy=0.1)]
    [finding] = find("entropy_collapse", fell)
    assert finding.value == pytest.approx(0.1) and finding.severity == "warning"
    solved = [batch(s, task=lambda i: float(i > 0), train__entropy=1 / (1 + s)) for s in range(10)]
    [sure] = find("entropy_collapse", solved)
    assert sure.severity == "hint" and "success stays at 88%" in sure.message


def test_logprob_mismatch():
    apart = [*HEALTHY[:5], batch(5, rollout__logprob_mismatch=0.2, rollout__staleness=2.0)]
    [finding] = find("logprob_mismatch", apart)
    assert finding.value == pytest.approx(0.2)
    assert "lower rollouts.max_staleness" in finding.message
    assert find("logprob_mismatch", HEALTHY) == []


def test_length_collapse():
    [finding] = find("length_collapse", [*HEALTHY[:5], batch(5, tokens=10)])
    assert "shrank to 10 tokens" in finding.message
    in_turns = [
        replace(b, rollouts=[replace(r, tokens=0, turns=1 if b.step == 5 else 4) for r in b.rollouts])
        for b in map(batch, range(6))
    ]
    [in_turns] = find("length_collapse", in_turns)
    assert "turns" in in_turns.message


def test_groups_without_variance():
    flat = [batch(s, task=lambda i: 1.0) for s in range(5, 10)]
    [finding] = find("groups_without_variance", flat)
    assert finding.value == 1.0
    assert finding.severity == "good" and finding.message.startswith("solved"), "all right is no trouble"
    [wrong] = find("groups_without_variance", [batch(s, task=lambda i: 0.0) for s in range(5, 10)])
    assert wrong.severity == "warning" and "easier tasks" in wrong.message
    assert find("groups_without_variance", HEALTHY) == []


def test_what_is_not_finite():
    [finding] = find("not_finite", [batch(0, train__loss=math.nan, rewards__nonfinite=3.0)])
    assert finding.message == "NaN or infinity in train/loss; 3 raw reward values, which count as 0."
    [finding] = find("not_finite", [batch(0, task=lambda i: math.inf if i == 3 else 0.0)])
    assert finding.trajectories == ("0-3",) and "the reward of 1 trajectory." in finding.message


def test_a_finding_is_reported_once_and_again_after_a_window():
    diagnosis = Diagnosis(WINDOW)
    reported = [s for s in range(25) if diagnosis.observe(batch(s, coherence=lambda i: 4.0 * (i % 3)))]
    assert reported == [2, 12, 22]
    for s in range(25, 35):
        diagnosis.observe(batch(s))  # the window forgets
    assert not any(diagnosis.observe(batch(s)) for s in range(35, 40))
    again = [s for s in range(40, 60) if diagnosis.observe(batch(s, coherence=lambda i: 4.0 * (i % 3)))]
    assert again  # it went away and came back


def test_a_finding_is_kept_where_it_is_strongest():
    lengths = [100, 100, 100, 45, 10, 30]
    diagnosis = Diagnosis(WINDOW)
    for s, tokens in enumerate(lengths):
        diagnosis.observe(batch(s, tokens=tokens))
    [found] = diagnosis.found()
    assert (found.finding.detector, found.finding.value) == ("length_collapse", pytest.approx(0.1))
    assert (found.step, found.strongest, found.count) == (3, 4, 3)


def test_a_hint_does_not_hide_a_warning():
    diagnosis = Diagnosis(WINDOW)
    success = [lambda i, s=s: float(i < s) for s in (1, 2, 3)]
    for s, task in enumerate(success):
        diagnosis.observe(batch(s, task=task, train__entropy=1.0))
    assert [f.severity for f in diagnosis.observe(batch(3, task=lambda i: float(i < 4), train__entropy=0.1))] == [
        "hint"
    ]
    found = [f for s in (4, 5, 6, 7) for f in diagnosis.observe(batch(s, task=lambda i: 0.0, train__entropy=0.05))]
    assert [f.severity for f in found] == ["warning"]


def test_a_sampler_that_differs_by_as_much_as_was_learned_is_reported():
    run = [batch(s, sampler__kl=2e-3, kl__mean=2.5e-3) for s in range(10)]
    assert find("sampler_mismatch", run[:4]) == [], "too early to know what is learned"
    [finding] = find("sampler_mismatch", run)
    assert "model.sampling" in finding.message and finding.value == pytest.approx(0.8)
    exact = [batch(s, sampler__kl=1e-9, kl__mean=1e-10) for s in range(10)]
    assert find("sampler_mismatch", exact) == [], "rounding of float32"
    still = [batch(s, sampler__kl=2e-3, kl__mean=2.5e-3, train__grad_norm=0.0) for s in range(10)]
    assert find("sampler_mismatch", still) == [], "nothing could be learned"
    [gross] = find("sampler_mismatch", [batch(s, sampler__kl=0.2, kl__mean=1.0) for s in range(3)])
    assert "same tokens" in gross.message and gross.value == pytest.approx(0.2), "nothing must be learned to see that"
    stale = [batch(s, sampler__kl=0.2, kl__mean=1.0, rollout__staleness=2.0) for s in range(3)]
    assert find("sampler_mismatch", stale) == [], "an older version has other log-probs"
    assert find("sampler_mismatch", [*still[:9], batch(9, sampler__kl=2e-3, kl__mean=2.5e-3, train__grad_norm=0.1)])


def test_shares_are_judged_in_a_full_window_or_at_the_end():
    flat = [batch(s, task=lambda i: 0.0) for s in range(12)]
    live = Diagnosis(WINDOW)
    assert [s for s, b in enumerate(flat) if live.observe(b)] == [9]
    assert live.end() == []
    short = Diagnosis(WINDOW)
    assert not any(short.observe(b) for b in flat[:4])
    assert [f.detector for f in short.end()] == ["groups_without_variance"]


def test_what_a_record_lacks_is_listed_as_not_checked():
    diagnosis = Diagnosis(WINDOW)
    diagnosis.observe(Batch(0, [RolloutSummary("a", "g", None, {}, actions=("LOOK",))]))
    assert diagnosis.unchecked() == {
        "advantage_share": "weighted reward components that add up to the reward",
        "reward_without_success": "rewards and which rollouts are correct",
        "entropy_collapse": "the metric train/entropy",
        "entropy_rise": "the metric train/entropy",
        "random_policy": "the metric train/entropy",
        "logprob_mismatch": "the metric rollout/logprob_mismatch",
        "sampler_mismatch": "the metric sampler/kl and the metric kl/mean",
        "length_collapse": "agent tokens or turns",
        "groups_without_variance": "rewards",
        "reward_hack": "rewards and agent texts",
        "kl_rise": "the metric kl/mean",
        "no_movement": "the metric train/grad_norm",
        "mixed_groups": "task ids",
        "accepted_wrong_answers": "right answers and which rollouts are correct",
        "held_out_gap": "which rollouts are correct and evaluations on held-out tasks",
        "reward_against_success": "rewards and evaluations on held-out tasks",
        "leaked_answer": "prompts without images and right answers and evaluations on held-out tasks",
        "drift": "the metric kl/mean and evaluations on held-out tasks",
        "own_texts": "prompts without images and evaluations on held-out tasks",
        "prompt_gap": "prompts without images and evaluations on held-out tasks",
        "noisy_reward": "agent texts and task ids and rewards",
        "noisy_labels": "prompts without images and task ids and right answers",
        "reward_order": "rewards and which rollouts are correct",
        "repeated_rollouts": "agent texts and task ids",
        "reference_mismatch": "the metric kl/mean",
        "rejected_answers": "right answers and which rollouts are correct",
        "accepted_without_answer": "right answers and which rollouts are correct",
        "constant_reward": "rewards and agent texts",
        "unanswered": "right answers",
        "advantage_order": "rewards and advantages",
        "advantage_scale": "rewards and advantages",
        "few_tasks": "task ids",
        "ordered_tasks": "task ids and prompts without images",
        "trained_tokens": "token counts in the loss and in the turns",
        "surprising_tokens": "token log-probs and the metric train/entropy",
        "no_diversity": "agent texts",
        "length_reward": "rewards and agent tokens or turns",
        "repetition": "agent texts",
        "one_answer": "agent texts and task ids",
        "truncation": "agent tokens or turns",
        "clipped": "the metric train/clip_fraction",
        "kl_weight": "the metric kl/beta and the metric kl/mean",
        "silence_paid": "rewards and right answers",
        "single_prompt": "task ids and the metric kl/mean",
        "used_advantages": "advantages and advantages in the loss",
        "prompt_cut": "prompt tokens",
        "paid_certainty": "rewards and token log-probs",
        "copied_prompt": "rewards and agent texts and prompts without images",
        "dead_component": "rewards",
        "rejected_form": "agent texts and right answers and rewards",
        "repeated_prompts": "task ids and prompts without images",
        "seen_tasks": "prompts without images and evaluations on held-out tasks",
        "paid_word": "rewards and agent texts",
        "paid_wrong_answers": "right answers and rewards",
    }


def test_a_detector_that_fails_costs_nothing_else(caplog: pytest.LogCaptureFixture):
    def broken(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
        raise ZeroDivisionError

    diagnosis = Diagnosis(WINDOW, {"broken": Detector(broken), "not_finite": DETECTORS["not_finite"]})
    with caplog.at_level(logging.ERROR):
        assert len(diagnosis.observe(batch(0, train__loss=math.nan))) == 1
    assert "detector broken failed at step 0" in caplog.text


def test_a_batch_from_trajectories_and_their_breakdowns():
    from grpo_tui.rewards.orchestrator import RewardOrchestrator

    found = [good("a", correct=True), good("b", correct=False)]
    result = RewardOrchestrator(0, 0, 1).calculate_total_reward(found, [True, False])
    made = batch_of(3, found, result.breakdowns, result.metrics, tokens=[5, 6])
    assert [r.contributions["task"] for r in made.rollouts] == [1.0, 0.0]
    assert [(r.correct, r.tokens, r.actions[-1]) for r in made.rollouts] == [(True, 5, "ANSWER"), (False, 6, "ANSWER")]
    assert made.metrics["behavior/action_distribution/ANSWER"] == pytest.approx(1 / 3)


def test_a_reward_function_that_never_fires_is_a_hint():
    def scored(step: int, fires: Callable[[int], float]) -> Batch:
        rollouts = [
            RolloutSummary(
                f"{step}-{i}",
                f"{step}-{i // 8}",
                i % 2 + fires(i),
                {"right": i % 2, "form": fires(i)},
                goals=frozenset({"task", "environment", "right", "form"}),
            )
            for i in range(64)
        ]
        return Batch(step, rollouts)

    [dead] = find("dead_component", [scored(s, lambda i: 0.0) for s in range(10)])
    assert (dead.subject, dead.severity) == ("form", "hint") and "640 rollouts" in dead.message
    rare = [scored(s, lambda i, s=s: float(i == 7 and s == 4)) for s in range(10)]
    assert find("dead_component", rare) == []
    assert find("dead_component", [scored(s, lambda i: 0.0) for s in range(7)]) == [], "too early"
    others = [scored(s, lambda i: 0.0) for s in range(10)]
    others = [replace(b, rollouts=[replace(r, goals=frozenset()) for r in b.rollouts]) for b in others]
    assert [f.subject for f in find("dead_component", others)] == ["form"], "a record of another trainer"


def test_graded_groups_with_the_highest_reward_are_solved():
    def graded(reward: Callable[[int], float]) -> list[Batch]:
        batches = [batch(s, task=reward) for s in range(10)]
        return [replace(b, rollouts=[replace(r, correct=None) for r in b.rollouts]) for b in batches]

    [solved] = find("groups_without_variance", [*graded(lambda i: 0.9)[:9], *graded(lambda i: i / 10)[9:]])
    assert (solved.subject, solved.severity) == ("solved", "good") and "highest reward, 0.9" in solved.message
    [flat] = find("groups_without_variance", graded(lambda i: 0.9))
    assert flat.severity == "warning", "no other reward was ever seen"


def test_a_kl_that_rises_with_a_graded_reward_is_a_hint():
    def severities(reward: Callable[[int], float]) -> list[str]:
        run = [batch(s, task=lambda i, s=s: i / 8 + reward(s), kl__mean=0.3 * s) for s in range(6)]
        run = [replace(b, rollouts=[replace(r, correct=None) for r in b.rollouts]) for b in run]
        return [f.severity for f in find("kl_rise", run)]

    assert (severities(lambda s: 0.2 * s), severities(lambda s: -0.2 * s)) == (["hint"], ["warning"])


def test_unreadable_calls_of_a_policy_that_learns_are_a_hint():
    def severities(improves: bool) -> set[str]:
        run = [batch(s, task=lambda i, s=s: float(i < (s if improves else 4))) for s in range(8)]
        run = [replace(b, rollouts=[replace(r, unreadable=n < 2) for n, r in enumerate(b.rollouts)]) for b in run]
        return {f.severity for f in find("unreadable_calls", run)}

    assert (severities(True), severities(False)) == ({"hint"}, {"warning"})
