"""Calls in the syntax of real chat templates: tools shown, calls read, answers given as answers of tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trl
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as All
from transformers import PreTrainedTokenizerFast

from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.agents.scripted import ScriptedAgent
from grpo_tui.engine.agents.tool_calls import NativeCalls
from grpo_tui.envs.dataset import DatasetEnv
from grpo_tui.envs.tools import Argument, ToolSpec

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
LOOK = ToolSpec(
    "look_up",
    "Looks up a word.",
    (Argument("word", "string", "the word"), Argument("times", "integer", required=False)),
)
TOOLS = [LOOK.schema]
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<e>{% endfor %}"
ARGUMENTS = {"word": "7", "times": 7}
TOOL_FILE = '''
def look_up(word: str, times: int = 1) -> str:
    """
    Looks up a word.

    Args:
        word: The word.
        times: How often.
    """
    return f"{word!r} stands there {times + 1} times"
'''


def tokenizer(template: str, *marks: str) -> Any:
    """One token a byte, and one for each mark."""
    vocabulary = {c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}
    raw = Tokenizer(WordLevel(vocabulary, unk_token="!"))
    raw.pre_tokenizer = All([ByteLevel(add_prefix_space=False, use_regex=False), Split(Regex("."), "isolated")])
    raw.decoder = Decoder()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=marks[0])
    made.add_special_tokens({"additional_special_tokens": list(marks)})
    made.chat_template = (TEMPLATES / f"{template}.jinja").read_text() if "{" not in template else template
    return made


FAMILIES = [
    ("qwen3", "<|im_end|>", '<tool_call>\n{"name": "look_up", "arguments": {"word": "7", "times": 7}}\n</tool_call>'),
    ("qwen2_5", "<|im_end|>", '<tool_call>\n{"name": "look_up", "arguments": {"word": "7", "times": 7}}\n</tool_call>'),
    ("llama3_2", "<|eot_id|>", '{"name": "look_up", "parameters": {"word": "7", "times": 7}}'),
    (
        "qwen3_5_nothink",
        "<|im_end|>",
        "<tool_call>\n<function=look_up>\n<parameter=word>\n7\n</parameter>\n<parameter=times>\n7\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    (
        "glm4moe",
        "<|user|>",
        "<tool_call>look_up\n<arg_key>word</arg_key>\n<arg_value>7</arg_value>\n<arg_key>times</arg_key>\n"
        "<arg_value>7</arg_value>\n</tool_call>",
    ),
]


@pytest.mark.parametrize(("template", "end", "written"), FAMILIES, ids=[f[0] for f in FAMILIES])
def test_a_family_s_own_syntax(template: str, end: str, written: str, tmp_path: Path) -> None:
    made = tokenizer(template, end, "<|im_start|>", "<|assistant|>")
    chat = ChatBridge(made)
    calls = NativeCalls.of(chat)
    assert calls is not None
    assert "look_up" in chat.prompt_text([{"role": "user", "content": "?"}], TOOLS)
    call = calls.read(written, TOOLS)
    assert (call.name, call.arguments) == ("look_up", ARGUMENTS)
    assert calls.read("There are 7.", TOOLS).name is None
    ours = calls.read(json.dumps({"name": "look_up", "arguments": ARGUMENTS}), TOOLS)
    assert (ours.name, ours.arguments) == ("look_up", ARGUMENTS)  # our JSON form beside it


def test_a_rollout_shows_tools_and_answers_through_the_template(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOL_FILE)
    made = tokenizer("qwen3", "<|im_end|>", "<|im_start|>")
    env = DatasetEnv(made, tools=[f"{tmp_path}/tools.py:look_up"])
    turns = [[FAMILIES[0][2], "It stands there 8 times."]]
    agent = ScriptedAgent(turns, made, knows=lambda name: False, native_calls=True)
    trial = env.run_trial([{"messages": [{"role": "user", "content": "How often?"}]}], agent, 1)
    (trajectory,) = trial["trajectories"]
    text = made.decode(trial["tokens"][0].token_ids.tolist())
    assert env.style == "native"
    assert "# Tools" in text and '"name": "look_up"' in text  # the template's words, none of ours
    assert "ANSWER" not in text and "One call a turn" not in text
    assert "<tool_response>\n'7' stands there 8 times\n</tool_response>" in text
    assert [s.action for s in trajectory.steps] == ["look_up", "ANSWER"]
    assert trajectory.answer == "It stands there 8 times."


@pytest.mark.parametrize(
    "written",
    [
        '[TOOL_CALLS]look_up[ARGS]{"word": "7", "times": 7}',
        '[TOOL_CALLS][{"name": "look_up", "arguments": {"word": "7", "times": 7}}]',
        '<|python_tag|>{"name": "look_up", "parameters": {"word": "7", "times": 7}}',
        '<function=look_up>{"word": "7", "times": 7}</function>',
        "Hm.\n<function=look_up><parameter=word>7</parameter><parameter=times>7</parameter></function>",
    ],
)
def test_forms_of_templates_that_nobody_declared(written: str) -> None:
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + PLAIN
    calls = NativeCalls.of(ChatBridge(tokenizer(template, "<e>")))
    assert calls is not None
    call = calls.read(written, TOOLS)
    assert (call.name, call.arguments) == ("look_up", ARGUMENTS)


HARMONY = (
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.look_up "
    '<|constrain|>json<|message|>{"word": "7", "times": 7}<|call|>'
)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("lfm2", "hm<|tool_call_start|>[look_up(word='7', times=7)]<|tool_call_end|>"),
        ("lfm2_2_5", "hm<|tool_call_start|>[look_up('7', times=7)]<|tool_call_end|>"),
        ("gptoss", HARMONY),
        ("gptoss", HARMONY.replace("<|channel|>commentary to=functions.look_up", " to=functions.look_up<|channel|>")),
    ],
)
def test_lfm2_and_gpt_oss(template: str, written: str) -> None:
    calls = NativeCalls.of(ChatBridge(tokenizer(template, "<|im_end|>", "<|im_start|>")))
    assert calls is not None and calls.problem == ""
    call = calls.read(written, TOOLS)
    assert (call.name, call.arguments, call.thought) == ("look_up", ARGUMENTS, "hm")


def test_python_calls_hold_what_json_holds_and_run_nothing() -> None:
    calls = NativeCalls.of(ChatBridge(tokenizer("lfm2", "<|im_end|>", "<|im_start|>")))
    assert calls is not None
    both = calls.read("<|tool_call_start|>[f(a=True, b={'c': [null, -1.5]}), g()]<|tool_call_end|>", TOOLS)
    assert both.arguments == {"a": True, "b": {"c": [None, -1.5]}} and [c.name for c in both.further] == ["g"]
    for broken in ("[f(a=]", "[f(a=open('x'))]", "[f(**{})]", "[" * 300, "17"):
        call = calls.read(f"<|tool_call_start|>{broken}<|tool_call_end|>", TOOLS)
        assert call.name is None and call.error == "the call is not written as name(argument=value)"
    for other in ("{'a'}", "b'a'", "[1e999]", "2j"):
        call = calls.read(f"<|tool_call_start|>[f(a={other})]<|tool_call_end|>", TOOLS)
        assert call.name is None and "is no value of JSON" in str(call.error)
    assert calls.read("<|tool_call_start|>[f(a=(1, 2))]<|tool_call_end|>", TOOLS).arguments == {"a": [1, 2]}


WRITES_CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL@{{ c.function.name }}@{{ c.function.arguments | tojson }}{% endfor %}<e>"
    "{% endfor %}"
)


def test_a_form_of_calls_that_no_parser_fits_is_reported() -> None:
    unknown = NativeCalls.of(ChatBridge(tokenizer(WRITES_CALLS, "<e>")))
    assert unknown is not None and "no parser fits its call format" in unknown.problem
    known = WRITES_CALLS.replace("CALL@{{ c.function.name }}@", "[TOOL_CALLS]{{ c.function.name }}[ARGS]")
    fitting = NativeCalls.of(ChatBridge(tokenizer(known, "<e>")))
    assert fitting is not None and fitting.problem == ""


def test_a_native_call_that_cannot_be_read_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOL_FILE)
    made = tokenizer("lfm2", "<|im_end|>", "<|im_start|>")
    env = DatasetEnv(made, tools=[f"{tmp_path}/tools.py:look_up"])
    agent = ScriptedAgent(
        [["<|tool_call_start|>[look_up(word=]<|tool_call_end|>", "8."]],
        made,
        knows=lambda name: False,
        native_calls=True,
    )
    (trajectory,) = env.run_trial([{"messages": [{"role": "user", "content": "?"}]}], agent, 1)["trajectories"]
    assert trajectory.steps[0].parse_error == "the call is not written as name(argument=value)"
    assert trajectory.answer == "8."


def test_several_calls_and_broken_ones() -> None:
    calls = NativeCalls.of(ChatBridge(tokenizer("qwen3", "<|im_end|>", "<|im_start|>")))
    assert calls is not None
    both = calls.read("<think>\nhm\n</think>\n\n" + FAMILIES[0][2] + "\n" + FAMILIES[0][2], TOOLS)
    assert both.name == "look_up" and [c.name for c in both.further] == ["look_up"] and "hm" in both.thought
    for broken in (
        "<tool_call>",
        '<tool_call>\n{"name": \n</tool_call>',
        "<tool_call>\n[1]\n</tool_call>",
        "",
        "{" * 500,
    ):
        assert calls.read(broken, TOOLS).name is None


def test_native_arguments_hold_what_json_holds() -> None:
    calls = NativeCalls.of(ChatBridge(tokenizer("qwen3", "<|im_end|>", "<|im_start|>")))
    assert calls is not None
    half = calls.read('<tool_call>\n{"name": "look_up", "arguments": {"word": "\\ud800"}}\n</tool_call>', TOOLS)
    assert half.arguments == {"word": "?"}
    for value in ("NaN", "1e999", "[" * 300 + "]" * 300):
        read = calls.read(f"<function=look_up><parameter=times>{value}</parameter></function>", TOOLS)
        assert read.name is None, value


def test_a_template_without_tools_has_no_syntax_of_its_own() -> None:
    assert NativeCalls.of(ChatBridge(tokenizer(PLAIN, "<e>"))) is None
