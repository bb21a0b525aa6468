"""Settings of a caller's text, with OpenAI's client: stop strings, seeds, several texts, log-probs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from grpo_tui.engine.online.serve.texts import TextStream, before_stop
from grpo_tui.engine.runs.control.requests import request

from .chats import Served, served
from .tiny import run_config

ALTERNATE = (
    "{% for m in messages %}{% if loop.index0 % 2 == 0 and m.role == 'assistant' or loop.index0 % 2 and m.role == "
    "'user' %}{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
"""The rule of the templates of Gemma and Mistral."""
HOT: dict[str, Any] = {"temperature": 1.5, "max_tokens": 24}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("text_options")
    config = run_config(folder / "policy", serve="127.0.0.1:0", updates=False, max_trajectory_tokens=128)
    config.environment.class_path = "grpo_tui.envs.chat.ChatEnv"
    words = AutoTokenizer.from_pretrained(config.model.base)
    words.chat_template = ALTERNATE + words.chat_template
    words.save_pretrained(config.model.base)
    with served(config, folder) as made:
        yield made


def pieces(chunks: Any) -> dict[int, list[Any]]:
    """The choices of a stream's chunks by index."""
    found: dict[int, list[Any]] = defaultdict(list)
    for chunk in chunks:
        for choice in chunk.choices:
            found[choice.index].append(choice)
    return found


def text_of(choices: list[Any]) -> str:
    return "".join(choice.delta.content or "" for choice in choices)


# ---------------------------------------------------------------------------------------------------- stop strings


@pytest.mark.parametrize("streamed", [False, True])
def test_a_text_ends_before_the_first_stop_string(run: Served, streamed: bool) -> None:
    whole = run.ask("what is it?", max_tokens=40).choices[0].message.content
    assert len(whole) > 12
    for stop in (whole[5:9], [whole[9:12], whole[6:8]], ["\u2603 never", whole[4]]):
        expected = before_stop(whole, [stop] if isinstance(stop, str) else stop)
        assert expected != whole
        if streamed:
            [choices] = pieces(run.ask("what is it?", max_tokens=40, stop=stop, stream=True)).values()
            text, reason = text_of(choices), choices[-1].finish_reason
        else:
            [choice] = run.ask("what is it?", max_tokens=40, stop=stop).choices
            text, reason = choice.message.content, choice.finish_reason
        assert (text, reason) == (expected, "stop")


def test_a_stop_string_that_is_never_completed_is_part_of_the_text(run: Served) -> None:
    whole = run.ask("what is it?", max_tokens=20).choices[0].message.content
    [choices] = pieces(run.ask("what is it?", max_tokens=20, stop=whole[-3:] + "\u2603", stream=True)).values()
    assert text_of(choices) == whole


@given(st.text("ab\u00e9\U0001f642", max_size=30), st.lists(st.text("ab\u00e9", min_size=1, max_size=4), max_size=3))
def test_no_piece_holds_a_part_of_a_stop_string(text: str, stop: list[str]) -> None:
    # A text ends with the first stop string that is complete, even where a longer one began before it.
    ends = next((end for end in range(len(text)) if before_stop(text[:end], stop) != text[:end]), len(text))
    text = text[:ends]
    tokens = list(text.encode())
    stream, said = TextStream(lambda t: bytes(t).decode("utf-8", "replace"), stop), ""
    for end in range(1, len(tokens) + 1):
        said += stream.piece(tokens[:end])
        assert before_stop(text, stop).startswith(said)
        assert stream.complete <= end and len(bytes(tokens[: stream.complete]).decode(errors="ignore")) <= len(said)
        if stream.stopped:
            break
    assert stream.stopped == (before_stop(text, stop) != text)
    if stream.stopped or not stop:
        assert said == before_stop(text, stop)


# -------------------------------------------------------------------------------------------------- seeds and texts


def test_a_seed_repeats_a_text_and_each_text_of_a_request_differs(run: Served) -> None:
    first, second = (run.ask("what is it?", **HOT, seed=7, n=4) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices] and len(set(texts)) == 4
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert run.ask("what is it?", **HOT, seed=7).choices[0].message.content == texts[0]
    others = {run.ask("what is it?", **HOT, seed=seed).choices[0].message.content for seed in (8, -1)}
    assert others.isdisjoint(texts)
    unseeded = {run.ask("what is it?", **HOT).choices[0].message.content for _ in range(3)}
    assert len(unseeded) == 3
    alone = run.ask("what is it?", **HOT, seed=7).usage
    assert first.usage.prompt_tokens == alone.prompt_tokens
    assert first.usage.completion_tokens > alone.completion_tokens


def test_several_texts_are_streamed_together(run: Served) -> None:
    whole = [c.message.content for c in run.ask("what is it?", **HOT, seed=3, n=3).choices]
    found = pieces(run.ask("what is it?", **HOT, seed=3, n=3, stream=True))
    assert [text_of(found[index]) for index in range(3)] == whole
    for choices in found.values():
        assert choices[0].delta.role == "assistant" and choices[-1].finish_reason in ("stop", "length")
        assert sum(choice.finish_reason is not None for choice in choices) == 1


