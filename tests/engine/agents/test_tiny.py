"""The tiny policy's tokenizer, and the command that makes it."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.policies import build
from benchmarks.policies.curriculum import HABITS, spelling
from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.demonstration.visual import VisualEnv
from grpo_tui.engine.demonstration.visual.questions import QUESTIONS

from .models import tokenizer


@given(st.text(max_size=80))
def test_any_text_comes_back_from_its_tokens(text):
    tok = tokenizer()
    assert tok.decode(tok.encode(text, add_special_tokens=False), clean_up_tokenization_spaces=False) == text


@given(st.integers(0, 127), st.sampled_from(["{}", "at {}?", '"x": {},', "[{}, 3]", "{}px"]))
def test_a_number_is_one_token_wherever_it_stands(number, where):
    tok = tokenizer()
    tokens = [str(tok.decode([t])) for t in tok.encode(where.format(number))]
    if where == "{}px" and number > 9:
        return  # part of a word: its digits
    assert str(number) in tokens


def test_the_template_puts_three_tokens_between_an_agents_turn_and_its_next():
    bridge = ChatBridge(tokenizer())
    tokens = bridge.bridge(bridge.end_of_turn, "")
    assert tokenizer().decode(list(tokens)) == "<|user|><|end|><|assistant|>"
    assert len(tokens) == 3


def test_every_question_of_the_environment_has_a_habit():
    env = VisualEnv(questions=tuple(QUESTIONS))
    assert set(HABITS) == set(QUESTIONS)
    for task in env.make_tasks("train", 40, 0):
        assert HABITS[task["question"]][0] in env.routes(task)


def test_spelling_lessons_answer_what_was_read():
    words = set()
    for lesson in spelling(VisualEnv(), 8, 0, tokenizer()):
        text = str(tokenizer().decode(lesson.token_ids))
        word = text.split("text ")[-1].split("<|end|>")[0]
        words.add(word)
        assert f'"arguments": {{"text": "{word}"}}' in text
    assert len(words) > 4


@pytest.mark.slow
def test_the_command_makes_a_policy_that_loads(tmp_path, capsys, monkeypatch):
    # Its own environment, small: what is held is that every part is made and fits together.
    # A policy that learnt nothing ends no turn, so that its turns are cut short.
    short = {"max_turn_tokens": 6, "max_trajectory_tokens": 512}
    monkeypatch.setattr(build, "TransformersAgent", lambda *parts, **limits: TransformersAgent(*parts, **short))
    arguments = ["--output", str(tmp_path), "--lessons", "16", "--base-steps", "2", "--habit-steps", "1"]
    arguments += ["--comparison-steps", "1"]
    build.main(build.build, tmp_path, [*arguments, "--held-out", "2"])
    shown = capsys.readouterr().out
    assert "base greedy" in shown and "sft sampled" in shown

    net = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    tok = AutoTokenizer.from_pretrained(tmp_path / "base")
    adapted = PeftModel.from_pretrained(net, str(tmp_path / "sft"))
    with torch.no_grad():
        logits = adapted(input_ids=torch.tensor([tok.encode("<|user|>image 96 96.")])).logits
    assert logits.shape[-1] == len(tok)
    assert (
        json.loads((tmp_path / "sft" / "adapter_config.json").read_text())["base_model_name_or_path"] == "builtin:tiny"
    )
    assert json.loads((tmp_path / "quality.json").read_text())["bytes"] <= build.LARGEST
