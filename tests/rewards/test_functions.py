"""Reward functions with TRL's signature: what they get, what they may return, and what is said of wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo_tui.configs.sections.environment import weighted_function
from grpo_tui.rewards.functions import Completions, Prompt, RewardFunctionError, RewardFunctions, load_function

SOURCE = """
import asyncio, math

def length(completions, **kwargs):
    return [len(c) for c in completions]

def needs_answer(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer)]

def explained(completions, log_extra, **kwargs):
    log_extra("shouted", [c.upper() for c in completions])
    log_extra("short", ["a"])
    return [(1.0, f"{c} is fine") for c in completions]

def sometimes(completions, **kwargs):
    return [None if c == "b" else True for c in completions]

async def slow(completions, **kwargs):
    await gate.wait() if gate else None
    return [2.0] * len(completions)

gate = None
met = []

async def first(completions, **kwargs):
    met.append("first"); await asyncio.sleep(0.05); met.append("first done")
    return [0.0] * len(completions)

async def second(completions, **kwargs):
    met.append("second"); await asyncio.sleep(0.05); met.append("second done")
    return [0.0] * len(completions)

def raises(completions, **kwargs):
    return [1 / len(c) for c in completions]

def index(completions, **kwargs):
    return [c[0]["content"] for c in completions]

def too_few(completions, **kwargs):
    return [1.0]

def no_list(completions, **kwargs):
    return 1.0

def nan(completions, **kwargs):
    return [math.nan if c == "b" else 0.0 for c in completions]

def text(completions, **kwargs):
    return ["good" for c in completions]

def leaves(completions, **kwargs):
    raise SystemExit(3)

async def leaves_later(completions, **kwargs):
    raise SystemExit(3)

async def interrupts(completions, **kwargs):
    raise KeyboardInterrupt

def interrupts_at_once(completions, **kwargs):
    raise KeyboardInterrupt

def is_interrupted(completions, **kwargs):
    import signal
    signal.raise_signal(signal.SIGINT)
    return [0.0] * len(completions)

async def cancels(completions, **kwargs):
    raise asyncio.CancelledError

async def leaves_in_a_task(completions, **kwargs):
    await asyncio.create_task(leaves_later(completions))

def several(completions, **kwargs):
    import numpy as np
    return [np.zeros(2) for c in completions]

def huge(completions, **kwargs):
    return [10**400 for c in completions]

def overflows(completions, **kwargs):
    return [math.exp(100) for c in completions]

def rewrites(prompts, completions, **kwargs):
    for prompt, completion in zip(prompts, completions):
        prompt.clear()
        completion[0]["content"] = "nothing"
    return [0.0 for c in completions]

def lengths(prompts, completions, **kwargs):
    return [len(p) + len(c[0]["content"]) for p, c in zip(prompts, completions)]

def takes(completions, tests, **kwargs):
    for t in tests:
        t.pop()
    return [float(len(t) + 1) for t in tests]

def blind(x):
    return x

def blank():
    return []

def positional(completions, /):
    return [0.0]

class Judge:
    pass

def curiosity(completions, **kwargs):
    return []
