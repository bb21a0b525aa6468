"""Answering and learning with a real (tiny) policy: labels, rewards, logits, neighbours, weights."""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from grpo_tui.configs.sections.rewards import RewardsConfig
from grpo_tui.engine.agents.decoder import stop_ids_of
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.online.serve import conversations, inference_engine, live_answers
from grpo_tui.engine.online.serve.assembly import _read_pipe
from grpo_tui.engine.online.serve.backend import EngineBackend
from grpo_tui.engine.online.serve.conversations import Conversation, Conversations, Turn
from grpo_tui.engine.online.serve.enqueuer import Enqueuer
from grpo_tui.engine.online.serve.feedback import FeedbackKeeper, _listed, at_temperature, correct, label, rate
from grpo_tui.engine.online.serve.inference_engine import InferenceEngine
from grpo_tui.engine.online.serve.live_answers import LiveAnswers
from grpo_tui.engine.online.serve.requests import (
    HumanFeedback,
    Request,
    RequestError,
    RequestSource,
    Sampling,
    parse_request,
    read_requests,
)
from grpo_tui.engine.online.serve.sample_passes import behaviour_logprobs
from grpo_tui.engine.online.serve.serving import Serving
from grpo_tui.engine.online.serve.weights import WeightFollower
from grpo_tui.engine.online.store.snapshots import SnapshotReader, SnapshotWriter
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.online.store.update_task import UpdateTask
from grpo_tui.engine.online.voting import canonical
from grpo_tui.engine.policy.kl import kl_directions
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.rollouts.runner import RolloutRunner, Row
from grpo_tui.rewards.orchestrator import RewardOrchestrator

from .tiny import logits_of, logprobs_of, lora_model, make_task, online_config, run_config, tokenizer

WORDS = tokenizer()
ENV = f"{Path(__file__).with_name('tiny.py')}:ParityEnv"


def engine(**changes: Any) -> InferenceEngine:
    config = online_config(**{"samples": 5, "min_confidence": 0.3, **changes})
    model = lora_model(len(WORDS))
    agent = TransformersAgent(model, WORDS, max_turn_tokens=6, max_trajectory_tokens=64)
    runner = RolloutRunner(agent, WORDS, config.samples)
    return InferenceEngine(model, runner, RewardOrchestrator(config=RewardsConfig()), config)


def requests(count: int, start: int = 1) -> list[Request]:
    return [
        Request(Row(ENV, {}, {"question": f"what is it? {i}", "answer": str(i % 3)}), number=i)
        for i in range(start, start + count)
    ]


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
    assert float(kl_directions(fresh, task.original_logits.full).reverse.max()) < 1e-8
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


# ---------------------------------------------------------------------------------------------------- weights, queue


def test_weights_are_swapped_between_requests(tmp_path: Path) -> None:
    model = lora_model()
    writer = SnapshotWriter(tmp_path, base_model="tiny")
    weights = {n: p.detach() + 1.0 for n, p in model.named_parameters() if p.requires_grad}
    follower = WeightFollower(model, SnapshotReader(tmp_path), poll_s=0.005, on_problem=pytest.fail)
    assert follower.swap() is None and follower.version == 0
    follower.start()
    writer.publish(weights)
    until = time.monotonic() + 20
    while follower.swap() is None and time.monotonic() < until:
        time.sleep(0.005)
    assert follower.version == 1
    for name, parameter in model.named_parameters():
        if name in weights:
            assert torch.equal(parameter, weights[name])
    follower.stop()
    writer.close()


def test_weights_of_another_model_are_told_and_not_served(tmp_path: Path) -> None:
    model, told = lora_model(), []
    writer = SnapshotWriter(tmp_path, base_model="tiny")
    writer.publish({"other": torch.zeros(3)})
    follower = WeightFollower(model, SnapshotReader(tmp_path), poll_s=1.0, on_problem=told.append)
    follower.look()
    assert follower.swap() is None and "cannot be served" in told[0]
    writer.close()


