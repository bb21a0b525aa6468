"""Feedback of people on an answer: which update each kind gives, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from grpo_tui.engine.online.serve.conversations import Conversation, Turn
from grpo_tui.engine.online.serve.feedback import FeedbackKeeper, _listed, at_temperature, correct, label, rate
from grpo_tui.engine.online.serve.inference_engine import InferenceEngine
from grpo_tui.engine.online.serve.live_answers import LiveAnswers
from grpo_tui.engine.online.serve.requests import HumanFeedback
from grpo_tui.engine.online.serve.weights import WeightFollower
from grpo_tui.engine.online.store.snapshots import SnapshotReader
from grpo_tui.engine.online.voting import canonical

from .answering import conversation, engine, requests
from .tiny import logprobs_of


def test_a_persons_word_is_the_label_of_an_answer() -> None:
    made = engine()
    answer = made.answer(requests(1), policy_version=3)[0]
    given = [canonical(s.trajectory.answer) for s in answer.samples if s.trajectory is not None]
    right = next(g for g in given if g is not None)
    task = label(made, answer, right, None).task
    assert task is not None
    assert task.experience.pseudo_labels == (right,) * len(task.experience.answers)
    for_answer = task.reward_tensor[..., task.components.index("task")].sum(1)
    assert (for_answer > 0).tolist() == [canonical(a) == right for a in task.experience.answers]
    wrong = label(made, answer, None, right).task
    assert wrong is not None and {canonical(a) for a in wrong.experience.answers} == {right}
    assert label(made, answer, None, "nobody said this").task is None


def test_a_wrong_answer_is_compared_as_it_was_extracted() -> None:
    made = engine(answer="boxed")
    answer = made.answer(requests(1), policy_version=3)[0]
    texts = ["\\boxed{7}", "\\boxed{8}", "\\boxed{7}"]
    samples = [
        replace(s, trajectory=replace(cast(Any, s.trajectory), answer=text))
        for s, text in zip(answer.samples[:3], texts, strict=True)
    ]
    task = label(made, replace(answer, samples=samples), None, "7").task
    assert task is not None and task.experience.answers == (texts[0], texts[2])


def test_a_rating_a_right_answer_and_a_correction_each_give_an_update() -> None:
    made = engine(answer=r"\w")
    answer = made.answer([conversation()], policy_version=3)[0]
    good, bad = rate(made, answer, True).task, rate(made, answer, False).task
    assert good is not None and bad is not None
    column = good.components.index("task")
    assert float(good.reward_tensor[..., column].sum()) == -float(bad.reward_tensor[..., column].sum()) > 0
    assert good.learning_rate == bad.learning_rate == made.config.lr_adaptive_min / made.config.samples
    judged = label(made, answer, "x", None).task
    assert judged is not None and len(judged.experience.answers) == 6
    wide = made.widen([answer], always=True)[0]
    task = rate(made, wide, False).task
    assert task is not None and task.learning_rate == made.config.lr_adaptive_min
    extracted = [made.key(sample) for sample in wide.samples]
    assert task.facts["agrees"] == [e == extracted[0] for e in extracted]
    found, whole = task.reward_tensor[..., column].sum(-1), float(good.reward_tensor[..., column].sum())
    torch.testing.assert_close(found, -whole * torch.tensor(task.facts["agrees"]))
    task = correct(made, answer, "it is blue").task
    assert task is not None and task.experience.answers[0] == "it is blue"
    e = task.experience
    torch.testing.assert_close(logprobs_of(made.model, e), e.at_agent_tokens("logprobs"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ensemble", [False, True])
def test_feedback_judges_a_text_of_another_temperature_at_the_temperature_of_updates(ensemble: bool) -> None:
    made = engine(answer=r"\w")
    answer = made.answer([conversation(temperature=0.5, ensemble=ensemble)], policy_version=3)[0]
    task = rate(made, at_temperature(made, answer), False).task
    assert task is not None
    e = task.experience
    torch.testing.assert_close(logprobs_of(made.model, e), e.at_agent_tokens("logprobs"), rtol=1e-4, atol=1e-4)


def keeper_of(made: InferenceEngine, folder: Path) -> tuple[FeedbackKeeper, Any]:
    """A keeper that remembers an answer of number 1, and that answer."""
    follower = WeightFollower(made.model, SnapshotReader(folder), poll_s=1.0, on_problem=pytest.fail)
    live = LiveAnswers(made, follower, answered=lambda answer: None)
    keeper = FeedbackKeeper(live, cast(Any, None), lambda *_, **__: None)
    answer = made.answer([replace(conversation(), reply=lambda outcome: None)], policy_version=0)[0]
    keeper.remember([answer])
    return keeper, answer


def test_feedback_from_which_nothing_is_learnt_keeps_its_reason(tmp_path: Path) -> None:
    given = HumanFeedback(1, verdict="right")
    keeper, _ = keeper_of(engine(updates=False), tmp_path)
    assert keeper.take(given)["accepted"] is False
    assert keeper.outcome(1)["reason"] == "online.updates is off"
    keeper, answer = keeper_of(engine(), tmp_path)
    keeper.ready.append((given, replace(answer, policy_version=9)))  # its version went while samples were drawn
    keeper.process_drawn()
    assert "nothing can be learnt from it any more: Snapshot 9" in keeper.outcome(1)["reason"]


def test_an_answer_without_feedback_is_listed_with_the_whole_conversation() -> None:
    made = engine()
    answer = made.answer([conversation("red?")], policy_version=3)[0]
    said = [("user", "red?"), ("assistant", "no"), ("user", "blue?")]
    messages = tuple({"role": role, "content": text} for role, text in said)
    talk = Conversation(messages, previous=Turn(messages[:2], answer.samples[0], 1))
    assert _listed(answer)["prompt"].endswith("red?")
    continued = replace(answer, request=replace(answer.request, conversation=talk))
    assert _listed(continued)["prompt"] == "red?\n\nno\n\nblue?"