"""


@pytest.fixture
def path(tmp_path: Path):
    (tmp_path / "mine.py").write_text(SOURCE)
    return lambda name: f"{tmp_path / 'mine.py'}:{name}"


def completions(*texts: str, **columns: Sequence[object]) -> Completions:
    n = len(texts)
    return Completions(["?"] * n, list(texts), [[1]] * n, columns, [f"row {i + 1} of the data" for i in range(n)])


def test_each_function_is_a_component_by_its_own_name_with_its_weight(path):
    functions = RewardFunctions.load({path("length"): 0.5, path("needs_answer"): 2.0})
    rows = functions.score(completions("a", "bb", answer=["a", "x"])).by_row
    assert [[(s.name, s.value, s.weight) for s in row] for row in rows] == [
        [("length", 1.0, 0.5), ("needs_answer", 1.0, 2.0)],
        [("length", 2.0, 0.5), ("needs_answer", 0.0, 2.0)],
    ]


def test_none_is_no_score_and_a_pair_explains_itself(path, caplog):
    functions = RewardFunctions.load({path("sometimes"): 1.0, path("explained"): 1.0})
    scores = functions.score(completions("a", "b"))
    assert [row[0].value for row in scores.by_row] == [1.0, None]
    assert [row[1].why for row in scores.by_row] == ["a is fine", "b is fine"]
    assert scores.extra == {"shouted": ["A", "B"]}
    assert "the column short without one value per completion" in caplog.text


def test_async_functions_run_at_the_same_time_also_from_within_a_running_loop(path):
    functions = RewardFunctions.load({path("first"): 1.0, path("second"): 1.0})
    met = functions.functions[0].call.__globals__["met"]  # type: ignore[attr-defined]
    functions.score(completions("a"))
    assert met == ["first", "second", "first done", "second done"]

    async def inside() -> int:
        return len(functions.score(completions("a", "b")).by_row)

    assert asyncio.run(inside()) == 2


def test_functions_of_trl_itself_run(path):
    functions = RewardFunctions.load({"trl.rewards.think_format_reward": 1.0})
    asked = Completions(
        ["?", "?"],
        [[{"role": "assistant", "content": t}] for t in ("<think>so</think> 4", "4")],
        [[1], [1]],
        {},
        ["row 1", "row 2"],
    )
    assert [row[0].value for row in functions.score(asked).by_row] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "reward function raises ({path}) raised ZeroDivisionError: division by zero for row 2 of the data"),
        ("index", "; completions are texts here, and data.completions: messages changes that"),
        ("leaves", "raised SystemExit: 3"),
        ("leaves_later", "SystemExit: 3 for row 1 of the data"),
        ("interrupts", "raised KeyboardInterrupt for row 1 of the data"),
        ("interrupts_at_once", "raised KeyboardInterrupt for row 1 of the data"),
        ("cancels", "raised CancelledError for row 1 of the data"),
        ("leaves_in_a_task", "raised SystemExit: 3 for row 1 of the data"),
        ("several", "returned array([0., 0.]) for row 1 of the data"),
        ("huge", "0000... for row 1 of the data"),
        ("overflows", "returned 2.6881171418161356e+43 for row 1 of the data; a score must be a number below 1e+38, "),
        ("too_few", "returned 1 scores for 2 completions"),
        ("no_list", "returned 1.0, not a list of 2 scores"),
        ("nan", "returned nan for row 2 of the data"),
        ("text", "returned 'good' for row 1 of the data"),
    ],
)
def test_what_a_function_does_wrong_names_function_and_row_and_may_be_skipped(path, name: str, said: str, caplog):
    asked = completions("a", "b" if name != "raises" else "")
    with pytest.raises(RewardFunctionError) as raised:
        RewardFunctions.load({path(name): 1.0}).score(asked)
    message = str(raised.value)
    assert said.format(path=path(name)) in message
    assert "\n" not in message and "environment.reward_errors: skip" in message
    rows = RewardFunctions.load({path(name): 1.0, path("length"): 1.0}, "skip").score(asked).by_row
    assert None in [row[0].value for row in rows]
    assert [row[1].value for row in rows] == [1.0, float(len(asked.completions[1]))]
    assert name in caplog.text


def test_ctrl_c_while_a_function_runs_is_no_fault_of_the_function(path):
    with pytest.raises(KeyboardInterrupt):
        RewardFunctions.load({path("is_interrupted"): 1.0}, "skip").score(completions("a"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone", "there is no gone; it has length"),
        ("lenght", "there is no lenght; did you mean length"),
        ("blind", "takes neither prompts nor completions"),
        ("blank", "takes neither prompts nor completions"),
        ("positional", "`completions` cannot be passed by name"),
        ("Judge", "not a function"),
        ("gate", "not a function"),
        ("curiosity", "is already the name of a component"),
    ],
)
def test_what_is_no_reward_function_is_refused_before_it_is_called(path, name: str, said: str):
    if name == "gate":
        said = "there is no gate"
    with pytest.raises(RewardFunctionError, match=said):
        load_function(path(name))


def test_a_function_that_changes_its_columns_changes_nothing_for_others(path):
    tests = ["a", "b"]
    asked = completions("a", "b", tests=[tests, tests])
    functions = RewardFunctions.load({path("takes"): 1.0})
    for _ in range(2):
        assert [score.value for (score,) in functions.score(asked).by_row] == [2.0, 2.0]
    assert tests == ["a", "b"]


def test_a_function_that_rewrites_its_messages_changes_nothing_for_the_next(path):
    messages: list[Prompt] = [[{"role": "assistant", "content": "yes"}]]
    asked = Completions(messages, messages, [[1]], {}, ["row 1"])
    functions = RewardFunctions.load({path("rewrites"): 1.0, path("lengths"): 1.0})
    ((_, length),) = functions.score(asked).by_row
    assert length.value == 4.0


def test_a_file_in_another_folder_imports_what_lies_beside_it(tmp_path: Path):
    (tmp_path / "good_words.py").write_text("from great_words import WORDS\n")
    (tmp_path / "great_words.py").write_text("WORDS = ['great']\n")
    (tmp_path / "beside.py").write_text(
        "from good_words import WORDS\n\n\ndef polite(completions, **kwargs):\n"
        "    return [float(c in WORDS) for c in completions]\n"
    )
    functions = RewardFunctions.load({f"{tmp_path / 'beside.py'}:polite": 1.0})
    assert [score.value for (score,) in functions.score(completions("great", "b")).by_row] == [1.0, 0.0]


def test_a_column_that_a_function_needs_is_looked_for_before_the_first_step(path):
    functions = RewardFunctions.load({path("needs_answer"): 1.0})
    with pytest.raises(RewardFunctionError, match="needs `answer`, but the data has no such column; it has solution"):
        functions.check_columns(["solution"])
    functions.check_columns(["answer"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rewards.py:accuracy", ("rewards.py:accuracy", 1.0)),
        ("rewards.py:accuracy:0.2", ("rewards.py:accuracy", 0.2)),
        ("trl.rewards.think_format_reward:-1e-1", ("trl.rewards.think_format_reward", -0.1)),
        ("a/b.py:f", ("a/b.py:f", 1.0)),
    ],
)
def test_a_weight_stands_behind_the_function(text: str, expected: tuple[str, float]):
    assert weighted_function(text) == expected
