"""The KV cache and its masks: what the agent wrote down equals a fresh forward pass over the whole trajectory."""

from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model

from grpo_tui.engine.agents.acting_rows import fitting_rows
from grpo_tui.engine.agents.cached_rows import CachedRows
from grpo_tui.engine.agents.decoder import Decoder, UnsupportedModelError
from grpo_tui.engine.agents.scripted import ScriptedAgent
from grpo_tui.engine.agents.session import TransformersSession
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.policy.versions import enable_checkpointing
from grpo_tui.engine.runs.control.live import BatchTexts, LiveTexts
from grpo_tui.envs.agent import Message
from grpo_tui.envs.calculator import CalculatorEnv
from grpo_tui.rewards.penalties import Episode
from grpo_tui.rewards.penalties.built_in import NoFinalAnswer, UnparsableCall
from tests.properties import drawn

from .models import model, model_of_type, tokenizer

WORDS = "red blue mask 12 box [3, 4] area of the object at (31, 40) is unknown".split()  # noqa: SIM905


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def read(tokens) -> str:
    return str(tokenizer().decode(tokens))


def play(agent, prompts, rollouts, observations, *, seed=0, ends=None):
    """All rows act; a row leaves after `ends[row]` turns. `observations(row, turn)` gives the text."""
    session = agent.start(prompts, rollouts, seed=seed)
    assert isinstance(session, TransformersSession)
    rows = list(range(len(prompts) * rollouts))
    turns = {row: [] for row in rows}
    for turn in range(4):
        for row, said in zip(rows, session.act(rows), strict=True):
            turns[row].append(said)
        rows = [row for row in rows if ends is None or turn + 1 < ends[row]]
        if not rows:
            break
        session.observe(rows, [observations(row, turn) for row in rows])
    return session, turns


def fresh_logprobs(net, ids: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """log softmax(logits / temperature) of every token after the first, in float64 from one pass without a cache."""
    tokens = torch.as_tensor(ids.astype(np.int64))[None]
    with torch.no_grad():
        logits = net(input_ids=tokens).logits[0, :-1].double() / (temperature or 1.0)
    return logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0].numpy()


def assert_logprobs_match(net, session, rows, temperature=1.0, written=True):
    count = 0
    for row in rows:
        arrays = session.tokens(row)
        expected = fresh_logprobs(net, arrays.token_ids, temperature)
        mask = arrays.agent_mask[1:]
        np.testing.assert_allclose(arrays.logprobs[1:][mask], expected[mask], atol=1e-4)
        assert (arrays.logprobs[~arrays.agent_mask] == 0).all()
        count += int(mask.sum())
    assert count or not written


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ["qwen3", "llama", "mistral-sliding", "gemma3"])
def test_logprobs_equal_a_fresh_forward_pass_after_several_turns(architecture, attention):
    net = model(architecture, attention=attention, end_bias=4.0)
    agent = TransformersAgent(net, tokenizer(), temperature=1.3, max_turn_tokens=12, max_trajectory_tokens=160)
    prompts = [user("What colour?"), user("What colour is the object at (31, 40)? " * 3), user("x")]
    session, turns = play(
        agent,
        prompts,
        3,
        lambda row, turn: " ".join(WORDS[: 1 + (row * 5 + turn * 3) % 9]),
        ends=[1, 4, 2, 3, 4, 4, 1, 2, 4],
        seed=1,
    )
    lengths = {end - start for row in turns.values() for start, end in (t.token_span for t in row)}
    assert len(lengths) > 3, "rows should differ in length for this test to mean something"
    assert_logprobs_match(net, session, range(9), 1.3)


@drawn(6, 100, data=st.data())
def test_logprobs_are_exact_for_any_lengths(data):
    net = model("qwen3", seed=data.draw(st.integers(0, 3)), end_bias=data.draw(st.sampled_from([0.0, 4.0, 7.0])))
    agent = TransformersAgent(
        net,
        tokenizer(),
        max_turn_tokens=data.draw(st.integers(1, 9)),
        max_trajectory_tokens=data.draw(st.sampled_from([64, 128, 4096])),
    )
    words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join)
    prompts = [user(text) for text in data.draw(st.lists(words, min_size=1, max_size=3))]
    rollouts = data.draw(st.integers(1, 3))
    n = len(prompts) * rollouts
    ends = data.draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
    texts = data.draw(st.lists(words, min_size=n, max_size=n))
    session, _ = play(agent, prompts, rollouts, lambda row, turn: texts[(row + turn) % n], ends=ends)
    assert_logprobs_match(net, session, range(n), written=False)


def test_logprobs_are_exact_with_lora_adapters_and_training_mode_is_left_as_it_was():
    net: Any = get_peft_model(model("qwen3", end_bias=4.0), LoraConfig(r=4, target_modules="all-linear"))
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    net.enable_adapter_layers()
    net.train()
    enable_checkpointing(net.get_base_model(), {"use_reentrant": True})
    agent = TransformersAgent(net, tokenizer(), max_turn_tokens=8)
    session, _ = play(agent, [user("What colour?"), user("x")], 2, lambda row, turn: "red")
    assert net.training
    net.eval()
    assert_logprobs_match(net, session, range(4))


