"""Alerts about learning: a reward that pays for a repeated text, a KL that rises too fast, a policy that stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.sections.rewards import DiagnosisConfig
from grpo_tui.rewards.batches import Batch, RolloutSummary
from grpo_tui.rewards.detectors import Finding
from grpo_tui.rewards.diagnosis import DETECTORS, Diagnosis

from .trainings import training

LIMITS = DiagnosisConfig()
WORDS = "seven plus nine makes some number that one finds by counting up until both are used".split()  # noqa: SIM905


def answer(i: int) -> str:
    """An honest wrong answer; no two are alike."""
    return f"The sum of {i} and {i + 1}: {' '.join(WORDS[(i * 7 + k) % len(WORDS)] for k in range(3, 9))} {i * 13}."


def rollouts(
    step: int, reward: Callable[[int], float], text: Callable[[int], str], graded: bool
) -> list[RolloutSummary]:
    return [
        RolloutSummary(
            f"{step}-{i}",
            f"{step}-g{i // 4}",
            reward(i),
            {"boxed": reward(i)},
            None if graded else reward(i) == 1.0,
            text=text(i),
        )
        for i in range(16)
    ]


def hacked(steps: int, graded: bool = False) -> list[Batch]:
    """From step 3 on more and more answers are empty boxes, which earn 0.2."""
    box = r"\boxed{} in \boxed{} environment \boxed{} in \boxed{}"

    def boxes(step: int, i: int) -> bool:
        return i < 4 * (step - 2)

    return [
        Batch(
            s,
            rollouts(
                s,
                lambda i, s=s: 0.2 if boxes(s, i) else 0.0,
                lambda i, s=s: box if boxes(s, i) else answer(16 * s + i),
                graded,
            ),
        )
        for s in range(1, steps + 1)
    ]


def find(name: str, batches: Sequence[Batch]) -> list[Finding]:
    return DETECTORS[name](batches, LIMITS)


@pytest.mark.parametrize("graded", [False, True], ids=["success is known", "graded reward"])
def test_a_reward_that_pays_for_a_repeated_text_is_quoted(graded: bool):
    assert find("reward_hack", hacked(3, graded)) == []
    [finding] = find("reward_hack", hacked(6, graded))
    assert r'"\boxed{} in \boxed{} environment' in finding.message
    assert finding.subject == "boxed" and ("success is 0%" in finding.message) is not graded
    assert finding.trajectories


def boxes_without_repetition(pay: Callable[[int, int], float]) -> list[Batch]:
    """Each step two more answers of 16 end with one empty box. pay: of answer `i` of a step, with a box."""
    return [
        Batch(
            s,
            rollouts(
                s,
                lambda i, s=s: pay(s, i) if i < 2 * s else 0.0,
                lambda i, s=s: answer(16 * s + i) + r" Thus \boxed{}" * (i < 2 * s),
                graded=True,
            ),
        )
        for s in range(1, 9)
    ]


def test_a_text_that_alone_earns_a_part_of_a_graded_reward_is_quoted():
    batches = boxes_without_repetition(lambda s, i: 0.2)
    [finding] = find("reward_hack", batches)
    assert r'Thus \boxed{}"' in finding.message and "the best answer of the last step earns 0.2" in finding.message
    assert min(n for n in range(1, 9) if find("reward_hack", batches[:n])) <= 6


@pytest.mark.parametrize(
    "pay",
    [lambda s, i: 1.0, lambda s, i: 0.1 * (1 + i % 5), lambda s, i: 1.0 if i % 4 == 0 else 0.2],
    ids=["the whole reward", "its content is graded", "some are right"],
)
def test_a_form_that_a_graded_reward_asks_for_is_no_hack(pay: Callable[[int, int], float]):
    batches = boxes_without_repetition(pay)
    assert all(find("reward_hack", batches[:n]) == [] for n in range(1, 9))


def test_the_hack_is_reported_by_the_diagnosis_while_it_happens():
    diagnosis = Diagnosis()
    alerts = [(b.step, f.detector) for b in hacked(14) for f in diagnosis.observe(b)]
    assert (5, "reward_hack") in alerts or (6, "reward_hack") in alerts


def test_a_form_that_right_answers_share_is_no_hack():
    """A policy that learns `The larger number is N.` repeats a text, and its wrong answers earn nothing."""

    def right(step: int, i: int) -> bool:
        return (i + step) % 16 < step

    batches = [
        Batch(
            s,
            rollouts(
                s,
                lambda i, s=s: float(right(s, i)),
                lambda i, s=s: "The larger number is" + f" {i}." if s > 3 else answer(16 * s + i),
                graded=False,
            ),
        )
        for s in range(1, 12)
    ]
    for n in range(1, 12):
        assert find("reward_hack", batches[:n]) == []


def test_a_form_that_is_learnt_with_the_task_is_no_hack():
    """Answers between tags earn a little, and right ones rise with them."""
    batches = [
        Batch(
            s,
            rollouts(
                s,
                lambda i, s=s: 1.0 if i < s else 0.2 * (i < 2 * s),
                lambda i, s=s: f"<think> {answer(16 * s + i)} </think> {i}" if i < 2 * s else answer(16 * s + i),
                graded=False,
            ),
        )
        for s in range(1, 9)
    ]
    assert find("reward_hack", batches) == []


def with_metrics(step: int, **values: float) -> Batch:
    names = {
        "kl": metric.KL_MEAN,
        "moved": metric.MOVEMENT,
        "grad": metric.GRAD_NORM,
        "noise": metric.KL_UNCHANGED,
        "rate": metric.LEARNING_RATE,
        "entropy": metric.ENTROPY,
    }
    return Batch(step, [], {names[name]: value for name, value in {"grad": 1.0, **values}.items()})


@pytest.mark.parametrize(
    ("series", "steps"),
    [
        ([0.0, 0.0, 0.43], 1),
        ([0.0, 0.05, 0.1, 0.15, 0.2, 0.25], 5),
        ([0.0, 0.02, 0.06, 0.06, 0.05, 0.03, 0.05, 0.1], None),  # the built-in policy's default training
        ([0.01 * s for s in range(100)], None),
    ],
)
def test_a_kl_that_rises_within_a_few_steps(series: list[float], steps: int | None):
    found = find("kl_rise", [with_metrics(s, kl=kl) for s, kl in enumerate(series, 1)])
    assert [f"in {steps} step" in f.message for f in found] == ([True] if steps else [])
    assert all("learning rate" in f.message for f in found)


def test_weights_that_do_not_move_are_found_after_five_updates():
    still = [with_metrics(s, moved=0.007) for s in range(1, 11)]
    assert [len(find("no_movement", still[:n])) for n in range(1, 7)] == [0, 0, 0, 0, 1, 1]
    assert "float32" in find("no_movement", still)[0].message
    assert find("no_movement", [with_metrics(s, moved=0.3) for s in range(1, 11)]) == []
    assert find("no_movement", [with_metrics(s, moved=0.007, grad=0.0) for s in range(1, 11)]) == []


@pytest.mark.parametrize(
    ("series", "found"),
    [
        ([0.002, 0.0021, 0.0018, 0.0022, 0.002, 0.0019, 0.0021, 0.002, 0.002, 0.0021], True),
        ([0.0, 0.0002, 0.0004, 0.0002, 0.0004, 0.0031, 0.0015, 0.0028, 0.0016, 0.0064], False),
        ([0.05] * 20, False),  # a policy that moved long ago
        ([0.0] * 20, False),  # a trainer that does not measure it
    ],
)
def test_a_kl_that_stays_noise_is_found_after_ten_updates(series: list[float], found: bool):
    noise = {} if len(series) == 20 else {"noise": series[0]}
    first = 100 if len(series) == 20 else 1
    batches = [with_metrics(s, kl=kl, **noise) for s, kl in enumerate(series, first)]
    assert [f.subject for f in find("no_movement", batches)] == (["kl"] if found else [])


def test_a_learning_rate_of_0_is_found_and_one_that_falls_to_0_at_the_end_is_not():
    rates = {
        "over": [1e-5] * 2 + [0.0] * 18,
        "never": [0.0] * 20,
        "cosine": [1e-5 * (1 - s / 20) ** 2 for s in range(20)],
    }
    for name, series in rates.items():
        batches = [with_metrics(s, rate=rate) for s, rate in enumerate(series, 1)]
        found = [f.subject for n in range(1, 21) for f in find("no_movement", batches[:n])]
        assert bool(found) is (name != "cosine") and set(found) <= {"rate"}


def test_a_kl_that_no_rollout_would_show_is_no_movement():
    """2e-5 nats a token, in rollouts of 10 tokens: at most one of 70 differs."""

    def batches(kl: float, rate: Callable[[int], float] = lambda s: 1e-6, steps: int = 12) -> list[Batch]:
        return [
            replace(
                with_metrics(s, kl=kl * (s > 1), rate=rate(s)), rollouts=rollouts(s, lambda i: i % 2, answer, False)
            )
            for s in range(1, steps + 1)
        ]

    def tokens(made: list[Batch]) -> list[Batch]:
        return [replace(b, rollouts=[replace(r, tokens=10) for r in b.rollouts]) for b in made]

    assert [f.subject for f in find("no_movement", tokens(batches(2e-5)))] == ["kl"]
    assert find("no_movement", tokens(batches(2e-3))) == []
    warm: Callable[[int], float] = lambda s: 1e-7 * s  # noqa: E731
    assert find("no_movement", tokens(batches(2e-5, warm))) == [], "the learning rate is still rising"
    [found] = find("no_movement", tokens(batches(2e-4, warm, LIMITS.window)))
    assert "warm-up" in found.message
    assert find("no_movement", tokens(batches(2e-3, warm, LIMITS.window))) == [], "it moves all the same"
    short: Callable[[int], float] = lambda s: 1e-7 * min(s, 10)  # noqa: E731
    assert find("no_movement", tokens(batches(2e-4, short, LIMITS.window))) == [], "the warm-up is over"


def test_updates_without_new_rollouts_have_no_kl_of_their_own():
    still = [with_metrics(s, kl=1e-9) for s in range(1, 13)]
    assert [f.subject for f in find("no_movement", still)] == ["kl"]
    first = replace(still[0], rollouts=rollouts(1, lambda i: i % 2, answer, False))
    assert find("no_movement", [first, *still[1:]]) == []


def test_rewards_that_differ_without_a_gradient_are_found():
    def batches(size: float, *grads: float) -> list[Batch]:
        return [
            replace(with_metrics(s, grad=grad), rollouts=rollouts(s, lambda i: size * (i % 2), answer, False))
            for s, grad in enumerate(grads, 1)
        ]

    for size in (1.0, 1e-4):
        [found] = find("no_movement", batches(size, *[0.0] * 5))
        assert (found.subject, found.severity, found.began) == ("gradient", "failure", 1)
    assert find("no_movement", batches(1.0, 0.0, 0.0, 0.0, 0.0, 0.1)) == []
    assert find("no_movement", batches(1.0, *[0.0] * 4)) == [], "too few steps"
    assert find("no_movement", batches(0.0, *[0.0] * 5)) == [], "equal rewards have no gradient"
    solved = [replace(b, rollouts=[replace(r, correct=True) for r in b.rollouts]) for b in batches(1e-4, *[0.0] * 5)]
    assert find("no_movement", solved) == []


def test_a_reference_that_differs_before_any_update():
    assert [f.detector for f in find("reference_mismatch", [with_metrics(1, kl=0.9)])] == ["reference_mismatch"]
    assert find("reference_mismatch", [with_metrics(1, kl=1e-4)]) == []
    assert find("reference_mismatch", [with_metrics(7, kl=0.9)]) == [], "a record that begins later"


@pytest.mark.parametrize(("after", "severity"), [(lambda i: i < 8, "hint"), (lambda i: i < 1, "warning")])
def test_a_kl_that_rises_is_a_warning_if_success_falls(after: Callable[[int], bool], severity: str):
    batches = [
        replace(
            with_metrics(s, kl=0.1 * s),
            rollouts=rollouts(s, lambda i, s=s: float(after(i) if s > 2 else i < 8), answer, False),
        )
        for s in range(1, 6)
    ]
    assert [f.severity for f in find("kl_rise", batches)] == [severity]


@pytest.mark.parametrize(("entropy", "first", "found"), [(5.5, 1, True), (3.5, 1, False), (5.5, 2, False)])
def test_a_policy_that_writes_at_random_is_found_at_the_start(entropy: float, first: int, found: bool):
    batches = [with_metrics(first + i, entropy=entropy) for i in range(3)]
    assert bool(find("random_policy", batches)) == found
    assert find("random_policy", batches[:2]) == []


def test_a_kl_that_several_updates_share_rose_during_all_of_them():
    """Steps 2 to 8 and 10 to 16 have no rollouts of their own, and repeat the KL of steps 1 and 9."""
    run = training()
    steps = [replace(run[0], step=s, metrics={**run[0].metrics, metric.KL_MEAN: 1.5 * (s > 8)}) for s in range(1, 17)]
    shared = [b if b.step in (1, 9) else replace(b, rollouts=[]) for b in steps]
    [found] = DETECTORS["kl_rise"](shared[:9], DiagnosisConfig())
    assert found.began == 2 and "1.5 nats per token in 8 steps" in found.message
    slow = [replace(b, metrics={**b.metrics, metric.KL_MEAN: 0.3 * (b.metrics[metric.KL_MEAN] > 0)}) for b in shared]
    assert DETECTORS["kl_rise"](slow[:9], DiagnosisConfig()) == [], "0.19 in five steps"