def test_the_engine_never_waits_for_the_queue(tmp_path: Path) -> None:
    """Even while another process holds the database."""
    updates = SqliteQueue(tmp_path / "queue.sqlite")
    enqueuer = Enqueuer(updates)
    task = make_task(lora_model())
    locked = SqliteQueue(tmp_path / "queue.sqlite")
    with locked._transaction():
        began = time.perf_counter()
        for _ in range(200):
            enqueuer.put(task)
        waited = time.perf_counter() - began
        assert updates.depth() == 0
    enqueuer.close()
    assert enqueuer.lost > 0 and updates.depth() == 1  # the same experience, once
    assert waited < 5  # far below the lock's 30 s


# ---------------------------------------------------------------------------------------------------------- requests


def test_requests_are_checked(tmp_path: Path) -> None:
    defaults = run_config(tmp_path).environment
    assert parse_request({"task_data": {"a": 1}, "id": "x"}, defaults).fields == {"id": "x"}
    for raw, reason in [
        ([], "must be a JSON object"),
        ({"task": 1}, "unknown field 'task'"),
        ({"id": 1}, "task_data is missing"),
        ({"task_data": 3}, "task_data must be a mapping"),
        ({"task_data": {}, "id": []}, "id must be"),
    ]:
        with pytest.raises(RequestError, match=reason):
            parse_request(raw, defaults)
    file = tmp_path / "requests.jsonl"
    file.write_text('{"task_data": {}}\n\n{"task_data": {}')
    with pytest.raises(RequestError, match="line 3: not JSON"):
        read_requests(file, defaults)
    text = json.dumps({"task_data": {"question": "one\u2028two\x85"}}, ensure_ascii=False)
    file.write_text(f"\ufeff{text}\r\n{text}\n", encoding="utf-8", newline="")
    assert [r.row.task_data["question"] for r in read_requests(file, defaults)] == ["one\u2028two\x85"] * 2


@pytest.mark.parametrize("line", [b'{"task_data": {"question": "caf\xe9"}}', b"[" * 100_000])
def test_a_line_of_a_pipe_that_cannot_be_read_is_answered_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    piped = io.BytesIO(line + b'\n{"task_data": {"question": "what?"}}\n')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped, encoding="utf-8"))
    source = RequestSource(open_ended=True)
    _read_pipe(source, run_config(tmp_path))
    assert json.loads(capsys.readouterr().out)["error"].startswith("line 1: not JSON")
    assert source.waiting == 1 and not source.open_ended


def test_callers_come_before_rows_and_rows_can_be_skipped() -> None:
    source = RequestSource(requests(4), open_ended=True, max_waiting=1)
    source.skip(2)
    source.submit(Request(Row(ENV, {}, {}), id="caller"))
    assert [r.id or r.number for r in source.take(3, 0.01)] == ["caller", 3, 4]
    assert source.rows_taken == 4 and not source.ended
    source.close()
    assert source.take(1, 0.01) == [] and source.ended


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


def test_a_task_of_an_environment_is_answered_by_vote_although_its_caller_wants_no_ensemble() -> None:
    made = engine()
    assert not made.is_single(replace(requests(1)[0], sampling=Sampling(ensemble=False)))
    assert made.is_single(conversation(ensemble=False)) and not made.is_single(conversation(ensemble=True))
    backend = cast(EngineBackend, SimpleNamespace(_keeps_rows=True, _chats=False))
    assert not EngineBackend.writes_text(backend, ENV, False)
    assert EngineBackend.writes_text(backend, "grpo_tui.envs.chat.ChatEnv", False)


def test_equal_answers_to_equal_messages_are_remembered_in_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "REMEMBERED", 4)
    known, talk = Conversations(), Conversation(({"role": "user", "content": "are you there?"},), "caller")
    for number in range(1, 20):
        known.keep(talk, "yes", (), cast(Any, None), number)
    assert len(known._keys) == 4 and known.turn("caller", 19) is not None and known.turn("caller", 16) is not None