def test_a_row_that_skips_turns_and_comes_back_is_encoded_again():
    net = model("llama", end_bias=3.0)
    agent = TransformersAgent(net, tokenizer(), max_turn_tokens=6)
    session = agent.start([user("What colour?"), user("box")], 4, seed=3)
    everybody = list(range(8))
    session.act(everybody)
    session.observe(everybody, ["red"] * 8)
    for _ in range(2):  # row 0 alone: the others lose their places
        session.act([0])
        session.observe([0], ["mask 12"])
    session.act(everybody[::-1])
    assert_logprobs_match(net, session, everybody)


def test_the_same_seed_gives_the_same_rollouts_and_another_seed_others():
    agent = TransformersAgent(model("qwen3"), tokenizer(), max_turn_tokens=10)
    prompts = [user("What colour?")]

    def ids(seed):
        session, _ = play(agent, prompts, 2, lambda row, turn: "red", seed=seed)
        return [session.tokens(row).token_ids.tolist() for row in range(2)]

    assert ids(5) == ids(5)
    assert ids(5) != ids(6)
    first, second = ids(5)
    assert first != second, "rollouts of one group draw their own random numbers"


@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_decoding_is_what_generate_writes(penalty: float):
    net = model("qwen3", end_bias=2.0)
    agent = TransformersAgent(net, tokenizer(), max_turn_tokens=16, repetition_penalty=penalty)
    messages = user("What colour is the object?")
    with agent.settings(temperature=0):
        session = agent.start([messages], 1)
        session.act([0])
    assert agent.config.temperature == 1.0
    prompt = torch.tensor([agent.chat.prompt(messages)])
    expected = cast(Any, net).generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=16,
        repetition_penalty=penalty,
    )
    assert session.tokens(0).token_ids.tolist() == expected[0].tolist()
    assert_logprobs_match(net, session, [0])


def test_limits_per_turn_and_per_trajectory_and_how_a_cut_turn_is_closed():
    net = model("qwen3", end_bias=-50.0)  # never ends a turn by itself
    tok = tokenizer()
    agent = TransformersAgent(net, tok, max_turn_tokens=7, max_trajectory_tokens=40)
    session = agent.start([user("x")], 1, seed=0)
    prompt = len(session.tokens(0))
    reasons = []
    for _ in range(5):
        (turn,) = session.act([0])
        reasons.append(turn.stop_reason)
        session.observe([0], ["red"])
    arrays = session.tokens(0)
    assert reasons[0] == "turn_limit" and reasons[-1] == "token_limit"
    assert len(arrays) <= 40
    text = read(arrays.token_ids[prompt + 7 :])
    assert text.startswith("<|end|><|user|>red<|end|><|assistant|>")
    assert not arrays.agent_mask[prompt + 7], "the end token of a cut turn is not the agent's"
    assert session.act([0])[0].text == ""


def test_a_prompt_beyond_the_limit_gets_no_turn_and_is_cut():
    agent = TransformersAgent(model("qwen3"), tokenizer(), max_turn_tokens=7, max_trajectory_tokens=40)
    session = agent.start([user("red " * 400), user("x")], 1, seed=0)
    turns = session.act([0, 1])
    assert turns[0].stop_reason == "token_limit" and turns[0].text == "" and len(session.tokens(0)) == 40
    assert turns[1].text


def test_the_end_token_that_the_agent_wrote_is_its_own_and_is_not_written_twice():
    net = model("qwen3", end_bias=50.0)  # ends every turn at once
    agent = TransformersAgent(net, tokenizer(), max_turn_tokens=7)
    session = agent.start([user("x")], 1, seed=0)
    prompt = len(session.tokens(0))
    (turn,) = session.act([0])
    session.observe([0], ["red"])
    arrays = session.tokens(0)
    assert (turn.text, turn.stop_reason) == ("", "stop")
    assert arrays.agent_mask.tolist().index(True) == prompt
    assert tokenizer().decode(arrays.token_ids[prompt:]) == "<|end|><|user|>red<|end|><|assistant|>"
    assert arrays.turn.tolist()[prompt:] == [0] * (len(arrays) - prompt)


@pytest.mark.parametrize("kind", ["gpt2", "bloom", "qwen3_5_text", "lfm2", "bamba", "mamba", "rwkv"])
def test_models_that_keep_other_things_from_token_to_token_act_as_well(kind):
    net = model_of_type(kind)
    agent = TransformersAgent(net, tokenizer(), max_turn_tokens=8, max_trajectory_tokens=120)
    said = lambda row, turn: " ".join(WORDS[: 1 + (row * 5 + turn * 3) % 9])  # noqa: E731
    prompts = [user("What colour?"), user("What colour is the object at (31, 40)?")]
    session, _ = play(agent, prompts, 2, said, ends=[3, 1, 2, 4], seed=1)
    assert_logprobs_match(net, session, range(4))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ["qwen3", "llama", "mistral-sliding", "gemma3"])
