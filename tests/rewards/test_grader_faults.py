"""Faults of graders, prompts and paid texts: each is found in a broken training, and not in the right one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grpo_tui.rewards.batches import RolloutSummary
from grpo_tui.rewards.diagnosis import Diagnosis

from .trainings import FROM_REWARD, GROUP, TASKS, scored, training, warnings


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