def conversation(text: str = "what is it?", number: int = 1, **sampling: Any) -> Request:
    row = Row("grpo_tui.envs.chat.ChatEnv", {}, {"messages": [{"role": "user", "content": text}]})
    return Request(row, number=number, sampling=Sampling(**sampling))


def test_a_conversation_gets_the_models_own_text_and_the_vote_comes_after_it() -> None:
    made = engine(answer="last_number", max_turn_tokens=6)
    answer = made.answer([conversation(max_tokens=9)], policy_version=3)[0]
    prompt = answer.samples[0].token_ids[: answer.samples[0].prompt_length]
    model, agent = cast(Any, made.model), cast(Any, made.runner.agent)
    own = model.generate(
        input_ids=torch.from_numpy(prompt)[None],
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=9,
        pad_token_id=0,
        eos_token_id=stop_ids_of(agent.model),
    )[0]
    assert answer.samples[0].token_ids.tolist() == own.tolist()
    assert len(answer.samples) == 1 and answer.text is not None
    learned = made.learn([answer])[0]
    assert len(learned.records) == 6 and learned.answer.label_vote.correct[0] is None
    voted = made.answer([conversation(number=2, ensemble=True)], policy_version=3)[0]
    assert len(voted.samples) == 5 and not voted.single


def test_samples_of_a_vote_are_no_longer_than_their_callers_answer(tmp_path: Path) -> None:
    made = engine(answer="last_number", max_turn_tokens=6)
    short = made.answer([conversation(max_tokens=2)], 0)[0]
    whole = made.answer([conversation(number=2)], 0)[0]
    follower = WeightFollower(made.model, SnapshotReader(tmp_path), poll_s=1.0, on_problem=pytest.fail)
    live = LiveAnswers(made, follower, answered=lambda answer: pytest.fail(str(answer.text)))
    drawn: dict[int, list[Rollout]] = {}
    for answer in (short, whole):
        live.draw(answer, 5, partial(drawn.__setitem__, answer.request.number))
    while len(drawn) < 2:
        live.advance()
    live.pause()
    lengths = {number: [int(r.agent_mask.sum()) for r in rollouts] for number, rollouts in drawn.items()}
    assert max(lengths[1]) == 2 < max(lengths[2]) <= 6
    widened = made.widen([short, whole])
    lengths = {a.request.number: [int(r.agent_mask.sum()) for r in a.samples[1:]] for a in widened}
    assert max(lengths[1]) == 2 < max(lengths[2]) <= 6


def test_samples_of_many_votes_share_a_limited_batch_and_stay_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(answer="last_number", max_turn_tokens=6)
    answers = [made.answer([conversation(number=n)], 0)[0] for n in range(1, 5)]
    follower = WeightFollower(made.model, SnapshotReader(tmp_path), poll_s=1.0, on_problem=pytest.fail)
    found: list[dict[int, list[list[int]]]] = []
    for limit in (10_000, 100, 1):
        monkeypatch.setattr(live_answers, "SAMPLE_TOKENS", limit)
        live = LiveAnswers(made, follower, answered=lambda answer: pytest.fail(str(answer.text)))
        drawn: dict[int, list[Rollout]] = {}
        for answer in answers:
            live.draw(answer, 5, partial(drawn.__setitem__, answer.request.number))
        held, longest = [0], len(answers[0].samples[0].token_ids[: answers[0].samples[0].prompt_length]) + 6
        while len(drawn) < 4:
            live.advance()
            held += [r.batch.background_tokens for r in live._running.values()]
        live.pause()
        assert max(held) <= max(limit, longest) and (limit == 1 or max(held) > longest)
        found.append({n: [r.token_ids.tolist() for r in rollouts] for n, rollouts in drawn.items()})
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("limit", [live_answers.SAMPLE_TOKENS, 1])
def test_a_new_version_answers_while_the_one_before_it_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(live_answers, "SAMPLE_TOKENS", limit)
    made = engine(max_turn_tokens=6)
    writer = SnapshotWriter(tmp_path, base_model="tiny")
    weights = {n: p.detach() + 0.1 for n, p in made.model.named_parameters() if p.requires_grad}
    writer.publish(weights)
    follower = WeightFollower(made.model, SnapshotReader(tmp_path), poll_s=1.0, on_problem=pytest.fail)
    live = LiveAnswers(made, follower, answered=lambda answer: pytest.fail(str(answer.text)))
    old = made.answer([conversation()], 0)[0]
    drawn: dict[int, list[Rollout]] = {}
    live.draw(old, 3, partial(drawn.__setitem__, 0))
    live.advance()
    live.pause()
    follower.look()
    assert follower.swap() is not None
    live.advance()  # the rows of version 0 continue
    live.draw(replace(old, policy_version=1), 3, partial(drawn.__setitem__, 1))
    while len(drawn) < 2:
        live.advance()
    live.pause()
    for version, rollouts in drawn.items():
        with follower.scoring(version):
            for rollout in rollouts:
                expected = behaviour_logprobs(made.model, rollout, made.config.temperature)
                assert rollout.logprobs == pytest.approx(expected, abs=1e-4)
    writer.close()


