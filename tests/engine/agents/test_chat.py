"""Bridges between turns, cut out of chat templates of several families."""

import pytest
from transformers import PreTrainedTokenizerFast

from benchmarks.policies.tokenizer import train_tokenizer
from grpo_tui.engine.agents.chat import ChatBridge, ChatTemplateError
from grpo_tui.engine.agents.scripted import ScriptedAgent
from grpo_tui.envs.agent import Message

from .models import TEXTS

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "<|begin|>{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
GEMMA = (
    "{% for m in messages %}<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
FAMILIES = {"<|im_end|>": CHATML, "<|eot|>": LLAMA3, "<end_of_turn>": GEMMA, "</s>": MISTRAL}


def tokenizer(template: str | None, end: str) -> PreTrainedTokenizerFast:
    tok = train_tokenizer(TEXTS, vocab_size=400)
    tok.add_special_tokens({"eos_token": end})
    tok.chat_template = template
    return tok


@pytest.mark.parametrize("end", FAMILIES)
def test_prompt_turn_and_bridge_are_what_the_template_renders(end):
    tok = tokenizer(FAMILIES[end], end)
    bridge = ChatBridge(tok)
    talk: list[Message] = [{"role": "user", "content": "What?"}]
    spoken, (stop,) = tok.encode("red"), tok.encode(end)
    ours = [*bridge.prompt(talk), *spoken, stop, *bridge.bridge(stop, "mask 12")]
    whole = tok.apply_chat_template(
        [
            {"role": "user", "content": "What?"},
            {"role": "assistant", "content": "red"},
            {"role": "user", "content": "mask 12"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    # Mistral's template puts a space before an answer; the agent writes it itself or leaves it out.
    assert str(tok.decode(ours)).replace(" red", "red") == str(whole).replace(" red", "red")
    assert bridge.end_of_turn == stop
    assert bridge.decode([*spoken, stop]) == "red"


@pytest.mark.parametrize("end", FAMILIES)
def test_a_turn_that_was_cut_is_closed(end):
    tok = tokenizer(FAMILIES[end], end)
    bridge = ChatBridge(tok)
    (stop,) = tok.encode(end)
    cut = bridge.bridge(tok.encode("re")[-1], "mask 12")
    assert cut[-len(bridge.bridge(stop, "mask 12")) :] == bridge.bridge(stop, "mask 12")
    assert str(tok.decode(list(cut))).lstrip().startswith(end)


def test_long_observations_take_neither_time_nor_memory(monkeypatch: pytest.MonkeyPatch):
    agent = ScriptedAgent([["red"]], tokenizer(CHATML, "<|im_end|>"), max_trajectory_tokens=3000)
    session = agent.start([[{"role": "user", "content": "What?"}]], 3)
    session.act([0, 1, 2])
    kept = agent.chat.bridge.cache_info().currsize
    session.observe([0, 1], ["short", "mask 12 " * 200])
    assert agent.chat.bridge.cache_info().currsize == kept + 1
    monkeypatch.setattr(agent.chat, "encode", None)  # what cannot fit is not tokenised
    session.observe([2], ["x" * 4_000_000])
    assert session.act([2])[0].stop_reason == "token_limit"
    assert len(session.tokens(1)) > len(session.tokens(0)) > len(session.tokens(2))


def test_templates_that_cannot_carry_a_conversation_are_refused():
    with pytest.raises(ChatTemplateError, match="has no chat template"):
        ChatBridge(tokenizer(None, "</s>"))
    with pytest.raises(
        ChatTemplateError, match=r"followed by a 'user' turn exactly once; set another model\.chat_template"
    ):
        ChatBridge(tokenizer("{{ messages[0].content }}", "</s>"))
    picky = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{% endfor %}"
    )
    with pytest.raises(ChatTemplateError, match="no tools here"):
        ChatBridge(tokenizer(picky, "</s>"), observation_role="tool")
