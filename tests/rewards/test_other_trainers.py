"""Records of other trainers: without extracted answers, token counts or verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.sections.rewards import DiagnosisConfig
from grpo_tui.rewards.batches import Batch, HeldOut, RolloutSummary
from grpo_tui.rewards.diagnosis import DETECTORS, Diagnosis

from .trainings import STEPS, scored, training, warnings

LIMITS = DiagnosisConfig()


def unknown(r: RolloutSummary, reward: float, text: str) -> RolloutSummary:
    """The rollout as a trainer records it that knows the reward and the text alone."""
    return replace(scored(r, reward, None), text=text, characters=len(text), tokens=0, written=0, answer=None)


def severities(name: str, batches: list[Batch]) -> list[str]:
    return [f.severity for f in DETECTORS[name](batches, LIMITS)]


@pytest.mark.parametrize(("answer", "found"), [("", True), (None, False)])
def test_answers_that_were_not_recorded_are_not_missing(answer: str | None, found: bool):
    batches = training(lambda r, *_: replace(scored(r, 0.0, False), answer=answer, text=f"{r.id} well"))
    assert ("unanswered" in {f.detector for f in warnings(batches)}) is found


def test_a_number_in_another_form_that_counts_as_wrong_is_found():
    """1000 is expected. Half of the right answers are 1,000.0, which the grader compares as text."""

    def written(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        expected = f"{1000 * (t + 1)}"
        text = f"{r.id} It is {int(expected):,}.0." if i % 2 else f"{r.id} It is {expected}."
        return replace(scored(r, float(i % 2 == 0), i % 2 == 0), text=text, expected=expected, answer=None)

    first = warnings(training(written))[0]
    assert (first.detector, first.subject) == ("rejected_answers", "form")
    assert "ends with the expected '1000'" in first.message and "1,000.0" in first.message
    assert severities("rejected_form", training(lambda *a: scored(written(*a), 1.0, True))) == []


def test_a_reward_for_length_is_found_by_the_characters_of_texts():
    def longer(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        words = s + 3 * i
        return unknown(r, words / 20, " ".join([r.id, *("word" for _ in range(words))]))

    [finding] = [f for f in warnings(training(longer)) if f.detector == "length_reward"]
    assert finding.message.endswith("characters.")


@pytest.mark.parametrize(("left", "found"), [(0.1, []), (0.6, ["warning"])])
def test_a_reward_that_becomes_constant_because_tasks_are_solved_is_fine(left: float, found: list[str]):
    """Half of the answers are wrong at first, and `left` just before the reward is always 1."""

    def solving(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        wrong = 0.0 if s > STEPS - 3 else left if s == STEPS - 3 else 0.5
        return unknown(r, float((4 * t + i + 0.5) / 32 > wrong), f"{r.id} text")

    assert severities("constant_reward", training(solving)) == found


def spreading(text: Callable[[RolloutSummary], str]) -> list[Batch]:
    """A text that spreads and earns more, though not always the same."""

    def spread(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        has = i < s // 2
        return unknown(r, has * (0.9 + 0.01 * i), text(r) if has else f"{r.id} no")

    return training(spread)


def test_a_phrase_that_is_a_small_part_of_long_texts_is_no_hack():
    varied = " ".join(f"w{n}" for n in range(40))
    assert severities("reward_hack", spreading(lambda r: f"let me see {r.id} {varied} let me see")) == []
    assert severities("reward_hack", spreading(lambda r: "let me see let me see let me see")) == ["warning"]


def test_a_run_of_one_mark_is_no_repeated_phrase():
    assert severities("reward_hack", spreading(lambda r: f"{r.id} #### {r.id[-3:]}")) == []


def test_the_last_wrong_answers_of_a_solved_task_show_no_hack():
    """One wrong answer is left, and it happens to contain a text that was rare."""

    def solved(r: RolloutSummary, s: int, t: int, i: int) -> RolloutSummary:
        wrong = (t, i) == (0, 0) or (s < 5 and i > 1)
        return replace(scored(r, -0.1 if s > 4 else -1.0, False), text="by luck we guess") if wrong else r

    assert severities("reward_hack", training(solved)) == []


def test_long_texts_repeat_words_without_a_fault():
    def text(words: int) -> str:
        return " ".join(f"w{7 * n % 43}" for n in range(words))

    longer = training(lambda r, s, *_: unknown(r, 0.5, text(20 + 35 * s)))
    assert severities("repetition", longer) == []
    loops = training(lambda r, s, *_: unknown(r, 0.5, " ".join(f"w{n % (44 - 5 * s)}" for n in range(100))))
    assert severities("repetition", loops) == ["warning"]


def test_equal_texts_with_the_highest_reward_are_solved_tasks():
    def same(r: RolloutSummary, s: int, t: int, i: int, highest: float) -> RolloutSummary:
        return unknown(r, highest if t else 1.0, f"task {t}")

    assert severities("no_diversity", training(lambda *a: same(*a, highest=1.0))[3:]) == []
    assert severities("no_diversity", training(lambda *a: same(*a, highest=0.5))[3:]) == ["warning"]


@pytest.mark.parametrize(("after", "found"), [(0.3, True), (0.9, False)])
def test_a_kl_that_rises_while_held_out_success_falls_is_a_warning(after: float, found: bool):
    """Many updates share few rollouts, whose success still rises."""
    diagnosis, batches = Diagnosis(), training()
    held_out = [r for b in batches[:2] for r in b.rollouts]
    for batch in batches:
        if batch.step == 2:
            diagnosis.evaluated(HeldOut(1, held_out, 0.8))
        diagnosis.observe(replace(batch, metrics={**batch.metrics, metric.KL_MEAN: 0.5 * ((batch.step or 0) > 4)}))
    diagnosis.evaluated(HeldOut(8, held_out, after))
    diagnosis.end()
    messages = [f.finding.message for f in diagnosis.found() if f.finding.detector == "kl_rise" and f.grave]
    assert ["fell from 80% to 30%" in m for m in messages] == [True] * found
