"""Plain Python functions as tools: how they are declared, what calls of them come to, and what cannot be declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_tui.configs.sections import EnvironmentConfig
from grpo_tui.envs.dataset import DatasetEnv
from grpo_tui.envs.function_tools import load_tool
from grpo_tui.envs.loading import EnvLoadError, make_env

from .scripts import ByteAgent

SOURCE = '''
import asyncio
import dataclasses
from typing import Literal

from PIL import Image

def add(a: int, b: float = 0.0, names: list[str] | None = None) -> float:
    """
    Adds two numbers.

    Args:
        a: The first one.
        b: The second one.
        names: Who asks.
    """
    return a + b

def keep(rows: list[dict[str, int]], place: int | str) -> str:
    """
    Keeps rows.

    Args:
        rows: What to keep.
        place: Where.
    """
    return f"{rows} {place}"

async def look(where: str) -> dict:
    """
    Looks somewhere.

    Args:
        where: The place. (choices: ["here", "there"])
    """
    await asyncio.sleep(0)
    if where == "there":
        raise KeyError("nothing is there")
    return {"found": where}

loops = set()

async def loop(where: str) -> dict:
    """
    Counts the event loops of its calls.

    Args:
        where: The place.
    """
    loops.add(asyncio.get_running_loop())
    return {"loops": len(loops), "places": map(str, [where])}

def spread(names: list[str]) -> str:
    """
    Yields names.

    Args:
        names: What to yield.
    """
    for name in names:
        yield name.upper()

def first(n: int | None, names: list[str] | None = None) -> str:
    """
    Tells what it was given.

    Args:
        n: How many.
        names: Who asks.
    """
    return f"{n} {names}"

def endless(a: int) -> str:
    """
    Never ends.

    Args:
        a: A number.
    """
    import time
    time.sleep(60)
    return ""

def shout(times: int) -> str:
    """
    Fails.

    Args:
        times: How long.
    """
    raise ValueError("x" * times)

def no_hints(a):
    """Adds."""

def no_docs(a: int) -> int:
    return a

def half_docs(a: int) -> int:
    """Adds."""
    return a

def odd_type(a: bytes) -> int:
    """
    Adds.

    Args:
        a: Bytes.
    """
    return 1

def many(*numbers: int) -> int:
    """Adds."""
    return 1

number = 3

class Notes:
    def __init__(self):
        self.held = []

    def keep(self, text: str) -> int:
        """
        Keeps a note.

        Args:
            text: The note.
        """
        self.held.append(text)
        return len(self.held)

notes = Notes()
kept = notes.keep

class Place:
    def __init__(self, name):
        self.name, self._secret, self.near = name, 1, [Point(1, {2})]

@dataclasses.dataclass
class Point:
    x: int
    seen: set

def visit(name: str) -> object:
    """
    Visits a place.

    Args:
        name: The place.
    """
    if name == "loop":
        place = Place("loop")
        place.near = place
        return place
    return Place(name)

def draw(size: int, caption: str = "") -> object:
    """
    Draws.

    Args:
        size: Pixels.
        caption: Words beside it.
    """
    image = Image.new("RGB", (size, size + 1), (9, 8, 7))
    return {"caption": caption, "image": image} if size > 9 else [caption, image] if caption else image
'''
TASK = {"messages": [{"role": "user", "content": "what is 2 + 3?"}]}


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "tools.py").write_text(SOURCE)
    return str(tmp_path / "tools.py")


def run(env: Any, *turns: str) -> Any:
    agent = ByteAgent(lambda row, turn, seen: turns[turn])
    return env.run_trial([TASK], agent, 1)["trajectories"][0]


def test_signature_and_docstring_declare_the_tool(file: str):
    spec = load_tool(f"{file}:add").spec
    assert (spec.name, spec.description) == ("add", "Adds two numbers.")
    assert [(a.name, a.type, a.required, a.description) for a in spec.arguments] == [
        ("a", "integer", True, "The first one."),
        ("b", "number", False, "The second one."),
        ("names", "array", False, "Who asks."),
    ]
    assert load_tool(f"{file}:look").spec.arguments[0].choices == ("here", "there")


def test_calls_run_and_a_turn_without_one_is_the_answer(file: str):
    env = make_env("grpo_tui.envs.dataset.DatasetEnv", {"tools": [f"{file}:add", f"{file}:look"]})
    done = run(env, '{"name": "add", "arguments": {"a": 2, "b": 3}}', r"It is \boxed{5}.")
    assert [s.observation for s in done.steps] == ["5", ""]
    assert (done.answer, done.stop_reason, done.correct) == (r"It is \boxed{5}.", "answer", None)
    assert [t.name for t in done.tools] == ["add", "look", "ANSWER"]


@pytest.mark.parametrize("limit, ended", [("turn_limit", "turn_limit"), ("token_limit", "max_tokens")])
def test_an_answer_that_a_limit_cut_does_not_look_like_a_whole_one(limit: str, ended: str):
    env = DatasetEnv()
    agent = ByteAgent(lambda row, turn, seen: "I think about it and ", **{limit: 15})
    cut = env.run_trial([{**TASK, "answer": "5"}], agent, 1)["trajectories"][0]
    assert (cut.stop_reason, cut.steps[-1].stop_reason, cut.cut) == (ended, limit, True)
    assert cut.answer == cut.steps[-1].text.strip()
    whole = env.run_trial([TASK], ByteAgent(lambda row, turn, seen: "5"), 1)["trajectories"][0]
    assert (whole.stop_reason, whole.cut) == ("answer", False)


@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>\n{"name": "look", "arguments": {"where": "here"}}\n</tool_call>',  # Hermes, Qwen
        '{"name": "look", "parameters": {"where": "here"}}',  # Llama
        '[TOOL_CALLS] [{"name": "look", "arguments": {"where": "here"}}]',  # Mistral
        'I look.\n```json\n{"name": "look", "arguments": {"where": "here"}}\n```',
    ],
)
def test_calls_in_the_syntax_of_several_models_are_read(file: str, call: str):
    done = run(DatasetEnv(tools=[f"{file}:look"]), call, "done")
    assert done.steps[0].observation == '{"found": "here"}'


def test_null_is_a_value_of_an_argument_whose_type_has_none(file: str):
    env = DatasetEnv(tools=[f"{file}:first", f"{file}:add"])
    null, wrong = (
        '{"name": "first", "arguments": {"n": null, "names": null}}',
        '{"name": "first", "arguments": {"n": "x"}}',
    )
    done = run(env, null, wrong, '{"name": "add", "arguments": {"a": null}}', "done")
    assert [s.observation for s in done.steps[:3]] == [
        "None None",
        "error: n must be integer",
        "error: a must be integer",
    ]
    assert load_tool(f"{file}:first").spec.arguments[0].schema == {
        "type": "integer",
        "description": "How many.",
        "nullable": True,
    }


def test_nested_arguments_and_those_of_several_types_are_declared_whole(file: str):
    kept = load_tool(f"{file}:keep").spec
    assert kept.arguments[0].schema == {
        "type": "array",
        "items": {"type": "object", "additionalProperties": {"type": "integer"}},
        "description": "What to keep.",
    }
    assert kept.arguments[1].schema == {"type": ["integer", "string"], "description": "Where."}
    env = DatasetEnv(tools=[f"{file}:keep"])
    done = run(env, '{"name": "keep", "arguments": {"rows": [{"a": 1}], "place": "shelf"}}', "done")
    assert done.steps[0].observation == "[{'a': 1}] shelf"
    assert 'place: {"type": ["integer", "string"]}, Where.' in env.explain()


def test_what_a_tool_raises_and_wrong_arguments_are_told_to_the_policy(file: str):
    env = DatasetEnv(tools=[f"{file}:look", f"{file}:add"])
    done = run(
        env,
        '{"name": "look", "arguments": {"where": "there"}}',
        '{"name": "look", "arguments": {"where": "up"}}',
        '{"name": "add", "arguments": {"a": "two"}}',
        "<tool_call>{nonsense</tool_call>",
        "five",
    )
    assert [s.observation for s in done.steps[:4]] == [
        "error: KeyError: 'nothing is there'",
        "error: where must be one of here, there",
        "error: a must be integer",
        "error: invalid JSON at character 2 of the call: Expecting property name enclosed in double quotes",
    ]
    assert done.answer == "five"


def test_what_a_tool_raises_is_cut_as_its_answers_are(file: str):
    env = DatasetEnv(tools=[f"{file}:shout"])
    step = run(env, '{"name": "shout", "arguments": {"times": 1000000}}', "done").steps[0]
    assert step.error == f"ValueError: {'x' * (20_000 - len('ValueError: '))}"
    assert step.observation.startswith("error: ValueError: xxx") and step.observation.endswith(" characters)")


@pytest.mark.parametrize("path", ["notes.keep", "kept"])
def test_a_bound_method_is_a_tool(file: str, path: str):
    env = DatasetEnv(tools=check_tools([f"{file}:{path}"]))
    done = run(env, '{"name": "keep", "arguments": {"text": "a"}}', "done")
    assert [t.name for t in done.tools] == ["keep", "ANSWER"] and done.steps[0].observation == "1"


def check_tools(paths: list[str]) -> list[str]:
    return EnvironmentConfig(tools=paths).tools


def test_plain_objects_are_read_as_their_data(file: str):
    tool = load_tool(f"{file}:visit")
    assert tool.run({"name": "home"}).observation == '{"name": "home", "near": [{"x": 1, "seen": [2]}]}'
    assert "cannot be written as JSON" in str(tool.run({"name": "loop"}).error)


def test_calls_of_an_async_tool_share_a_loop_to_which_its_client_is_bound(file: str):
    tool = load_tool(f"{file}:loop")
    for where in "ab":
        assert tool.run({"where": where}).observation == f'{{"loops": 1, "places": ["{where}"]}}'


def test_a_generator_is_read_as_what_it_yields(file: str):
    tool = load_tool(f"{file}:spread")
    assert tool.run({"names": ["a", "b"]}).observation == '["A", "B"]'
    assert str(tool.run({"names": ["a", 1]}).error).startswith("AttributeError: 'int'")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"size": 4}, ""), ({"size": 4, "caption": "a"}, "a"), ({"size": 12}, '{"caption": "", "image": "[image]"}')],
)
def test_images_of_a_tool_are_shown(file: str, arguments: dict, text: str):
    result = load_tool(f"{file}:draw").run(arguments)
    (image,) = result.images
    assert result.observation == text
    assert image.load().shape == (arguments["size"] + 1, arguments["size"], 3) and image.load()[0, 0].tolist() == [
        9,
        8,
        7,
    ]
    assert image.name == load_tool(f"{file}:draw").run(arguments).images[0].name


def test_a_tool_that_hangs_costs_its_own_rollout(file: str):
    env = DatasetEnv(tools=[f"{file}:endless"], turn_timeout_s=0.2)
    assert run(env, '{"name": "endless", "arguments": {"a": 1}}').stop_reason == "timeout"


def test_the_prompt_says_how_to_call_and_is_untouched_without_tools(file: str):
    assert "add(a: integer, The first one.; b?: number" in DatasetEnv(tools=[f"{file}:add"]).explain()
    assert "ANSWER" not in DatasetEnv(tools=[f"{file}:add"]).explain()
    assert DatasetEnv().explain() == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_hints", "the argument a has no type hint; write a: str"),
        ("no_docs", "has no docstring"),
        ("half_docs", "cannot be declared: .*write it as in def search"),
        ("odd_type", "cannot be declared|the type of a is none of"),
        ("many", r"a policy cannot pass `\*numbers: int`"),
        ("number", r"\.py has no function number"),
        ("gone", "has no function gone"),
    ],
)
def test_what_cannot_be_a_tool_is_said_in_one_sentence(file: str, name: str, said: str):
    with pytest.raises(EnvLoadError, match=said) as raised:
        load_tool(f"{file}:{name}")
    assert "\n" not in str(raised.value)