def test_a_version_whose_first_request_comes_while_an_older_answer_is_scored_answers_with_its_own_weights(
    tmp_path: Path,
) -> None:
    made = engine()
    writer = SnapshotWriter(tmp_path, base_model="tiny")
    weights = {n: p.detach() + 0.1 for n, p in made.model.named_parameters() if p.requires_grad}
    writer.publish(weights)
    follower = WeightFollower(made.model, SnapshotReader(tmp_path), poll_s=1.0, on_problem=pytest.fail)
    live = LiveAnswers(made, follower, answered=lambda answer: None)
    follower.look()
    assert follower.swap() is not None
    with follower.scoring(0):
        assert live.begin(conversation(max_tokens=1))
    for name, tensor in live._running[1].tensors.items():
        torch.testing.assert_close(tensor, weights[name])
    writer.close()


def test_a_version_that_finds_no_memory_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine()
    writer = SnapshotWriter(tmp_path, base_model="tiny")
    writer.publish({n: p.detach() + 0.1 for n, p in made.model.named_parameters() if p.requires_grad})
    follower = WeightFollower(made.model, SnapshotReader(tmp_path), poll_s=1.0, on_problem=pytest.fail)
    with monkeypatch.context() as patched:
        patched.setattr(follower, "_fitting", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            follower.look()
    follower.look()
    assert follower.swap() is not None and follower.version == 1
    writer.close()


def test_serving_continues_after_an_answer_that_cannot_be_learnt_from() -> None:
    made = engine()
    [answer] = made.answer([conversation(number=5)], 0)
    told = Mock()
    broken = SimpleNamespace(
        follower=Mock(scoring=lambda version: nullcontext()),
        engine=Mock(learn=Mock(side_effect=OSError(28, "No space left on device"))),
        keeper=told,
    )
    assert Serving._learn(cast(Serving, broken), [answer], 0) == []
    assert "Nothing is learnt from request 5: [Errno 28] No space" in told.event.call_args.args[1]


def test_texts_of_a_caller_that_leaves_are_forgotten_also_those_that_were_done(tmp_path: Path) -> None:
    made = engine()
    follower = WeightFollower(made.model, SnapshotReader(tmp_path), poll_s=1.0, on_problem=pytest.fail)
    live = LiveAnswers(made, follower, answered=lambda answer: pytest.fail("nobody waits for it"))
    request = conversation(temperature=1.5, max_tokens=40, texts=8, stop=("e",))
    assert live.begin(request)
    while len(live._jobs) == 8:
        live.advance()
    assert len(live._jobs) > 0 and len(live._streams) == 8
    request.cancelled.set()
    while live.busy:
        live.advance()
    live.pause()
    assert not live._streams


def test_free_text_without_an_extractor_gives_no_pseudo_label() -> None:
    made = engine()
    answer = made.answer([conversation()], policy_version=3)[0]
    learned = made.learn([answer])[0]
    assert learned.task is None and len(learned.records) == 1
    assert "set online.answer" in learned.answer.gate.reason


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
