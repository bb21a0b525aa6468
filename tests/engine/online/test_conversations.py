"""Conversations: the caller gets one text at once, and samples for the vote follow."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from grpo_tui.engine.agents.decoder import stop_ids_of
from grpo_tui.engine.online.serve import conversations, running_batches
from grpo_tui.engine.online.serve.backend import EngineBackend
from grpo_tui.engine.online.serve.conversations import Conversation, Conversations
from grpo_tui.engine.online.serve.live_answers import LiveAnswers
from grpo_tui.engine.online.serve.requests import Sampling
from grpo_tui.engine.online.serve.serving import Serving
from grpo_tui.engine.online.serve.weights import WeightFollower
from grpo_tui.engine.online.store.snapshots import SnapshotReader
from grpo_tui.engine.rollouts.rollout import Rollout

from .answering import ENV, conversation, engine, requests


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
        monkeypatch.setattr(running_batches, "SAMPLE_TOKENS", limit)
        live = LiveAnswers(made, follower, answered=lambda answer: pytest.fail(str(answer.text)))
        drawn: dict[int, list[Rollout]] = {}
        for answer in answers:
            live.draw(answer, 5, partial(drawn.__setitem__, answer.request.number))
        held, longest = [0], len(answers[0].samples[0].token_ids[: answers[0].samples[0].prompt_length]) + 6
        while len(drawn) < 4:
            live.advance()
            held += [r.batch.background_tokens for r in live.running.batches.values()]
        live.pause()
        assert max(held) <= max(limit, longest) and (limit == 1 or max(held) > longest)
        found.append({n: [r.token_ids.tolist() for r in rollouts] for n, rollouts in drawn.items()})
    assert found[0] == found[1] == found[2]


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


def test_serving_continues_after_an_answer_that_cannot_be_learnt_from() -> None:
    made = engine()
    [answer] = made.answer([conversation(number=5)], 0)
    told = Mock()
    broken = SimpleNamespace(
        follower=Mock(scoring=lambda version: nullcontext()),
        engine=Mock(learn=Mock(side_effect=OSError(28, "No space left on device"))),
        keeper=told,
        _between=Mock(),
    )
    assert Serving._learn(cast(Serving, broken), [answer], 0) == []
    assert "Nothing is learned from request 5: [Errno 28] No space" in told.event.call_args.args[1]
