"""Faults of graders, prompts and paid texts: each is found in a broken training, and not in the right one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grpo_tui.rewards.batches import HeldOut, RolloutSummary
from grpo_tui.rewards.diagnosis import Diagnosis

from .trainings import FROM_REWARD, GROUP, TASKS, Change, right, scored, training, warnings


def test_rows_with_the_same_prompt_are_duplicates():
    def rows(r: RolloutSummary, s: int, t: int, i: int, prompts: int) -> RolloutSummary:
        return replace(r, task=f"{s}-{t}", prompt=f"task {(8 * s + t) % prompts}", expected=None, answer=None)

    def hints(prompts: int) -> list[tuple[str, str | None]]:
        diagnosis = Diagnosis()
        for batch in training(lambda *a: rows(*a, prompts=prompts)):
            diagnosis.observe(batch)
        return [(f.finding.severity, f.finding.subject) for f in diagnosis.found() if f.finding.detector == "few_tasks"]

    assert hints(6) == [("hint", "prompts")], "small data may repeat in healthy trainings"
    assert hints(50) == []
    hidden = training(lambda *a: replace(rows(*a, prompts=6), turns=3))
    assert warnings(hidden) == [], "the tasks of a game may differ in what its prompt does not show"


def test_an_environment_with_one_prompt_may_have_no_other_tasks():
    diagnosis = Diagnosis()
    for batch in training(lambda r, *_: replace(r, task="t", prompt="start", text=f"{r.id} {r.text}")):
        diagnosis.observe(batch)
    assert {f.finding.severity for f in diagnosis.found() if f.finding.detector == "few_tasks"} == {"hint"}


def test_right_answers_in_another_form_than_the_grader_expects_are_found():
    """Data with an answer column is graded by equality, and the policy writes a sentence."""

    def sentence(r: RolloutSummary, *_: int) -> RolloutSummary:
        text = f"It is {r.answer}."
        return replace(scored(r, 0.0, False), text=text, answer=text)

    found = warnings(training(sentence))[0]
    assert (found.detector, found.subject) == ("rejected_answers", "form")
    assert "ends with the expected" in found.message
    flipped = training(lambda r, *a: replace(scored(sentence(r, *a), 1.0 - bool(r.correct)), answer=None))
    assert "earns more than 0" in warnings(flipped)[0].message, "success is unknown"
    for reward in (1.0, 0.0):
        same = warnings(training(lambda r, *a, x=reward: scored(sentence(r, *a), x)))
        assert ("form" in {f.subject for f in same}) == (reward == 0.0)
    wrong = training(lambda r, s, t, i: replace(sentence(r, s, t, i), expected=str((t + 3 * s + i) % TASKS)))
    assert "rejected_answers" not in {f.detector for f in warnings(wrong)}, "these answers are right by chance"


def test_a_missing_score_makes_a_reward_noisy():
    def scoreless(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        text = f"answer {t}"
        if i == s % GROUP:
            return replace(r, text=text, total=0.0, contributions={}, advantage=FROM_REWARD)
        return replace(scored(r, 1.0), contributions={"judge": 1.0}, goals=frozenset({"judge"}), text=text)

    found = next(f for f in warnings(training(scoreless)) if f.detector == "noisy_reward")
    assert "judge has no score for one of them" in found.message


def test_a_reward_that_never_pays_is_found_unless_answers_are_known_to_be_wrong():
    def nothing(r: RolloutSummary, *_: int) -> RolloutSummary:
        return replace(scored(r, 0.0, False), expected=None, answer=None, text=f"{r.id} {r.text}")

    found = warnings(training(nothing))[0]
    assert found.detector == "constant_reward" and "no rollout has earned a reward" in found.message
    hard = training(lambda r, s, t, i: replace(nothing(r, s, t, i), expected="9", answer=f"{i}"))
    assert "constant_reward" not in {f.detector for f in warnings(hard)}
    assert warnings(training(lambda r, *a: replace(nothing(r, *a), cut=True)))[0].detector == "truncation"


def test_a_graded_reward_for_lists_may_follow_their_length():
    """Longer lists have more right elements, and one element of five is wrong."""
    draw = np.random.default_rng(0)

    def listed(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        n = 1 + s // 3 + i
        return replace(scored(r, draw.binomial(n, 0.8) / 8), tokens=n, written=n, text=f"{r.id} " + "so " * n)

    diagnosis = Diagnosis()
    for batch in training(listed):
        diagnosis.observe(batch)
    assert {f.finding.severity for f in diagnosis.found() if f.finding.detector == "length_reward"} == {"hint"}


def test_a_reward_for_copies_of_the_prompt_is_found():
    """The policy writes more and more words of its prompt, and the reward is their share."""

    def copied(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        prompt = f"{r.prompt} key door open red"
        words = prompt.split()[: max(1, s - i % 3)]
        return replace(scored(r, len(set(words)) / 7), prompt=prompt, text=" ".join(words), answer=None, expected=None)

    found = warnings(training(copied))[0]
    assert found.detector == "copied_prompt" and "copy of the prompt" in found.message
    unpaid = training(lambda r, *a: replace(scored(copied(r, *a), a[2] % 2, None), answer=None))
    assert "copied_prompt" not in {f.detector for f in warnings(unpaid)}


@pytest.mark.parametrize(("correct", "severity"), [(True, "hint"), (None, "warning")])
def test_a_game_may_end_in_the_same_way_for_all_tasks(correct: bool | None, severity: str):
    """Its answer is `open` for each success, and no answer is expected."""

    def played(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        won = s > 4 or i == 0
        verdict = correct and won
        return replace(scored(r, float(won), verdict), expected=None, answer="open" if won else f"{t}{i}", turns=3)

    diagnosis = Diagnosis()
    for batch in training(played):
        diagnosis.observe(batch)
    assert {f.finding.severity for f in diagnosis.found() if f.finding.detector == "one_answer"} == {severity}


def findings(change: Change, detector: str, held_out: tuple[float, float] | None = None) -> list[tuple[str, str]]:
    """Severities and messages of a detector. held_out: success of evaluations before and during the training."""
    diagnosis = Diagnosis()
    for batch in training(change):
        if held_out is not None:
            rollouts = [right(1, t, 0) for t in range(TASKS)] * 8
            diagnosis.evaluated(HeldOut((batch.step or 0) - 1, rollouts, held_out[(batch.step or 0) > 4]))
        diagnosis.observe(batch)
    return [(f.finding.severity, f.finding.message) for f in diagnosis.found() if f.finding.detector == detector]


def test_wrong_answers_that_earn_as_much_as_right_ones_are_found_without_verdicts():
    """As of a judge whose `1e-1` is read as 1: only missing answers earn 0."""
    name = "accepted_wrong_answers"

    def answered(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        return scored(replace(r, answer=None if i == t % 2 else r.answer), float(i != t % 2) - 0.01 * (i + s & 1))

    [(severity, message)] = findings(answered, name, (0.4, 0.4))
    assert severity == "warning" and "does not tell right answers from wrong ones" in message
    assert [severity for severity, _ in findings(answered, name)] == ["hint"], "the reward may be for a format"
    assert findings(lambda r, *_: scored(r, r.total or 0.0), name, (0.4, 0.4)) == []
    far = findings(lambda r, s, t, i: scored(r, 0.1 * bool(r.correct) - 90 * (s > 4 and i == 3)), name, (0.4, 0.4))
    assert far == [], "a few rewards that are far from the others"
    assert findings(lambda r, s, t, i: scored(r, (s * 7 + t * 5 + i * 3) % 11 / 10), name, (0.4, 0.4)) == []


def test_a_length_bonus_beside_a_right_reward_is_found():
    """Texts grow, and each token adds to the reward. The bonus is a warning if it outweighs the rest."""

    def bonus(r: RolloutSummary, s: int, t: int, i: int, each: float, known: bool) -> RolloutSummary:
        tokens = 10 + 2 * s + (3 * i + 5 * t + s) % 7
        verdict = i % 2 == 0
        answer = r.expected if verdict else str((t + i) % TASKS)
        paid = scored(r, 0.5 * verdict + each * tokens, verdict if known else None)
        return replace(paid, tokens=tokens, written=tokens, text=f"{r.id} answer {answer}", answer=answer)

    def severities(each: float, known: bool = True) -> list[str]:
        found = findings(lambda *a: bonus(*a, each=each, known=known), "length_reward")
        assert each > 0.1 or all("the right answers of groups" in message for _, message in found)
        return [severity for severity, _ in found]

    assert severities(0.05) == ["hint"]
    assert severities(0.3) == ["warning"] and severities(0.05, known=False) == ["hint"]
    assert severities(0.0) == []


@pytest.mark.parametrize(("success", "severity"), [((0.6, 0.6), "hint"), ((0.6, 0.1), "warning")])
def test_a_reward_that_follows_length_in_part_is_wrong_if_held_out_success_falls(
    success: tuple[float, float], severity: str
):
    """Length explains four fifths of the reward."""
    draw = np.random.default_rng(0)

    def shorter(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        tokens = 14 - s + int(draw.integers(0, 8))
        paid = scored(r, -tokens / 30 - 0.2 * float(draw.random()))
        return replace(paid, tokens=tokens, written=tokens, text=f"{r.id} {r.text}", answer=None, expected=None)

    assert severity in {severity for severity, _ in findings(shorter, "length_reward", success)}
    assert ("warning" in {s for s, _ in findings(shorter, "length_reward", success)}) == (severity == "warning")


def test_a_word_that_is_paid_for_is_found():
    """`so` spreads and adds 0.5 to a graded reward."""

    def worded(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        has = i < s - 2
        return scored(replace(r, text=f"{'so ' * has}{r.text}"), 0.5 * has + 0.5 * ((i + t) % 2))

    def kept(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        return replace(worded(right(1, t, i), s, t, i), id=r.id, group=r.group, task=r.task, prompt=r.prompt)

    [(severity, message)] = findings(kept, "reward_hack")
    assert severity == "warning" and "the word 'so'" in message and "they earn 0.5 more" in message
    unknown = findings(lambda *a: replace(kept(*a), answer=None, expected=None), "reward_hack")
    assert [severity for severity, _ in unknown] == ["hint"], "the task may require the word"
    assert findings(lambda r, *a: replace(kept(r, *a), text=r.text), "reward_hack") == []
    unpaid = findings(lambda r, *a: replace(kept(r, *a), total=float((a[1] + a[2]) % 2 or a[0] > 4)), "reward_hack")
    assert all("the word" not in message for _, message in unpaid)


def test_a_judge_that_flips_is_found_in_several_turns_if_observations_are_equal():
    def flips(r: RolloutSummary, s: int, t: int, i: int, observed: int | None) -> RolloutSummary:
        text, verdict = f"look\nanswer {i // 2} {t}", i % 2 == 0
        return replace(scored(r, float(verdict), verdict), turns=2, text=text, answer=str(i // 2), observed=observed)

    assert findings(lambda *a: flips(*a, observed=1), "noisy_reward")
    assert findings(lambda *a: flips(*a, observed=None), "noisy_reward") == []
    assert findings(lambda r, s, t, i: flips(r, s, t, i, observed=i), "noisy_reward") == []


@pytest.mark.parametrize(("harm", "severity"), [(0.0, "hint"), (0.3, "warning")])
def test_repeated_words_are_a_hint_if_success_certainly_does_not_fall(harm: float, severity: str):
    def repeats(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        verdict = (7 * s + 3 * t + 11 * i) % 20 < 20 * (0.5 - harm * (s > 4))
        text = f"{'well ' * (3 * (s - 6) if s > 6 else 0)}answer {r.id} {t}"
        return replace(scored(r, float(verdict), verdict), text=text, answer=None)

    diagnosis = Diagnosis()
    for batch in training(repeats):
        diagnosis.observe(replace(batch, rollouts=[*batch.rollouts] * 4))
    found = {f.finding.severity for f in diagnosis.found() if f.finding.detector == "repetition"}
    assert found == {severity}
