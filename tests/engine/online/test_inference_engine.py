"""Answering and learning with a real (tiny) policy: labels, rewards, logits, neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from grpo_tui.engine.online.serve import inference_engine
from grpo_tui.engine.online.serve.inference_engine import InferenceEngine
from grpo_tui.engine.online.serve.requests import Request, Sampling
from grpo_tui.engine.online.store.update_task import UpdateTask
from grpo_tui.engine.online.voting import canonical
from grpo_tui.engine.policy.kl import kl_directions
from grpo_tui.engine.rollouts.runner import Row

from .answering import ENV, engine, requests
from .tiny import logits_of, logprobs_of, tokenizer

WORDS = tokenizer()


@pytest.fixture(scope="module")
def served() -> tuple[InferenceEngine, Any, Any]:
    """One engine with answers and what it made of them; nothing here changes it."""
    made = engine()
    answers = made.answer(requests(6), policy_version=3)
    return made, answers, made.learn(answers)


def test_the_answer_is_the_vote_of_all_candidates(served: Any) -> None:
    _, answers, _ = served
    for number, answer in enumerate(answers, 1):
        given = [canonical(s.trajectory.answer) for s in answer.samples]
        assert len(given) == 5
        most = max(given.count(a) for a in given if a)
        assert given.count(answer.text) == most
        assert answer.vote.confidence == pytest.approx(most / 5)
        assert answer.request.number == number and answer.policy_version == 3
        assert answer.trajectory_id in {s.trajectory.id for s in answer.samples}


def test_tasks_carry_the_multi_component_rewards_of_the_orchestrator(served: Any) -> None:
    _, _, learned = served
    tasks = [item.task for item in learned if item.task is not None]
    assert tasks, "no gate opened"
    for item in learned:
        if item.task is None:
            assert not item.answer.gate.open
            continue
        task, by_id = item.task, {r.trajectory.id: r for r in item.records}
        assert task.id == f"request-{item.answer.request.number}" and task.policy_version == 3
        task.check(max_learning_rate=1.0, vocabulary=len(WORDS))
        for row, trajectory in enumerate(task.experience.trajectories):
            breakdown = by_id[trajectory].breakdown
            for s, step in enumerate(breakdown.steps):
                for c, name in enumerate(task.components):
                    known = step.components.get(name)
                    expected = known.contribution if known is not None else 0.0
                    assert float(task.reward_tensor[row, s, c]) == pytest.approx(expected, abs=1e-6)


def test_the_task_reward_is_the_others_label_never_the_truth_and_never_ones_own(served: Any) -> None:
    _, _, learned = served
    for item in learned:
        if item.task is None:
            continue
        answers = [canonical(s.trajectory.answer) for s in item.answer.samples]
        ids = [s.trajectory.id for s in item.answer.samples]
        column = item.task.components.index("task")
        for row, trajectory in enumerate(item.task.experience.trajectories):
            own = ids.index(trajectory)
            others = [a for i, a in enumerate(answers) if i != own and a is not None]
            label = max(set(others), key=others.count)
            assert item.task.experience.pseudo_labels[row] == label
            assert float(item.task.reward_tensor[row, :, column].sum()) == float(answers[own] == label)


def test_original_logits_and_log_probs_are_those_of_the_answering_policy(served: Any) -> None:
    made, _, learned = served
    task = next(item.task for item in learned if item.task is not None)
    e = task.experience
    fresh = logits_of(made.model, e)
    assert float(kl_directions(fresh, task.original_logits.parts[0]).reverse.max()) < 1e-8
    torch.testing.assert_close(logprobs_of(made.model, e), e.at_agent_tokens("logprobs"), rtol=1e-4, atol=1e-4)


def test_learning_rates(served: Any) -> None:
    made, _, learned = served
    for item in learned:
        if item.task is not None:
            initial_wrong = canonical(item.answer.samples[0].trajectory.answer) != canonical(item.answer.text)
            assert item.task.learning_rate_kind == ("lr_correction" if initial_wrong else "lr_adaptive")
            if not initial_wrong:
                assert made.config.lr_adaptive_min <= item.task.learning_rate <= made.config.lr_adaptive_max


def test_everything_of_a_request_is_recorded(served: Any) -> None:
    _, _, learned = served
    for item in learned:
        assert len(item.records) == 5
        first = item.records[0]
        assert first.served is not None and first.served.initial
        assert first.policy_version == 3 and first.split == "online"
        assert first.served.answer == item.answer.text
        assert {"online/gate_rate", "online/flip_rate", "online/success"} <= item.metrics.keys()


def test_only_the_initial_trajectory_when_asked_for() -> None:
    made = engine(learn_from="initial")
    learned = made.learn(made.answer(requests(8), 1))
    tasks = [(item.answer, item.task) for item in learned if item.task is not None]
    assert tasks
    for answer, task in tasks:
        initial = answer.samples[0].trajectory
        assert initial is not None and task.experience.trajectories == (initial.id,)


def test_a_large_vocabulary_keeps_top_k_and_a_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_engine, "FULL_VOCABULARY", 16)
    monkeypatch.setattr(inference_engine, "TOP_K", 4)
    made = engine()
    learned = made.learn(made.answer(requests(6), 1))
    task = next(item.task for item in learned if item.task is not None)
    assert task.original_logits.kind == "top-4+tail"
    again = UpdateTask.from_bytes(task.to_bytes())
    assert again.original_logits.kind == "top-4+tail" and len(again.original_logits) == len(task.original_logits)


def test_nothing_is_learnt_below_the_confidence_or_with_updates_off() -> None:
    sure = engine(min_confidence=1.0)
    doubtful = [item for item in sure.learn(sure.answer(requests(6), 1)) if item.answer.label_vote.confidence < 1]
    assert doubtful and all(item.task is None for item in doubtful)
    off = engine(updates=False)
    assert all(item.task is None for item in off.learn(off.answer(requests(6), 1)))


def test_alike_experiences_vote() -> None:
    made = engine(neighbours=2, min_confidence=0.0)
    first = made.answer(requests(1), 1)[0]
    assert first.neighbours == ()
    assert first.embedding is not None
    made.buffer.add("earlier", first.embedding, "zebra")
    again = made.answer(requests(1), 1)[0]  # the same question, the same seed: the same trajectory
    assert [n.answer for n in again.neighbours] == ["zebra"]
    assert again.neighbours[0].weight == pytest.approx(0.5, abs=1e-3)
    assert again.vote.shares["zebra"] > 0


def test_a_task_the_environment_cannot_begin_costs_only_itself() -> None:
    made = engine()
    good = requests(1)[0]
    bad = Request(Row(ENV, {}, {"nonsense": 1}), number=2)
    answers = made.answer([good, bad], 1)
    assert answers[0].error is None and answers[0].text is not None
    assert answers[1].text is None and "question" in str(answers[1].error)
    assert made.learn(answers)[1].task is None


def test_samples_to_learn_join_the_label_and_the_task_but_not_the_answer() -> None:
    made, plain = engine(samples=3, samples_to_learn=6), engine(samples=3)
    answers = made.answer(requests(4), policy_version=2)
    for answer, usual in zip(answers, plain.answer(requests(4), policy_version=2), strict=True):
        assert answer.text == usual.text and len(answer.samples) == 3 and answer.label_vote is answer.vote
    learned = made.learn(answers)
    assert any(item.task is not None for item in learned)
    for answer, item in zip(answers, learned, strict=True):
        assert item.answer.vote is answer.vote and item.answer.samples[:3] == answer.samples
        given = [canonical(r.trajectory.answer) for r in item.records]
        assert len(given) == 9 and item.answer.label_vote.confidence == pytest.approx(max(map(given.count, given)) / 9)
        assert item.metrics["online/confidence"] == item.answer.label_vote.confidence
        ids = [r.trajectory.id for r in item.records]
        assert len(set(ids)) == 9 and [r.trajectory.rollout for r in item.records] == list(range(9))
        assert {r.trajectory.group for r in item.records} == {item.records[0].trajectory.group}
        drawn = {tuple(s.token_ids.tolist()) for s in item.answer.samples}
        assert len(drawn) > 3  # other random numbers than the first ones
        if item.task is not None:
            assert len(item.task.experience.rows) > 3
            assert set(item.task.experience.trajectories) <= set(ids)


def test_what_was_answered_with_is_learnt_from_when_no_more_can_be_sampled(caplog: pytest.LogCaptureFixture) -> None:
    made = engine(samples=5, samples_to_learn=6)
    answers = made.answer(requests(6), policy_version=3)
    made.runner.env_cache.clear()

    def broken(env: Any) -> None:
        raise OSError("the environment's server is gone")

    made.runner.prepare = broken
    learned = made.learn(answers)
    assert [len(item.records) for item in learned] == [5] * 6
    assert any(item.task is not None for item in learned)
    assert "server is gone" in caplog.text


def test_nothing_more_is_sampled_when_nothing_is_learnt() -> None:
    made = engine(samples=3, samples_to_learn=6, updates=False)
    (item,) = made.learn(made.answer(requests(1), 1))
    assert len(item.records) == 3 and item.task is None


def test_answers_are_the_same_alone_or_together() -> None:
    together = engine(neighbours=0)
    alone = engine(neighbours=0)
    first = together.answer(requests(2), 1)[0]
    one = alone.answer(requests(1), 1)[0]
    assert np.array_equal(first.samples[0].token_ids, one.samples[0].token_ids)


def test_what_a_caller_had_sampled_in_its_own_way_is_answered_and_recorded_but_not_learnt_from() -> None:
    made = engine(samples_to_learn=2)
    greedy = [replace(r, sampling=Sampling(temperature=0.0, max_tokens=3)) for r in requests(2)]
    old = [replace(r, version=2) for r in requests(1, start=9)]
    for answers in (made.answer(greedy, policy_version=3), made.answer(old, policy_version=2)):
        learned = made.learn(answers)
        assert all(item.task is None and item.answer.gate.code == "own_sampling" for item in learned)
        assert [len(item.records) for item in learned] == [5] * len(answers)
    first = made.answer(greedy[:1], policy_version=3)[0]
    assert len({tuple(s.token_ids.tolist()) for s in first.samples}) == 1  # greedy: all alike
    assert all(s.agent_mask.sum() <= 3 for s in first.samples)
