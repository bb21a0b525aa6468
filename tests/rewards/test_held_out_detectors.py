"""Training against held-out tasks: each fault is found, and equal tasks give no finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from grpo_tui.rewards.batches import Batch, HeldOut, RolloutSummary
from grpo_tui.rewards.detectors import Finding
from grpo_tui.rewards.diagnosis import Diagnosis

STEPS, EVERY, TASKS, GROUP, HELD_OUT = 16, 8, 8, 4, 64
Change = Callable[[RolloutSummary], RolloutSummary]


def rollout(draw: np.random.Generator, success: float, id_: str) -> RolloutSummary:
    """One answer to a new task."""
    expected, correct = str(draw.integers(10)), bool(draw.random() < success)
    return RolloutSummary(
        id_,
        id_.rpartition("-")[0],
        float(correct),
        {"task": float(correct)},
        correct,
        text=id_,
        task=id_.rpartition("-")[0],
        expected=expected,
        answer=expected if correct else "none",
        prompt=f"question {id_} of {draw.integers(10)}",
    )


def findings(
    training: Callable[[int], float],
    held_out: Callable[[int], float],
    change: Change = lambda r: r,
    seed: int = 0,
    tasks: int = TASKS,
) -> list[Finding]:
    """The findings on success that depends on the step. change: applied to rollouts of training."""
    draw, diagnosis = np.random.default_rng(seed), Diagnosis()

    def evaluate(step: int) -> None:
        rollouts = [rollout(draw, held_out(step), f"e{step}-{i}-0") for i in range(HELD_OUT)]
        rate = sum(bool(r.correct) for r in rollouts) / HELD_OUT
        diagnosis.evaluated(HeldOut(step, rollouts, rate))

    evaluate(0)
    for step in range(1, STEPS + 1):
        rates = draw.beta(2, 2, tasks) * 2 * training(step)
        every = [rollout(draw, rate, f"{step}-{t}-{i}") for t, rate in enumerate(rates) for i in range(GROUP)]
        diagnosis.observe(Batch(step, [change(r) for r in every]))
        if step % EVERY == 0:
            evaluate(step)
    diagnosis.end()
    return [
        f.finding
        for f in diagnosis.found()
        if f.finding.detector in ("held_out_gap", "leaked_answer", "prompt_gap", "constant_reward", "reward_hack")
    ]


def names(found: Sequence[Finding]) -> set[tuple[str, str]]:
    return {(f.detector, f.severity) for f in found}


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 100), marks=pytest.mark.stress)], ids=len)
def test_equal_success_is_no_finding(seeds: range):
    for seed in seeds:
        assert not findings(lambda s: 0.3 + 0.02 * s, lambda s: 0.3 + 0.02 * s, seed=seed)


def test_success_in_training_alone_is_a_warning_unless_held_out_success_improves():
    [found] = findings(lambda s: 0.3 + 0.03 * s, lambda s: 0.2)
    assert found.severity == "warning" and "does not generalise from its training tasks" in found.message
    assert names(findings(lambda s: 0.6 + 0.02 * s, lambda s: 0.1 + 0.03 * s)) == {("held_out_gap", "hint")}


def test_steps_of_few_prompts_are_compared_as_well():
    [found] = findings(lambda s: 0.5 + 0.02 * s, lambda s: 0.1, tasks=2)
    assert (found.detector, found.severity) == ("held_out_gap", "warning")
    for seed in range(4):
        assert "held_out_gap" not in {f.detector for f in findings(lambda s: 0.4, lambda s: 0.4, seed=seed, tasks=2)}


def test_training_that_is_graded_wrongly_falls_behind():
    [found] = findings(lambda s: 0.05, lambda s: 0.5)
    assert found.severity == "warning" and "graded wrongly" in found.message


def test_answers_in_prompts_of_training_alone_are_a_leak():
    [found] = findings(lambda s: 0.4, lambda s: 0.4, lambda r: replace(r, prompt=f"{r.prompt} ({r.expected})"))
    assert found.detector == "leaked_answer" and found.trajectories


def test_prompts_that_hold_earlier_texts_come_before_the_answers_in_them():
    said: list[str] = []

    def shared(r: RolloutSummary) -> RolloutSummary:
        step, task, _ = map(int, r.id.split("-"))
        text = f"it is {r.answer} for task {step} {task}"
        said.append(text)
        return replace(r, text=text, prompt=" ".join([f"{r.prompt} {r.expected}", *said[: 32 * (step - 1)][-3:]]))

    found, *rest = findings(lambda s: 0.4, lambda s: 0.4, shared)
    assert found.detector == "prompt_gap" and "wrote earlier" in found.message
    assert "leaked_answer" not in {f.detector for f in rest}
    told: Change = lambda r: replace(r, text=f"it is {r.answer} for task {r.id}")  # noqa: E731
    assert not findings(lambda s: 0.4, lambda s: 0.4, told), "prompts hold none"

    def echo(r: RolloutSummary) -> RolloutSummary:
        step, task, _ = map(int, r.id.split("-"))
        prompt = f"question {step % 4} {task} of {task % 3}"
        return replace(r, task=prompt, prompt=prompt, text=prompt)

    assert not findings(lambda s: 0.4, lambda s: 0.4, echo), "tasks come again, and the policy repeats their prompts"
    short: Change = lambda r: replace(r, text="of")  # noqa: E731
    assert not findings(lambda s: 0.4, lambda s: 0.4, short), "all prompts have `of`, held-out ones, too"


def test_prompts_without_a_word_of_held_out_ones_differ():
    [found] = findings(lambda s: 0.4, lambda s: 0.4, lambda r: replace(r, prompt=r.prompt.removeprefix("question ")))
    assert found.detector == "prompt_gap" and "'question'" in found.message


def test_a_reward_of_0_for_all_contradicts_held_out_success():
    zero: Change = lambda r: replace(r, total=0.0, contributions={"task": 0.0}, correct=None)  # noqa: E731
    assert names(findings(lambda s: 0.4, lambda s: 0.4, zero)) == {("constant_reward", "warning")}
    assert not findings(lambda s: 0.0, lambda s: 0.0)


def test_a_reward_that_rises_while_held_out_success_falls_pays_for_something_else():
    def paid(r: RolloutSummary) -> RolloutSummary:
        step, _, i = map(int, r.id.split("-"))
        reward = step / STEPS + i / 10
        return replace(r, total=reward, contributions={"task": reward}, correct=None)

    falling: Callable[[int], float] = lambda s: 0.6 - 0.03 * s  # noqa: E731
    assert names(findings(lambda s: 0.4, falling, paid)) == {("reward_hack", "warning")}
    assert not findings(lambda s: 0.4, lambda s: 0.4, paid), "held-out success stays"
    same: Change = lambda r: replace(r, correct=None)  # noqa: E731
    assert not findings(lambda s: 0.4, falling, same), "the reward stays"
    [known] = findings(lambda s: 0.3 + 0.03 * s, falling)
    assert known.detector == "held_out_gap", "verdicts are known"


@pytest.mark.parametrize("shared", [0, 16])
def test_held_out_tasks_that_training_has_are_a_hint(shared: int):
    draw, diagnosis = np.random.default_rng(0), Diagnosis()
    tasks = [rollout(draw, 0.5, f"{i}-0-0") for i in range(96)]
    diagnosis.evaluated(HeldOut(0, tasks[32 - shared :][:HELD_OUT], 0.5))
    for step in range(1, 4):
        diagnosis.observe(Batch(step, [replace(r, id=f"{step}-{r.id}") for r in tasks[:32]]))
    found = [f.finding for f in diagnosis.found() if f.finding.detector == "seen_tasks"]
    assert [f.severity for f in found] == ["hint"] * bool(shared)
    assert not shared or "16 of 64 held-out prompts" in found[0].message


def test_short_answers_that_occur_in_any_prompt_are_no_leak():
    def shown(end: Callable[[RolloutSummary], str]) -> set[str]:
        change: Change = lambda r: replace(r, prompt=f"choose 0 1 2 3 4 5 {end(r)}")  # noqa: E731
        return {f.detector for f in findings(lambda s: 0.4, lambda s: 0.4, change)}

    assert "leaked_answer" not in shown(lambda r: "6 7 8 9")
    assert "leaked_answer" in shown(lambda r: f"({r.expected})")
