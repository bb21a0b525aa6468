import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.envs.calls import clean_text, format_call, means_call, parse_call, without_thoughts
from grpo_tui.envs.chat import ChatEnv

from .scripts import ByteAgent

CALL = '{"name": "SEGMENT_OBJECT_AT", "arguments": {"x": 31, "y": 40}}'


@pytest.mark.parametrize(
    "text, thought",
    [
        (CALL, ""),
        (f"look at it\n{CALL}", "look at it"),
        (f"look\n<tool_call>\n{CALL}\n</tool_call>", "look"),
        (f"```json\n{CALL}\n```", ""),
        (f"the set {{1, 2}} and {{'a'}} then {CALL}", "the set {1, 2} and {'a'} then"),
        (f'first {{"note": {{"name": "X"}}}} {CALL} and more {{"name": "Y"}}', 'first {"note": {"name": "X"}}'),
        (f"{CALL} trailing words }}", ""),
        ('{"name": "SEGMENT_OBJECT_AT", "parameters": {"x": 31, "y": 40}}', ""),
        ('{"name": "SEGMENT_OBJECT_AT", "arguments": "{\\"x\\": 31, \\"y\\": 40}"}', ""),
    ],
)
def test_a_call_is_read_wherever_it_stands(text: str, thought: str):
    call = parse_call(text)
    assert (call.name, dict(call.arguments), call.error) == ("SEGMENT_OBJECT_AT", {"x": 31, "y": 40}, None)
    assert call.thought == thought
    assert call.text == text


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "empty turn"),
        ("  \n", "empty turn"),
        ("I think it is red", "no JSON object"),
        ('{"name": "A", "arguments": {"x": 1}', "not closed"),
        ('{"name": "A", "arguments": {"x": 1,, }}', "invalid JSON at character"),
        ('{"name": "A", "arguments": {"x": NaN}}', "NaN is not a number"),
        ('{"tool": "A"}', 'no "name"'),
        ('{"name": 3}', '"name" must be'),
        ('{"name": ""}', '"name" must be'),
        ('{"name": "A", "arguments": [1]}', '"arguments" must be an object'),
        ('{"name": "A", "arguments": "x"}', "not JSON"),
        ('{"a":' * 50_000, "nested too deeply"),
        ("{" * 200_000, "invalid JSON"),
        ('{"name": "A", "arguments": {"x": 1e999}}', "1e999 is not a number"),
        *(
            ('{"name": "A", "arguments": {"x":' + "[" * n + "]" * n + "}}", "nested too deeply")
            for n in (101, 600, 980)
        ),
        ('{"name":' + "[" * 900 + "]" * 900 + "}", "nested too deeply"),
    ],
)
def test_an_unreadable_turn_says_why(text: str, why: str):
    call = parse_call(text)
    assert call.name is None
    assert call.error is not None and why in call.error


DRAFT = '{"name": "DRAFT", "arguments": {}}'


@pytest.mark.parametrize(
    "text",
    [
        f"<think>\nMaybe {DRAFT}?\n</think>\n\n{CALL}",
        f"Maybe {DRAFT}?\n</think>\n\n{CALL}",  # the template wrote <think>
        f"<think>a</think>\n<think>{DRAFT}</think>\n{CALL}",
        f"{CALL}\n<think>{DRAFT}</think>",
    ],
)
def test_a_call_in_a_thought_is_no_call(text: str):
    call = parse_call(text)
    assert (call.name, call.text) == ("SEGMENT_OBJECT_AT", text)
    assert not means_call(parse_call(f"<think>\n{DRAFT} or <tool_call>\n</think>\n7"), ("DRAFT",))


@pytest.mark.parametrize(
    "text", ["", "<think>", "a</think>", "x <think>a</think> {", "<think>a</think>", "</think>" * 3]
)
def test_tags_of_thoughts_in_arguments_are_kept(text: str):
    call = parse_call(format_call("A", {"text": text}))
    assert call.arguments == {"text": text}
    assert len(without_thoughts(text)) == len(text)


def test_a_thought_is_no_part_of_an_answer():
    task = {"messages": [{"role": "user", "content": "2 + 2?"}], "answer": "4"}
    said = "<think>\n2 + 2 = 4\n</think>\n\n4"
    (trajectory,) = ChatEnv().run_trial([task], ByteAgent(lambda *_: said), 1)["trajectories"]
    assert trajectory.correct is True and trajectory.answer == said


@given(st.text())
def test_nothing_that_an_agent_writes_raises(text: str):
    call = parse_call(text)
    assert (call.name is None) == (call.error is not None)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(names, st.dictionaries(names, values, max_size=4))
def test_what_is_written_is_read_back(name: str, arguments: dict):
    call = parse_call(format_call(name, arguments))
    assert (call.name, dict(call.arguments)) == (name, arguments)


def test_half_characters_become_question_marks():
    call = parse_call(json.dumps({"name": "A", "arguments": {"t": ["\ud800x"]}}))
    assert call.arguments == {"t": ["?x"]}
    assert clean_text("a\udfffb") == "a?b"
