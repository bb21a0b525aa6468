"""Feedback of people on an answer: which update each kind gives, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
import torch

from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.online.serve.answers import Answer
from grpo_tui.engine.online.serve.conversations import Conversation, Turn, continued
from grpo_tui.engine.online.serve.enqueuer import Enqueuer
from grpo_tui.engine.online.serve.feedback import FeedbackKeeper, _listed, at_temperature, correct, label, rate
from grpo_tui.engine.online.serve.http.schema import Feedback
from grpo_tui.engine.online.serve.inference_engine import InferenceEngine, Learned
from grpo_tui.engine.online.serve.live_answers import LiveAnswers
from grpo_tui.engine.online.serve.serving import Serving
from grpo_tui.engine.online.serve.weights import WeightFollower
from grpo_tui.engine.online.store.snapshots import SnapshotReader
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.online.voting import canonical
from grpo_tui.engine.policy.vision.processor import Encoded
from grpo_tui.engine.rollouts.rollout import Rollout

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


def test_feedback_judges_the_samples_of_a_vote_instead_of_new_ones(tmp_path: Path) -> None:
    made = engine(answer=r"\w")
    keeper, answer = keeper_of(made, tmp_path)
    keeper.enqueuer = Mock()
    [wide] = made.widen([answer], always=True)
    names = ("_failures", "_open_turns", "enqueuer", "follower", "keeper", "live", "queue", "source", "writer")
    serving = SimpleNamespace(
        **{name: MagicMock() for name in names}, answered=1, last=None, _to_learn=(), _feedback=keeper
    )
    serving.source.rows_taken = serving.follower.version = serving.enqueuer.lost = serving.enqueuer.dropped = 0
    serving.queue.depth.return_value = 0
    Serving._keep_learned(cast(Any, serving), [Learned(wide)], 1, 0.1)
    keeper.take(1, Feedback(id="1", answer="x"))
    assert not keeper.waits
    assert keeper.enqueuer.put.call_args.args[0].experience.trajectories[1] == wide.samples[1].trajectory.id  # type: ignore[union-attr]


def test_feedback_from_which_nothing_is_learnt_keeps_its_reason(tmp_path: Path) -> None:
    given = Feedback(id="1", verdict="right")
    keeper, _ = keeper_of(engine(updates=False), tmp_path)
    assert keeper.take(1, given)["accepted"] is False
    assert (keeper.outcome(1)["accepted"], keeper.outcome(1)["reason"]) == (False, "online.updates is off")
    keeper, answer = keeper_of(engine(), tmp_path)
    keeper.ready.append((1, given, "", replace(answer, policy_version=9)))  # its version went while samples were drawn
    keeper.process_drawn()
    assert "learning from it is no longer possible: Snapshot 9" in keeper.outcome(1)["reason"]


@pytest.mark.parametrize(("limit", "why"), [(9, "the update queue has lost it"), (1, "the queue was full (1 tasks)")])
def test_an_update_that_is_lost_does_not_wait_for_ever(tmp_path: Path, limit: int, why: str) -> None:
    keeper, _ = keeper_of(engine(), tmp_path)
    updates = SqliteQueue(tmp_path / "queue.sqlite", limit=limit, on_repaired=lambda message: None)
    keeper.enqueuer = Enqueuer(updates)
    keeper.take(1, Feedback(id="1", verdict="right"))
    keeper.enqueuer.flush()
    keeper.note_lost()
    assert keeper.outcome(1)["reason"] == "it waits for the update worker"
    if limit == 1:
        updates.put("newer", b"", 0)
    else:
        (tmp_path / "queue.sqlite").unlink()
    for _ in range(2):  # the first look finds that the file is gone
        keeper.note_lost()
    assert why in keeper.outcome(1)["reason"]
    keeper.enqueuer.close()
    updates.close()


def test_an_answer_without_feedback_is_listed_with_the_whole_conversation() -> None:
    made = engine()
    answer = made.answer([conversation("red?")], policy_version=3)[0]
    said = [("user", "red?"), ("assistant", "no"), ("user", "blue?")]
    messages = tuple({"role": role, "content": text} for role, text in said)
    talk = Conversation(messages, previous=Turn(messages[:2], answer.samples[0], 1))
    assert _listed(answer)["prompt"].endswith("red?")
    later = replace(answer, request=replace(answer.request, conversation=talk))
    assert _listed(later)["prompt"] == "red?\n\nno\n\nblue?"
    assert _listed(later)["messages"] == [*messages]


def said(sample: Rollout, text: str) -> Rollout:
    assert sample.trajectory is not None
    return replace(sample, trajectory=replace(sample.trajectory, answer=text))


def judged(made: InferenceEngine, texts: list[str], right: str) -> tuple[bool | None, ...]:
    """How samples with these texts are judged by a right answer."""
    answer = made.widen(made.answer([conversation()], 0), always=True)[0]
    samples = [said(s, text) for s, text in zip(answer.samples, texts, strict=False)]
    answer = replace(answer, samples=samples)
    return label(made, answer, right, None).answer.label_vote.correct


def test_a_right_answer_is_compared_by_value_with_what_a_box_holds() -> None:
    texts = [r"so \boxed{\frac{1}{2}}", r"\boxed{0.5}", r"\boxed{2}"]
    for right in ("1/2", r"\frac12", "0.5", r"\boxed{1/2}"):
        assert judged(engine(answer="boxed"), texts, right) == (True, True, False)


def test_a_letter_that_is_no_choice_is_compared_as_a_text() -> None:
    assert judged(engine(), ["x", "y", "The answer is B."], "x") == (True, False, False)
    assert judged(engine(), ["x", "y", "The answer is B."], "b") == (False, False, True)


@pytest.mark.parametrize("right", ["", "  ", "."])
def test_an_empty_right_answer_is_refused(tmp_path: Path, right: str) -> None:
    keeper, _ = keeper_of(engine(answer="last_number"), tmp_path)
    with pytest.raises(ValueError, match="the right answer is empty"):
        keeper.take(1, Feedback(id="1", answer=right))
    assert keeper.unjudged(1)["answers"]


def second_turn(made: InferenceEngine, version: int = 0) -> Answer:
    """The answer to the second message of a conversation."""
    [first] = made.answer([conversation("red?", max_tokens=4)], version)
    agent, sample = cast(Any, made.runner.agent), first.samples[0]
    told: tuple[Any, ...] = (
        {"role": "user", "content": "red?"},
        {"role": "assistant", "content": first.text or ""},
        {"role": "user", "content": "blue?"},
    )
    turn = Turn(told[:2], sample, 1)
    prompt = (*sample.token_ids.tolist(), *agent.chat.after(int(sample.token_ids[-1]), told, 1))
    request = replace(conversation(number=2, max_tokens=4), conversation=Conversation(told, "", prompt, turn))
    [second] = made.answer([request], version)
    [written] = second.samples
    begun = agent.chat.begun([{"role": "user", "content": "what is it?"}])
    assert isinstance(begun, Encoded)
    wrote = written.token_ids[len(begun.ids) :]
    ids = np.array([*prompt, *wrote], written.token_ids.dtype)
    own = np.arange(len(ids)) >= len(prompt)
    written = replace(
        written,
        token_ids=ids,
        agent_mask=own,
        turn_ids=np.where(own, 0, -1).astype(np.int16),
        rewards=np.zeros(len(ids), np.float32),
        logprobs=np.zeros(len(ids), np.float32),
    )
    return replace(second, samples=[continued(turn, told, written)])


def test_the_last_answer_of_a_conversation_can_be_corrected() -> None:
    made = engine(max_trajectory_tokens=128)
    answer = second_turn(made)
    task = correct(made, answer, "it is blue").task
    assert task is not None
    better, given = task.experience.rows
    begin = int(np.flatnonzero(given.turn == 1)[0])
    assert (better.token_ids[:begin] == given.token_ids[:begin]).all()
    assert (better.turn[:begin] == given.turn[:begin]).all() and set(better.turn[begin:]) == {1}
    words = made.runner.tokenizer
    assert words is not None and str(words.decode(better.token_ids[begin:])).startswith("it is blue")
    assert better.agent_mask[begin:].all() and (better.agent_mask[:begin] == given.agent_mask[:begin]).all()
    np.testing.assert_allclose(
        better.logprobs[better.agent_mask], logprobs_of(made.model, replace(task.experience, rows=(better,))), atol=1e-4
    )


@pytest.mark.parametrize(
    ("correction", "ended"), [("blue is the colour", True), ("blue , and the", False)], ids=["another end", "same end"]
)
def test_a_correction_that_keeps_the_end_of_a_cut_answer_does_not_end(correction: str, ended: bool) -> None:
    made = engine()
    answer = made.answer([conversation(max_tokens=3)], policy_version=3)[0]
    [sample] = answer.samples
    assert isinstance(made.runner.agent, TransformersAgent) and sample.trajectory is not None
    end = made.runner.agent.chat.end_of_turn
    assert sample.token_ids[-1] != end
    *_, step = sample.trajectory.steps
    cut = replace(sample, trajectory=replace(sample.trajectory, steps=(replace(step, text="red , and the"),)))
    task = correct(made, replace(answer, samples=[cut]), correction).task
    assert task is not None
    assert (task.experience.rows[0].token_ids[-1] == end) == ended


def test_a_correction_that_changes_nothing_is_refused_and_leaves_the_answer_without_feedback(tmp_path: Path) -> None:
    keeper, answer = keeper_of(engine(), tmp_path)
    for text, problem in ((f"{answer.text} ", "equals the answer"), (" ", "is empty")):
        with pytest.raises(ValueError, match=problem):
            keeper.take(1, Feedback(id="1", correction=text))
    assert keeper.unjudged(5)["answers"]


def test_a_majority_answer_that_is_not_the_first_sample_can_be_corrected() -> None:
    made = engine(answer=r"\w")
    answer = made.answer([conversation(ensemble=True)], policy_version=3)[0]
    task = correct(made, replace(answer, shown=3), "it is blue").task
    assert task is not None and task.experience.answers[0] == "it is blue"
    assert task.experience.trajectories[1] == answer.samples[3].trajectory.id  # type: ignore[union-attr]


def test_an_answer_that_is_only_a_part_of_its_turn_cannot_be_corrected() -> None:
    made = engine()
    answer = made.answer(requests(1), policy_version=3)[0]
    call = said(answer.samples[0], "red")
    assert call.trajectory is not None
    [*_, step] = call.trajectory.steps
    call = replace(
        call, trajectory=replace(call.trajectory, steps=(replace(step, text="ANSWER(text='red')", calls=()),))
    )
    with pytest.raises(ValueError, match="Give the right answer as `answer`"):
        correct(made, replace(answer, samples=[call], shown=0), "blue")


def test_a_rating_of_a_vote_without_an_answer_judges_the_text_that_was_sent(tmp_path: Path) -> None:
    keeper, _ = keeper_of(engine(answer="json:answer"), tmp_path)
    made = keeper.live.engine
    request = replace(conversation(ensemble=True), reply=lambda outcome: None)
    keeper.remember(made.answer([request], 0))
    tasks: list[Any] = []
    keeper.enqueuer = cast(Any, type("Kept", (), {"put": staticmethod(tasks.append)}))
    assert keeper.take(1, Feedback(id="1", verdict="wrong"))["accepted"] is True
    assert tasks[0].facts["feedback"] == "rating" and len(tasks[0].experience.rows) == 1
