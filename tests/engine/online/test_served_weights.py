"""New weights are served from the next request on. Texts that have begun keep theirs."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from grpo_tui.engine.online.serve import running_batches
from grpo_tui.engine.online.serve.live_answers import LiveAnswers
from grpo_tui.engine.online.serve.sample_passes import behaviour_logprobs
from grpo_tui.engine.online.serve.weights import WeightFollower
from grpo_tui.engine.online.store.snapshots import SnapshotReader, SnapshotWriter
from grpo_tui.engine.rollouts.rollout import Rollout

from .answering import conversation, engine
from .tiny import lora_model


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


@pytest.mark.parametrize("limit", [running_batches.SAMPLE_TOKENS, 1])
def test_a_new_version_answers_while_the_one_before_it_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(running_batches, "SAMPLE_TOKENS", limit)
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
    for name, tensor in live.running.batches[1].tensors.items():
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