# --------------------------------------------------------------------------------------------------------- log-probs


@pytest.mark.parametrize("streamed", [False, True])
def test_logprobs_are_those_of_the_model(run: Served, streamed: bool) -> None:
    messages = [{"role": "user", "content": "what is it?"}]
    options: dict[str, Any] = {"max_tokens": 12, "logprobs": True, "top_logprobs": 3, "temperature": 0.7, "seed": 5}
    if streamed:
        [choices] = pieces(run.ask(messages, **options, stream=True)).values()
        content, text = [t for c in choices if c.logprobs for t in c.logprobs.content], text_of(choices)
    else:
        [choice] = run.ask(messages, **options).choices
        content, text = choice.logprobs.content, choice.message.content
    assert 0 < len(content) <= 12
    model, words = run.policy
    rendered = words.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = words.encode(rendered, add_special_tokens=False)
    ids = list(prompt)
    for token in content:
        logprobs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        best = logprobs.topk(3)
        assert [t.logprob for t in token.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert [t.token for t in token.top_logprobs] == [words.decode([i]) for i in best.indices.tolist()]
        [written] = [
            i for i in range(len(words)) if words.decode([i]) == token.token and abs(logprobs[i] - token.logprob) < 1e-4
        ]
        assert token.bytes is None or bytes(token.bytes).decode() == token.token
        ids.append(written)
    assert words.decode(ids[len(prompt) :], skip_special_tokens=True) == text


def test_logprobs_end_with_the_text_before_a_stop_string(run: Served) -> None:
    options: dict[str, Any] = {"max_tokens": 40, "logprobs": True}
    whole = run.ask("what is it?", **options).choices[0]
    assert all(token.top_logprobs == [] for token in whole.logprobs.content)
    stop = whole.message.content[6:9]
    cut = run.ask("what is it?", **options, stop=stop).choices[0]
    tokens = [token.token for token in cut.logprobs.content]
    assert cut.message.content.startswith("".join(tokens)) and 0 < len(tokens) < len(whole.logprobs.content)
    [choices] = pieces(run.ask("what is it?", **options, stop=stop, stream=True)).values()
    assert [t.token for c in choices if c.logprobs for t in c.logprobs.content] == tokens


# ---------------------------------------------------------------------------------------------------------- refusals


def test_each_refused_value_is_one_clear_sentence(run: Served) -> None:
    assert run.refused("?", n=17).startswith("n: input should be less than or equal to 16")
    assert run.refused("?", n=0).startswith("n: ")
    assert run.refused("?", seed=2**63).startswith("seed: ")
    assert run.refused("?", stop=["a"] * 17).startswith("stop: ")
    assert run.refused("?", stop="a" * 201).startswith("stop: ")
    assert run.refused("?", stop=[5]).startswith("stop[0]: ")
    assert run.refused("?", logprobs=True, top_logprobs=21).startswith("top_logprobs: ")
    assert run.refused("?", top_logprobs=2) == "top_logprobs needs logprobs: true"
    for options in ({"n": 2}, {"stop": "a"}, {"logprobs": True}):
        [name] = options
        said = run.refused("?", **options, extra_body={"ensemble": True})
        assert said.startswith(f"{name} is not supported for this answer: it needs a conversation")
    asked = {"model": run.model, "input": "what is it?", "n": 2}
    assert httpx.post(f"{run.url}/v1/responses", json=asked).json()["error"]["param"] == "n"
    assert run.ask("?", stop=[], seed=None, n=None, logprobs=False).choices


def test_messages_that_the_chat_template_refuses_cost_their_request_alone(run: Served) -> None:
    twice = [{"role": "user", "content": "what is it?"}] * 2
    assert "roles must alternate" in run.refused(twice)
    with pytest.raises(openai.APIError, match="roles must alternate"):
        list(run.ask(twice, stream=True))
    assert run.ask("what is it?", max_tokens=3).choices


def test_a_caller_that_leaves_takes_all_its_texts_along(run: Served) -> None:
    body = {"messages": [{"role": "user", "content": "what is it?"}], "n": 16, "stream": True, "temperature": 2}
    for _ in range(3):
        with httpx.stream("POST", f"{run.url}/v1/chat/completions", json=body, timeout=30) as answer:
            assert answer.status_code == 200 and next(answer.iter_lines())
    assert run.ask("what is it?", max_tokens=3).choices


def test_who_is_being_answered_when_the_run_is_stopped_is_told(tmp_path: Path) -> None:
    config = run_config(tmp_path / "policy", serve="127.0.0.1:0", updates=False, max_trajectory_tokens=8192)
    config.environment.class_path = "grpo_tui.envs.chat.ChatEnv"
    with served(config, tmp_path) as run, httpx.Client(base_url=run.url, timeout=60) as client:
        body = {"messages": [{"role": "user", "content": "what is it?"}], "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            while '"content": "' not in next(lines):
                continue
            request(run.run_dir, "stop")
            assert "the run is being stopped" in [line for line in lines if line][-1]
