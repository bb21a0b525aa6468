"""Contradictions in the record and faults of texts: each is found in a broken training, and not in the right one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from grpo_tui.configs import metric_names as metric
from grpo_tui.rewards.batches import Batch, HeldOut, RolloutSummary, rollout_of
from grpo_tui.rewards.diagnosis import Diagnosis

from .episodes import good
from .trainings import GROUP, TASKS, right, scored, training, warnings


def flipped(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    wrong = (step * 7 + task * 5 + i * 3) % 5 < 2
    verdict = bool(r.correct) != wrong
    return scored(r, float(verdict), verdict)


def empty(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    return replace(scored(r, 1.0, True), text="answer", answer=None) if i < step else r


def swapped(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    return replace(r, advantage=1.0 if (step + task + i // 2) % 2 else -1.0)


def length_paid(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    n = 4 * step + 4 * i
    return replace(scored(r, n / 80), text=f"{r.id} " + "so " * n, tokens=n, written=n)


def brevity_paid(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    n = max(1, 60 - 6 * step - 4 * i)
    return replace(scored(r, 1 - n / 80), text=f"{r.id} " + "so " * n, tokens=n, written=n)


def repeating(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    return scored(replace(r, text=f"{r.id} so it is well " + "so " * 4 * step, answer=None), 0.1 * step)


def same_answer(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    return replace(scored(r, 1.0, True), answer="6", text=f"{r.id} answer 6") if step > 4 else r


def alike(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    return replace(scored(r, task % 2, task % 2 == 1), text=f"answer {task * (task % 2)}", advantage=0.0)


def shifted(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    late = float(right(step, task, (i + task % 2) % GROUP).total or 0.0)
    return replace(r, total=late, contributions={"task": late}, advantage=late - 0.5)


def silent(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    """Wrong answers cost 2, and more and more rollouts hold no answer."""
    quiet = i < step // 2
    return scored(replace(r, answer=None, text=f"?? {r.id}"), 0.0, False) if quiet else scored(r, *costly(r))


def costly(r: RolloutSummary) -> tuple[float, bool]:
    return (1.0 if r.correct else -2.0), bool(r.correct)


def other_columns(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
    other = right(step, (task + step) % TASKS, i)
    return replace(other, id=r.id, group=r.group, task=f"{step}{task}", prompt=f"task {task}")


FAULTS: dict[str, list[Batch]] = {
    "noisy_reward": training(flipped),
    "rejected_answers": training(lambda r, *_: scored(r, 0.0, False)),
    "accepted_without_answer": training(empty),
    "accepted_wrong_answers": training(
        lambda r, s, t, i: scored(r, 1.0, True) if i == 3 else scored(r, r.total or 0.0, r.correct)
    ),
    "mixed_groups": training(lambda r, s, t, i: replace(r, task=f"{r.task}-{i}")),
    "constant_reward": training(lambda r, *_: scored(r, 1.0, True)),
    "unanswered": training(lambda r, *_: replace(scored(r, 0.0, False), answer="", text=f"?? {r.id}")),
    "noisy_labels": training(other_columns),
    "reward_order": training(shifted),
    "repeated_rollouts": training(lambda r, s, t, i: right(1, t, i)),
    "silence_paid": training(silent),
    "prompt_cut": training(lambda r, s, t, i: replace(r, unread=0.4 * (t % 2) if i == 0 else None)),
    "text_mismatch": training(lambda r, s, t, i: replace(r, unread=0.0, unwritten=0.5) if i == 0 else r),
    "untrained_tokens": training(lambda r, *_: replace(r, tokens=8)),
    "advantage_order": training(swapped),
    "advantage_scale": training(lambda r, *_: replace(r, advantage=0.001 * (r.advantage or 0.0))),
    "few_tasks": training(lambda r, *_: replace(r, task="t", text=f"{r.id} {r.text}")),
    "trained_tokens": training(lambda r, *_: replace(r, tokens=14)),
    "surprising_tokens": training(lambda r, *_: replace(r, surprise=4.0)),
    "no_diversity": training(alike),
    "length_reward": training(length_paid),
    "repetition": training(repeating),
    "one_answer": training(same_answer),
    "truncation": training(lambda r, s, t, i: replace(r, cut=i > 0)),
    "clipped": training(lambda r, *_: r, **{metric.CLIP_FRACTION: 0.6}),
    "kl_weight": training(
        lambda r, s, t, i: replace(right(1, t, i), task=r.task, prompt=r.prompt),
        **{metric.BETA: 20.0, metric.KL_MEAN: 1e-4},
    ),
}


def test_a_training_in_order_ends_without_a_warning():
    assert warnings(training()) == []


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_the_first_cause(name: str):
    found = warnings(FAULTS[name])
    assert found[0].detector == name
    assert found[0].trajectories or name == "clipped", "rollouts that show it"


def test_ends_of_turns_outside_the_loss_are_found():
    [found] = warnings(training(lambda r, s, t, i: replace(r, tokens=9 if i or t else 10)))  # one was cut off
    assert found.detector == "untrained_tokens" and "end of turns" in found.message
    assert warnings(training(lambda r, s, t, i: replace(r, tokens=9 if i > 1 else 10))) == []


def test_a_prompt_is_whole_if_its_words_are_among_its_tokens():
    asked = replace(good(), prompt="Which is larger, 12 or 7 Å?")
    for read, unread in (
        ("<|user|>which is  LARGER, 12 or 7 \u212b?<|end|>", 0.0),
        ("12 or 7 Å?", 3 / 7),
        ("Which is larger, 1", 4 / 7),
        ("", 1.0),
    ):
        assert rollout_of(asked, None, read=(read, "")).unread == pytest.approx(unread)
    assert rollout_of(asked, None).unread is None
    system = replace(asked, prompt="[system] Be brief.\n\nAdd 1")
    assert rollout_of(system, None, read=("be brief add 1", "")).unread == 0
    assert rollout_of(replace(asked, prompt="?"), None, read=("?", "")).unread is None


def test_the_texts_of_turns_are_those_of_their_tokens():
    rollout = good()
    text = " ".join(step.text for step in rollout.steps)
    assert rollout_of(rollout, None, read=("", f"<s>{text}</s>")).unwritten == 0
    assert rollout_of(rollout, None, read=(text, "")).unwritten == 1
    assert rollout_of(rollout, None).unwritten is None


def test_advantages_may_follow_another_part_of_the_reward():
    """A component that works against the task is a fault of its weight, not of the advantage."""

    def outweighed(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
        cost = -10.0 * ((i + task) % 3)
        paid = scored(r, r.total or 0.0, r.correct)
        return replace(paid, total=(r.total or 0.0) + cost, contributions={"task": r.total or 0.0, "overlong": cost})

    found = {f.detector for f in warnings(training(outweighed))}
    assert "advantage_share" in found and "advantage_order" not in found


def test_advantages_around_another_baseline_are_off_centre():
    """Advantages of rewards minus a mean of other numbers are nearly all below 0."""
    [found] = warnings(training(lambda r, *_: replace(r, advantage=(r.advantage or 0.0) - 0.5)))
    assert (found.detector, found.subject) == ("advantage_scale", "mean") and "below 0" in found.message
    assert warnings(training(lambda r, *_: replace(r, advantage=(r.advantage or 0.0) + 0.1))) == []


@pytest.mark.parametrize("cut", [False, True])
def test_rollouts_outside_the_loss_do_not_set_the_baseline(cut: bool):
    """The last rollout of each group earns 100 and is not in the loss. A setting may mask rollouts that a limit cut."""

    def rejected(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        last = i == GROUP - 1
        return replace(scored(r, 100.0 * last or r.total or 0.0, r.correct), masked=last, cut=cut and last)

    assert ("advantage_scale" in {f.detector for f in warnings(training(rejected))}) != cut


def test_a_reward_that_is_the_certainty_of_the_policy_is_found():
    def certain(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
        surprise = 0.3 + (step * 13 + task * 7 + i * 29) % 41 / 41
        text = f"{r.id} {r.text}"
        return replace(scored(r, math.exp(-surprise)), answer=None, expected=None, surprise=surprise, text=text)

    found = {(f.detector, f.subject) for f in warnings(training(certain))}
    assert ("paid_certainty", "certainty") in found

    def judged(r: RolloutSummary, *given: int) -> RolloutSummary:
        sure = certain(r, *given)
        return replace(sure, total=r.total, contributions=r.contributions, correct=r.correct, advantage=r.advantage)

    assert "paid_certainty" not in {f.detector for f in warnings(training(judged))}, "a verdict has two levels"


def test_steps_of_one_prompt_that_teach_nothing_are_found():
    def same(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
        return replace(right(1, task, i), id=r.id, group=r.group, task=f"{step}", text=f"{r.id} so")

    steps = [replace(b, metrics={**b.metrics, metric.KL_MEAN: 0.035 * (b.step or 0)}) for b in training(same)]
    alone = [replace(b, rollouts=b.rollouts[:GROUP]) for b in steps]
    [found] = warnings(alone)
    assert found.detector == "single_prompt"
    assert warnings([replace(b, rollouts=b.rollouts[: 2 * GROUP]) for b in steps]) == []


def test_a_reward_may_charge_for_calls():
    def charged(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
        calls = (i + task) % 3
        return replace(scored(r, (r.total or 0.0) - 3 * calls, r.correct), actions=("LOOK",) * calls, text=f"{r.id} a")

    assert "reward_order" not in {f.detector for f in warnings(training(charged))}
    hidden = training(lambda *given: replace(charged(*given), actions=()))
    [found] = [f for f in warnings(hidden) if f.detector == "reward_hack"]
    assert found.message.startswith("the reward pays for something other than right answers: read a wrong one that")


def test_tokens_are_surprising_also_where_no_group_has_a_signal():
    def lost(surprise: float) -> list[Batch]:
        return training(
            lambda r, s, t, i: replace(r, surprise=surprise if s > 1 else 0.9, entropy=0.9 if s == 1 else None)
        )

    assert warnings(lost(4.0))[0].detector == "surprising_tokens"
    assert warnings(lost(0.2)) == [], "tasks that are solved are left out, and have little entropy"
    brief = training(lambda r, s, t, i: replace(r, surprise=0.2, entropy=None if i else 0.9, masked=i > 0, cut=i > 0))
    assert "surprising_tokens" not in {f.detector for f in warnings(brief)}, "texts that end early are likelier"


def test_the_loss_uses_the_advantages_of_the_rollouts():
    assert warnings(training(lambda r, *_: replace(r, used=(r.advantage or 0.0) * 1.02))) == []
    [found] = warnings(training(lambda r, s, t, i: replace(r, used=right(s, t, (i + 1) % GROUP).advantage)))
    assert (found.detector, found.subject, found.severity) == ("advantage_order", "loss", "failure")


def test_rollouts_that_the_loss_leaves_out_are_found_unless_a_limit_ended_them():
    [found] = warnings(training(lambda r, s, t, i: replace(r, masked=i == 1)))
    assert found.detector == "untrained_tokens" and "whole rollouts" in found.message
    cut = training(lambda r, s, t, i: replace(r, masked=i > 0, cut=i > 0))
    assert "untrained_tokens" not in {f.detector for f in warnings(cut)}


def test_rollouts_that_the_loss_lost_are_found_if_it_has_terms_of_others():
    """The loss has copies of one row. Several updates on the same rollouts have some of them each."""

    def lost(has: bool | None) -> list[Batch]:
        return training(lambda r, s, t, i: replace(r, in_loss=has if i else True))

    [found] = warnings(lost(False))
    assert found.detector == "untrained_tokens" and "that training selected" in found.message
    assert warnings(lost(None)) == [] and warnings(lost(True)) == []
    assert warnings([replace(b, step=2 * (b.step or 0)) for b in lost(False)]) == []
    assert warnings(training(lambda r, *_: replace(r, in_loss=False))) == [], "terms are not recorded"


@pytest.mark.parametrize(("right", "severity"), [(0.4, "hint"), (0.05, "warning"), (0.0, "warning")])
def test_a_limit_that_ends_answered_rollouts_is_a_hint(right: float, severity: str):
    """Three quarters of the rollouts are cut. The others are right half of the time."""

    def limited(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        correct = (7 * s + 3 * t + 11 * i) % 20 < 20 * (right if i else 0.5)
        return replace(scored(r, float(correct), correct), cut=i > 0)

    diagnosis = Diagnosis()
    for batch in training(limited):
        diagnosis.observe(batch)
    assert {f.finding.severity for f in diagnosis.found() if f.finding.detector == "truncation"} == {severity}


def test_an_environment_with_one_task_has_it_in_evaluations_as_well():
    for held_out, found in (("t", False), ("other", True)):
        diagnosis = Diagnosis()
        for batch in FAULTS["few_tasks"]:
            diagnosis.evaluated(HeldOut(0, [replace(right(1, 0, 0), task=held_out)], None))
            diagnosis.observe(batch)
        assert ("few_tasks" in {f.finding.detector for f in diagnosis.found()}) == found


def test_steps_of_one_kind_of_task_are_found():
    """Each step shows one of four kinds."""
    [found] = warnings(training(lambda r, s, t, i: replace(r, prompt=f"kind{s % 4} {r.prompt}")))
    assert (found.detector, found.subject) == ("few_tasks", "order") and "shuffle" in found.message
    assert warnings(training(lambda r, s, t, i: replace(r, prompt=f"kind{(s + t) % 4} {r.prompt}"))) == []
    assert warnings(training(lambda r, *_: replace(r, prompt=f"Answer: {r.prompt}"))) == [], "a word of all prompts"


def test_rollouts_without_answers_are_compared_with_those_of_the_evaluation():
    """All training rollouts are cut off before an answer, and the evaluation has answers at first."""
    cut = training(lambda r, *_: replace(scored(r, 0.0, False), answer="", text=f"{r.id} well", cut=True))
    for others, found in (([right(1, t, 0) for t in range(TASKS)], True), (cut[0].rollouts, False)):
        diagnosis = Diagnosis()
        diagnosis.evaluated(HeldOut(0, others, None))
        for batch in cut:
            diagnosis.observe(batch)
        messages = [f.finding.message for f in diagnosis.found() if f.finding.detector == "unanswered"]
        assert [("but evaluation rollouts do" in m) for m in messages] == [True] * found


def test_answers_without_a_verdict_are_answers():
    """A third of the rollouts have a verdict and no answer. The others answer, and no grader judged them."""
    half = training(lambda r, s, t, i: replace(r, answer=None) if i % 3 == 0 else replace(r, correct=None))
    none = [replace(b, rollouts=[replace(r, correct=r.correct and False) for r in b.rollouts]) for b in half]
    assert "unanswered" not in {f.detector for f in warnings(none)}


def test_advantages_that_a_deviation_near_0_divides_are_too_large():
    [found] = warnings(training(lambda r, *_: replace(r, advantage=1e4 * (r.advantage or 0.0))))
    assert found.detector == "advantage_scale" and "too large" in found.message
    assert warnings(training(lambda r, *_: replace(r, advantage=3 * (r.advantage or 0.0)))) == []


def test_the_sign_and_the_order_of_advantages_are_told_apart():
    [mixed] = [f for f in warnings(FAULTS["advantage_order"]) if f.detector == "advantage_order"]
    turned = training(lambda r, *_: replace(r, advantage=-(r.advantage or 0.0)))
    [sign] = [f for f in warnings(turned) if f.detector == "advantage_order"]
    assert "other rollouts" in mixed.message and abs(mixed.value) < 0.3
    assert "sign" in sign.message and sign.value == pytest.approx(-1.0, abs=0.05)


def test_a_fault_of_the_grader_comes_before_the_policy_that_runs_away():
    """The policy meets the fault at step 5, when its KL already rises."""
    kls = [0.01, 0.4, 0.9, 1.5, 2.2, 2.9, 3.6, 4.3]
    batches = [
        replace(b, metrics={**b.metrics, metric.KL_MEAN: kl}) for b, kl in zip(training(empty), kls, strict=False)
    ]
    before = [replace(b, metrics=c.metrics) for b, c in zip(training(), batches, strict=False)]
    found = [f.detector for f in warnings([*before[:4], *batches[4:]])]
    assert found[:2] == ["accepted_without_answer", "kl_rise"]


def test_likelier_tokens_than_samples_are_found_as_well():
    """As of a sampler with top_p 0.3, scored without it."""
    [found] = warnings(training(lambda r, *_: replace(r, surprise=0.2)))
    assert found.detector == "surprising_tokens" and "likelier" in found.message


def test_before_any_update_rollouts_differ_also_where_tasks_are_solved():
    greedy = training(lambda r, s, t, i: replace(scored(r, 1.0, True), text=f"{s} answer {r.expected}"))
    assert "no_diversity" in [f.detector for f in warnings(greedy)]
    later = [replace(b, step=(b.step or 0) + 50) for b in greedy]
    assert "no_diversity" not in [f.detector for f in warnings(later)], "a policy that has learned may be certain"


def test_a_policy_that_solves_its_tasks_from_the_start_is_in_order():
    """Every answer is the expected one; in the second training the policy is certain, and writes one text."""
    solved = training(lambda r, *_: replace(scored(r, 1.0, True), answer=r.expected))
    assert warnings(solved) == []
    certain = training(
        lambda r, *_: replace(scored(r, 1.0, True), answer=r.expected, text=f"answer {r.expected}", surprise=0.01),
        **{metric.ENTROPY: 0.01},
    )
    assert warnings(certain) == []


def test_rewards_that_few_rollouts_reach_success_with_follow_the_verdicts():
    """A graded reward counts as success from 0.95 on, which few answers reach."""

    def graded(r: RolloutSummary, step: int, task: int, i: int) -> RolloutSummary:
        reward = (step * 13 + task * 7 + i * 29) % 41 / 41
        return scored(replace(r, answer=f"{reward}", expected=None), reward, reward > 0.95)

    found = {f.detector for f in warnings(training(graded))}
    assert "reward_order" not in found
    turned = training(lambda *given: replace(graded(*given), correct=not graded(*given).correct))
    assert "reward_order" in {f.detector for f in warnings(turned)}


def test_a_reward_whose_other_components_outweigh_the_verdict_is_not_out_of_order():
    def styled(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        parts = {"accuracy": 0.1 * bool(r.correct), "style": (s * 7 + t * 5 + i * 3) % 11 / 2}
        return replace(scored(r, sum(parts.values()), r.correct), contributions=parts)

    [found] = [f for f in warnings(training(styled)) if f.detector == "reward_order"]
    assert "outweigh accuracy" in found.message and "order of rollouts" not in found.message


def test_a_reward_that_pays_for_short_texts_is_found_as_well():
    found = warnings(training(brevity_paid))
    assert found[0].detector == "length_reward" and "short texts" in found[0].message


def test_a_tool_may_answer_the_same_call_differently(caplog: pytest.LogCaptureFixture):
    """Equal texts of several turns may follow different observations."""
    assert "noisy_reward" not in [
        f.detector for f in warnings(training(lambda r, *a: replace(flipped(r, *a), turns=2)))
    ]
    assert "failed" not in caplog.text


def test_a_group_that_was_filtered_out_has_no_order():
    """Its advantages are 0, and say nothing about the rewards."""
    filtered = training(lambda r, s, t, i: replace(r, advantage=0.0) if t else r)
    assert warnings(filtered) == []


def test_failures_of_most_rollouts_are_found_before_the_window_is_full():
    """A few failures wait for the full window, because they often stop by themselves."""
    for failing, count in ((3, 1), (1, 0)):
        batches = training(lambda r, s, t, i, failing=failing: replace(r, failed=i < failing))
        diagnosis = Diagnosis()
        early = [f.detector for batch in batches[:3] for f in diagnosis.observe(batch)]
        assert early.count("errors") == count
        assert "errors" in [f.detector for f in warnings(batches)]


def test_failed_calls_of_a_policy_that_learns_its_tools_are_a_hint():
    """Half of the calls fail; success rises in the first training and stays in the second."""
    for rises, severity in ((True, "hint"), (False, "warning")):
        learns = training(lambda r, s, t, i, rises=rises: replace(r, call_failed=i % 2 == 0, correct=rises and i < s))
        diagnosis = Diagnosis()
        for batch in learns[:6]:
            diagnosis.observe(batch)
        diagnosis.end()
        found = next(f.finding for f in diagnosis.found() if f.finding.detector == "errors")
        assert found.severity == severity and ("while success rose from" in found.message) == rises


def sampled(temperature: float, seed: int) -> list[Batch]:
    """A training whose policy has other probabilities at each token, and is sampled at a temperature."""
    draw = np.random.default_rng(seed)

    def rollout(r: RolloutSummary, *_: int) -> RolloutSummary:
        p = draw.dirichlet(np.full(8, 0.3), r.written) + 1e-9
        q = p ** (1 / temperature)
        tokens = [draw.choice(8, p=row) for row in q / q.sum(1, keepdims=True)]
        surprise = -np.log(p[range(r.written), tokens]).mean()
        return replace(r, surprise=float(surprise), entropy=float(-(p * np.log(p)).sum(1).mean()))

    return training(rollout)


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 40), marks=pytest.mark.stress)])
def test_samples_of_the_policy_have_its_entropy(seeds: range):
    assert not [f for seed in seeds for f in warnings(sampled(1.0, seed)) if f.detector == "surprising_tokens"]


@pytest.mark.parametrize(("temperature", "fault"), [(1.5, "not samples"), (0.2, "likelier")])
def test_samples_of_another_temperature_do_not(temperature: float, fault: str):
    [found] = [f for f in warnings(sampled(temperature, 0)) if f.detector == "surprising_tokens"]
    assert fault in found.message


def test_log_probs_that_only_the_sampler_has_say_nothing_of_the_tokens():
    def found(kl: float) -> set[str]:
        batches = [replace(b, metrics={**b.metrics, metric.SAMPLER_KL: kl}) for b in sampled(1.5, 0)]
        return {f.detector for f in warnings(batches)}

    assert "surprising_tokens" in found(0.001) and not found(0.5) & {"surprising_tokens"}
    assert "sampler_mismatch" in found(0.5)


def test_few_surprises_of_a_nearly_certain_policy_are_chance():
    """Seen in a training that was in order: 192 rollouts with half of the surprises that their entropy promises."""
    certain = training(lambda r, *_: replace(r, surprise=0.02, entropy=0.1))
    assert "surprising_tokens" not in {f.detector for f in warnings(certain)}


def test_tokens_are_not_compared_with_the_entropy_of_replayed_rollouts():
    def lost(replayed: float) -> set[str]:
        batches = training(lambda r, *_: replace(r, surprise=4.0), **{metric.REPLAY_SHARE: replayed})
        return {f.detector for f in warnings(batches)}

    assert "surprising_tokens" in lost(0.0) and "surprising_tokens" not in lost(1.0)


def test_a_temperature_near_0_is_found_even_if_all_answers_are_right():
    def same(entropy: float) -> set[str]:
        batches = training(
            lambda r, *_: replace(scored(r, 1.0, True), text=f"answer {r.expected}"), **{metric.ENTROPY: entropy}
        )
        return {f.detector for f in warnings(batches)}

    assert "no_diversity" in same(1e-20) and "no_diversity" not in same(0.01)


def test_advantages_are_scaled_by_group():
    """Rewards of some groups differ by 0.01, and of one in eight by 10. All have advantages of size 1."""

    def graded(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        reward = (i == (s + t) % GROUP) * (-10.0 if t == 0 else 0.01)
        return replace(scored(r, reward), advantage=(-1 if t == 0 else 1) * (1.5 if reward else -0.5))

    assert "advantage_order" not in {f.detector for f in warnings(training(graded))}
    wrong = training(lambda r, *a: replace(g := graded(r, *a), advantage=-(g.advantage or 0.0)))
    assert "advantage_order" in {f.detector for f in warnings(wrong)}
