"""Continuous batching: rows that join and leave write what each would write alone."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpo_tui.engine.agents import live_batch
from grpo_tui.engine.agents.live_batch import LiveBatch, LiveRow
from grpo_tui.engine.agents.sampling import SamplingSettings
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.online.serve.texts import TextStream
from grpo_tui.engine.policy.prepared import acting

from .tiny import lora_model, tokenizer

WORDS = tokenizer()
MODEL = lora_model(len(WORDS))
AGENT = TransformersAgent(MODEL, WORDS)
GREEDY = SamplingSettings(0.0)
QUESTIONS = ["what is it?", "green and so on, it is blue", "0 1 2 3", "red", "it is", "blue and red and green"]


def prompt(text: str) -> list[int]:
    return AGENT.chat.prompt([{"role": "user", "content": text}])


def generated(ids: list[int], limit: int) -> list[int]:
    """Greedy generation as transformers does it."""
    given = torch.tensor([ids])
    stop = list(AGENT.chat.stop_ids)
    out = MODEL.generate(
        input_ids=given, attention_mask=torch.ones_like(given), max_new_tokens=limit, do_sample=False,
        eos_token_id=stop, pad_token_id=0,
    )  # fmt: skip
    return out[0, len(ids) :].tolist()


def row(text: str, limit: int, **more: Any) -> LiveRow:
    return LiveRow(prompt(text), limit, more.pop("sampling", GREEDY), more.pop("seed", 0), **more)


def test_rows_that_join_and_leave_write_what_transformers_generates() -> None:
    rows = [row(text, 3 + 7 * i, background=i == 1) for i, text in enumerate(QUESTIONS)]
    batch = LiveBatch(AGENT.decoder, AGENT.chat.stop_ids)
    waiting, done = list(rows), []
    with acting(MODEL):
        while waiting or len(batch):
            if waiting:
                done += batch.join([waiting.pop(0)])
            done += batch.step()
            done += batch.step()
    assert sorted(map(id, done)) == sorted(map(id, rows))
    for one in rows:
        assert one.tokens == generated(list(one.prompt), one.limit)


def test_background_rows_wait_while_a_foreground_row_writes_and_then_write_the_same() -> None:
    drawn = SamplingSettings(1.0)
    alone = [row("what is it?", 12, sampling=drawn, seed=s) for s in range(3)]
    beside = [replace(r, tokens=[], logprobs=[], background=True) for r in alone]
    batch = LiveBatch(AGENT.decoder, AGENT.chat.stop_ids)
    with acting(MODEL):
        batch.join(alone)
        while len(batch):
            batch.step()
        batch.join(beside)
        urgent = row("red", 6)
        finished = batch.join([urgent])
        before = [len(r.tokens) for r in beside]
        while not urgent.done:
            finished += batch.step()
            assert [len(r.tokens) for r in beside] == before
        while len(batch):
            batch.step()
    for one, other in zip(alone, beside, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_samples_of_a_vote_do_not_encode_the_prompt_of_the_answer_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[list[int]] = []
    encode = LiveBatch._encode

    def counted(self: LiveBatch, prompts: Any) -> Any:
        encoded.append([len(p) for p in prompts])
        return encode(self, prompts)

    monkeypatch.setattr(LiveBatch, "_encode", counted)
    drawn = SamplingSettings(1.0)
    texts = QUESTIONS[:3]
    alone = {t: [row(t, 12, sampling=drawn, seed=s) for s in range(3)] for t in texts}
    batch = LiveBatch(AGENT.decoder, AGENT.chat.stop_ids)
    for keep, times in ((False, 6), (True, 3)):
        encoded.clear()
        votes = {t: [replace(r, tokens=[], logprobs=[], background=True) for r in rows] for t, rows in alone.items()}
        with acting(MODEL):
            for t in texts:
                batch.join([row(t, 4, keep=keep)])
            while len(batch):
                batch.step()
            for t in texts:
                batch.join(votes[t])
            while len(batch):
                batch.step()
        assert len(encoded) == times
        if not keep:
            alone = votes
    for t in texts:
        for one, other in zip(alone[t], votes[t], strict=True):
            assert one.tokens == other.tokens
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_kept_prompts_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_batch, "KEPT_TOKENS", len(prompt(QUESTIONS[1])) + len(prompt(QUESTIONS[2])))
    batch = LiveBatch(AGENT.decoder, AGENT.chat.stop_ids)
    with acting(MODEL):
        for text in QUESTIONS[:3]:
            batch.join([row(text, 2, keep=True)])
    assert [tuple(prompt(text)) in batch._prompts for text in QUESTIONS[:3]] == [False, True, True]


def test_the_memory_of_texts_is_free_when_they_end() -> None:
    """A cycle of references would keep gigabytes until the garbage collector runs, which is rare in a server."""
    made: list[weakref.ref[torch.Tensor]] = []
    rows = [row(text, 9, background=i > 2) for i, text in enumerate(QUESTIONS)]
    batch = LiveBatch(AGENT.decoder, AGENT.chat.stop_ids)
    gc.collect()
    gc.disable()
    try:
        with acting(MODEL):
            batch.join(rows)
            while len(batch):
                assert batch._cache is not None
                made += [weakref.ref(layer.keys) for layer in batch._cache._row_layers if layer.keys is not None]
                batch.step()
        assert made and not [ref for ref in made if ref() is not None]
    finally:
        gc.enable()


def test_a_cancelled_row_leaves_and_the_others_go_on() -> None:
    rows = [row(text, 9) for text in QUESTIONS[:3]]
    batch = LiveBatch(AGENT.decoder, AGENT.chat.stop_ids)
    with acting(MODEL):
        batch.join(rows)
        rows[0].cancelled = True
        assert rows[0] in batch.step()
        while len(batch):
            batch.step()
    for one in rows[1:]:
        assert one.tokens == generated(list(one.prompt), one.limit)


def test_a_stream_ends_its_pieces_with_whole_characters() -> None:
    letters = "aé🙂b".encode()
    stream = TextStream(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    pieces = [stream.piece(list(letters[: i + 1])) for i in range(len(letters))]
    assert "".join(pieces) == "aé🙂b" and not any("\ufffd" in p for p in pieces)