def test_common_models_act_on_a_cache_of_rows(architecture, attention):
    assert fitting_rows(Decoder(model(architecture, attention=attention))) is CachedRows


def test_models_that_act_otherwise_than_they_learn_are_refused_in_one_sentence():
    net = model("qwen3")
    next(net.parameters()).data.fill_(torch.nan)
    agent = TransformersAgent(net, tokenizer())
    said = r"^Qwen3ForCausalLM gives different log-probs .* choose another model$"
    with pytest.raises(UnsupportedModelError, match=said):
        agent.start([user("x")], 1)


def test_no_turn_at_all_for_a_prompt_that_fills_the_trajectory():
    agent = TransformersAgent(model("qwen3"), tokenizer(), max_turn_tokens=4, max_trajectory_tokens=30)
    session = agent.start([user("long " * 40), user("x")], 1, seed=0)
    turns = session.act([0, 1])
    assert (turns[0].text, turns[0].stop_reason) == ("", "token_limit")
    assert turns[1].token_span[1] > turns[1].token_span[0]
    session.observe([0, 1], ["red", "red"])
    session.act([0, 1])
    assert_logprobs_match(model("qwen3"), session, [1])


def test_a_watcher_sees_texts_grow_and_changes_nothing(monkeypatch):
    plain = TransformersAgent(model("qwen3"), tokenizer(), max_turn_tokens=12)
    expected = [turn.text for turn in plain.start([user("red"), user("blue")], 2, seed=3).act(range(4))]
    live = LiveTexts()
    live.purpose("", 1, 1, 4)
    agent = TransformersAgent(model("qwen3"), tokenizer(), max_turn_tokens=12)
    agent.watcher = live
    looks = []
    monkeypatch.setattr(BatchTexts, "due", lambda batch: bool(looks.append(live.news()) or True))
    session = agent.start([user("red"), user("blue")], 2, seed=3)
    assert [turn.text for turn in session.act(range(4))] == expected
    session.close()
    batches = [look["batches"][0] for look in looks]
    tokens = [batch["tokens"] for batch in batches]
    assert tokens == sorted(tokens) and len(set(tokens)) > 5
    growing = [batch["texts"][0]["text"] for batch in batches]
    assert all(later.startswith(earlier.rstrip()) for earlier, later in pairwise(growing) if len(later) >= len(earlier))
    news = live.news()
    assert news is not None
    last = news["batches"][0]
    assert [text["text"] for text in last["texts"]] == expected
    assert last["finished"] == 4 and last["ended"] and last["limit"] == 48


def test_a_scripted_agent_says_its_lines_with_certainty():
    tok = tokenizer()
    seen = []

    def script(row, turn, observation):
        seen.append((row, turn, observation))
        return f"row {row} turn {turn}"

    session = ScriptedAgent(script, tok).start([user("x"), user("y")], 2)
    for _ in range(2):
        session.act([0, 3])
        session.observe([0, 3], ["red", "blue"])
    turns = session.act([0, 3])
    assert [t.text for t in turns] == ["row 0 turn 2", "row 3 turn 2"]
    assert seen == [(0, 0, None), (3, 0, None), (0, 1, "red"), (3, 1, "blue"), (0, 2, "red"), (3, 2, "blue")]
    arrays = session.tokens(3)
    said = tok.decode(arrays.token_ids[arrays.agent_mask])
    assert said == "row 3 turn 0<|end|>row 3 turn 1<|end|>row 3 turn 2<|end|>"
    assert (arrays.logprobs == 0).all()


def test_a_short_row_may_write_after_a_long_one_is_full():
    net = model("qwen3", end_bias=-50.0)
    agent = TransformersAgent(net, tokenizer(), max_turn_tokens=40, max_trajectory_tokens=64)
    session = agent.start([user("x"), user("red " * 25)], 1, seed=0)
    turns = session.act([0, 1])
    assert [t.stop_reason for t in turns] == ["turn_limit", "token_limit"]
    assert len(session.tokens(1)) == 64
    assert_logprobs_match(net, session, [0, 1])


def test_an_observation_that_does_not_fit_ends_the_rollout_without_an_empty_step():
    tok = tokenizer()
    env = CalculatorEnv(max_turns=4)
    task = {"start": 3, "operations": [["add", 4]], "answer": "7"}
    room = len(TransformersAgent(model("qwen3"), tok).chat.prompt(env.reset(task)[1])) + 4 + 2
    agent = TransformersAgent(model("qwen3", end_bias=-50.0), tok, max_turn_tokens=4, max_trajectory_tokens=room)
    for trajectory in env.run_trial([task], agent, 3, seed=0)["trajectories"]:
        assert trajectory.stop_reason == "max_tokens"
        assert [s.token_span[1] - s.token_span[0] for s in trajectory.steps] == [4]
        rules = [UnparsableCall(), NoFinalAnswer()]
        found = [r.id for s in trajectory.steps for r in rules if r.check(Episode(trajectory), s) is not None]
        assert found == ["unparsable_call", "no_final_answer"]  # for what it wrote, once each
