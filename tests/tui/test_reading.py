"""Texts of a rollout: rendered by their kind, each call with its own result, long ones folded, nothing of them lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import coding_rollouts as made
from grpo_tui import Recorder, Rollout
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.readers import open_reader
from grpo_tui.engine.imports.tokens import token_arrays
from grpo_tui.engine.runs.read.bodies import SAME_CHARACTER, Alphabet, texts_in_order
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import Call, Step, Trajectory
from grpo_tui.envs.plugins.text_games import GymnasiumGame
from grpo_tui.envs.trajectory import Display
from grpo_tui.tui.app.calls import calls_of, ended, said, shown, summary
from grpo_tui.tui.app.comparison import align, rows
from grpo_tui.tui.app.destinations import Stepper
from grpo_tui.tui.app.kinds import chunks, kind_of, prepared
from grpo_tui.tui.app.outline import OutlineOf
from grpo_tui.tui.app.printed import markdown, text_lines
from grpo_tui.tui.app.rollout_fields import call_fields, end_fields, step_fields
from grpo_tui.tui.app.theme import THEMES, Palette
from grpo_tui.tui.app.widgets.pane import Line
from grpo_tui.tui.app.widgets.rendering import Renderer
from grpo_tui.tui.app.widgets.text_layout import Flow, FlowPart
from tests.forked import forked_processes

from .drive import running
from .test_hostile import NASTY, nasty_record
from .test_text import steers_the_terminal

PALETTE = Palette(THEMES["grpo-dark"])
RENDER = Renderer(PALETTE)
KINDS = ("raw", "plain", "markdown", "ansi", "json", "diff", "pytb", "python", "bash", "html", "no such lexer")


def rendered(text: str, kind: str, width: int = 76) -> list[Line]:
    return [
        line
        for _, chunk in chunks(text, kind)
        for line in RENDER.lines(prepared(chunk, kind), kind, width, PALETTE.text)
    ]


def plain(lines: list[Line]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


def style_of(lines: list[Line], text: str) -> Any:
    return next(s.style for line in lines for s in line.segments if text in s.text)


@pytest.mark.parametrize(
    ("text", "prose", "kind"),
    [
        (made.THOUGHT, True, "markdown"), (made.TASK, False, "markdown"), (made.FAILED, False, "ansi"),
        (made.DIFF, False, "diff"), (made.TRACEBACK, False, "pytb"), (json.dumps(made.ITEMS), False, "json"),
        ("# a comment of a shell\nls", False, "plain"), ("{broken", False, "plain"), ("x" * 500_000, True, "raw"),
        ("plain words", True, "plain"),
    ],
)  # fmt: skip
def test_the_kind_of_a_text_is_found(text: str, prose: bool, kind: str) -> None:
    assert kind_of(text, prose) == kind


def test_markdown_is_rendered() -> None:
    lines = rendered(made.TASK, "markdown")
    text = plain(lines)
    assert "**" not in text and "## " not in text and "|---" not in text and "```" not in text
    assert style_of(lines, "never cleared").bold and "▌ It worked in 2.3." in text and "─────" in text
    assert style_of(lines, "import").color == PALETTE.accent.color, "a fence in the colours of its language"


def test_colours_of_a_log_are_interpreted_and_nothing_else_of_it() -> None:
    lines = rendered(
        made.FAILED + "\x1b[2J \x1b]0;title\x07 \x1b[8mhidden\x1b[0m \x1b[38;2;15;18;24mdark\x1b[0m", "ansi"
    )
    text = plain(lines)
    assert "␛[31m" not in text and "1 failed" in text and style_of(lines, "1 failed").color == PALETTE.bad.color
    assert "␛[2J ␛]0;title␇ hidden" in text and not style_of(lines, "hidden").conceal
    assert style_of(lines, "dark").color == PALETTE.text.color, "a colour that cannot be told from the background"


def test_a_box_is_marked_also_over_two_lines() -> None:
    lines = rendered("so the answer is \\boxed{\\frac{1}{2} + and so on} \\boxed{x}.", "plain", 32)
    found = PALETTE.base + PALETTE.found
    marked = "".join(s.text for line in lines for s in line.segments if s.style == found)
    assert marked == "\\boxed{\\frac{1}{2} + and so on}\\boxed{x}"


def test_mathematics_and_tags_stay_whole_in_markdown() -> None:
    text = "**so** \\(a_1 + \\{b\\}\\) &lt; <b>x</b> [link](http://evil.example) ![i](x.png) <think>"
    assert plain(rendered(text, "markdown", 120)) == text.replace("**", "")


@pytest.mark.parametrize("kind", KINDS)
def test_no_renderer_lets_anything_reach_the_terminal(kind: str) -> None:
    text = f"{NASTY}\n# {NASTY}\n- {NASTY}\n| a | b |\n|---|---|\n| {NASTY} | x |\n```python\n{NASTY}\n```\n> {NASTY}\n"
    for width in (9, 30, 120):
        lines = rendered(text + json.dumps({"a": NASTY}), kind, width)
        assert all(line.width <= width for line in lines)
        for line in lines:
            assert steers_the_terminal(line.plain) == []
            assert all(s.style is None or (s.style.link is None and not s.style.meta) for s in line.segments)


@given(st.text("ab \n`*#|-{}[]\\$<>\x1b[m0;31é日\u202e\t", max_size=300), st.sampled_from(KINDS), st.integers(4, 60))
def test_any_text_is_rendered_by_any_renderer(text: str, kind: str, width: int) -> None:
    for line in rendered(text, kind, width):
        assert line.width <= width and steers_the_terminal(line.plain) == []


@given(st.text("ab\n ", max_size=30_000), st.sampled_from(["plain", "markdown"]))
def test_chunks_hold_all_of_a_text(text: str, kind: str) -> None:
    pieces = [piece for _, piece in chunks(text, kind)]
    assert re.sub(r"\s", "", "".join(pieces)) == re.sub(r"\s", "", text)
    assert all(len(piece) < 15_000 for piece in pieces)


def test_a_fence_that_is_cut_goes_on_in_the_next_piece() -> None:
    text = "before\n```python\n" + "x = 1  # set\n" * 1_500 + "```\nafter"
    pieces = [piece for _, piece in chunks(text, "markdown")]
    assert len(pieces) > 3 and all(piece.count("```") == 2 for piece in pieces[1:-1])
    assert "```" not in plain(rendered(text, "markdown"))


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (Call("bash", {"command": "pytest -q"}), "$ pytest -q"),
        (Call("execute_bash", {"command": "ls\ncat x", "timeout": 5}), "$ ls … timeout=5"),
        (Call("editor", {"command": "str_replace", "path": "/r/a.py", "old_str": "a\nb", "new_str": "a\nc\nd"}),
         "edit a.py +2 −1"),
        (Call("write_file", {"path": "a.py", "content": "x\ny\n"}), "write a.py 3 lines"),
        (Call("view", {"command": "view", "path": "/r/a.py", "view_range": [1, 9]}), "view a.py view_range=[1, 9]"),
        (Call("http_get", {"url": "https://api.example.com/items"}), "GET api.example.com/items"),
        (Call("request", {"url": "http://a.b/c", "method": "post"}), "POST a.b/c"),
        (Call("apply_patch", {"input": "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch"}),
         "edit a.py +1 −1"),
        (Call("GET_PROPERTIES", {"mask": 7}), "GET_PROPERTIES(mask=7)"),
        (Call("odd", "no object"), "odd no object"),
        (Call("python", {"code": "import json\nprint(1)"}), "python import json …"),
        (Call("odd", "two\nlines"), "odd two …"),
    ],
)  # fmt: skip
def test_a_call_in_one_line(call: Call, line: str) -> None:
    assert shown(call, "/r").line == line


@pytest.mark.parametrize(
    ("result", "worked"),
    [
        ("ok", True), ("x\n[exit code: 1]", False), ("1 failed\nexit code: 0", True),
        ("<returncode>2</returncode>", False),
        (made.TRACEBACK, False), ('{"error": "no such item"}', False), ('{"error": null, "items": []}', True),
        ("The command timed out after 30 seconds", False), (made.FAILED, False), (made.PASSED, True), (None, None),
        ("Process exited with code 0", True), ('{"success": false}', False),
    ],
)  # fmt: skip
def test_whether_a_call_worked_is_read_from_its_result(result: str | None, worked: bool | None) -> None:
    assert ended(Call("bash", {}, result=result))[0] is worked


@pytest.mark.parametrize(("error", "why", "stands"), [("exit code 2", "exit 2", False), ("boom", "error", True)])
def test_an_exit_code_is_shown_once(error: str, why: str, stands: bool) -> None:
    call = Call("bash", {"command": "make"}, result="no such target", error=error)
    assert ended(call) == (False, why)
    assert any(given.text == error for given in call_fields(call)) == stands


LS = Call("bash", {"command": "ls\n", "timeout": 3})


@pytest.mark.parametrize(
    ("step", "thought", "words"),
    [
        (Step(0, "<think>\na\n</think>\n\nb", action=None), "a", "b"),
        (Step(0, "a</think>b", action=None), "a", "b"),
        (Step(0, "<thinking>a</thinking>", action=None), "a", ""),
        (Step(0, made.HARMONY, action=None), "The tests pass now. I should check that nothing else uses the cache.",
         "Nothing else uses it."),
        (Step(0, "b", thought="a", action=None), "a", "b"),
        (Step(0, "<think>a", action=None), "a", ""),
        (Step(0, "Look.\n```sh\nls\n```", thought="Look.", action="bash", calls=(LS,)), "", "Look."),
        (Step(0, "Look.\n```\nls -a\n```", action="bash", calls=(LS,)), "", "Look.\n```\nls -a\n```"),
        (Step(0, "<execute_bash>ls</execute_bash>", thought="b", action="bash", calls=(LS,)), "b", ""),
    ],
)  # fmt: skip
def test_thoughts_look_alike_wherever_they_are_written(step: Step, thought: str, words: str) -> None:
    assert said(step) == (thought, words)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, [("expected", "red")]),
        ({"correct": True, "stop_reason": "stop"}, [("✓ right", "")]),
        ({"correct": False, "stop_reason": "stop"}, [("✗ wrong", ""), ("expected", "red")]),
        ({"stop_reason": "stop"}, [("", "ended by stop"), ("expected", "red")]),
        ({"stop_reason": "max_length"}, [("no answer", "ended by max_length"), ("expected", "red")]),
        ({"steps": ()}, [("no answer", "ended by an unrecorded reason"), ("expected", "red")]),
    ],
)
def test_a_last_text_counts_as_an_answer_unless_it_was_cut_short(given: Any, shown: list[tuple[str, str]]) -> None:
    fields: Any = {"steps": (Step(0, "It is red.", action=None),), "expected": "red", "stop_reason": "", **given}
    trajectory = Trajectory("a", "e", "p", "g", 0, "?", fields.pop("steps"), **fields)
    assert [(f.name, f.text) for f in end_fields(trajectory)] == shown


def test_plain_text_that_an_environment_took_as_answer_is_no_call_and_stands_once() -> None:
    step = Step(0, "Paris. ", action="ANSWER", arguments={"text": "Paris."})
    trajectory = Trajectory("a", "e", "p", "g", 0, "?", (step,), answer="Paris.", correct=False)
    assert (
        not calls_of(step)
        and summary(step) == "Paris."
        and [f.text for f in step_fields(step)] == ["Paris. ".strip("\n")]
    )
    assert [(f.name, f.text) for f in end_fields(trajectory)] == [("✗ wrong", "")]


def test_a_flow_is_laid_out_where_it_is_looked_at() -> None:
    seen: list[int] = []

    def part(at: int) -> FlowPart:
        def make() -> list[Line]:
            seen.append(at)
            return [Line(PALETTE, f"{at}.{i}") for i in range(at % 7)]

        return FlowPart(make, 3, (at,))

    flow = Flow(part(at) for at in range(1_000))
    top = flow.settled(0, 1_500, 20)
    assert len(seen) < 30
    first = flow[top].plain
    back = flow.settled(top, top - 1, 20)
    assert flow[back + 1].plain == first, "one line up moves by one line, though the part above was longer than thought"
    end = flow.settled(back, 10**9, 20)
    assert flow[end + 19].plain == flow[len(flow) - 1].plain and len(seen) < 60


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    """A dump with every kind of text, as a run."""
    return open_dump(made.write_kinds(tmp_path), whole=True).folder


async def test_every_kind_of_text_in_one_rollout(kinds: Path) -> None:
    async with running(kinds.parent, Stepper(kinds, 1), size=(150, 60)) as app:
        text = app.text if "conversation" in app.text else await app.press("c")
        assert "✓ read_file app/util.py" in text and "✗ $ for f in *.py" in text and "bash(" not in text
        assert text.count("lines · enter") == 1, "one text is marked"
        for key in ("enter", "enter", "J", "J", "K", "Z", "z", "r", "r"):
            assert steers_the_terminal((await app.press(key)).replace("\n", "")) == []
        await app.press(*["l"] * 8)
        assert "conversation · step 9 of 9" in app.text and "What changed" in app.text
        await app.press(*["pageup"] * 3)
        assert app.screen.step < 8, "scrolling goes to the step that is seen"


async def test_a_scrollbar_covers_no_text_where_lines_are_more_than_estimated(tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    words = "".join(chr(0x4E00 + i) for i in range(1000))
    dump.write_text(json.dumps({"prompt": "q", "completion": words, "reward": 1}) + "\n")
    folder = open_dump(dump, whole=True).folder
    async with running(folder.parent, Stepper(folder, 1), size=(80, 24)) as app:
        first, last = app.text, await app.press("end")
        assert "┃" in first and "…" not in first
        shown = set(re.findall("[\u4e00-\u9fff]", first + last))
        assert len(shown) == 1000, "no character is lost at the end of a line"


async def test_raw_shows_what_was_recorded(kinds: Path) -> None:
    async with running(kinds.parent, Stepper(kinds, 1, step=1), size=(150, 60)) as app:
        if "conversation" in app.text:
            await app.press("c")
        assert "never cleared" in app.text and "**never" not in app.text.split("thought")[1]
        text = await app.press("r")
        assert "**never cleared**" in text and "<think>" in text and '"timeout": 30' in text and "␛[31m" in text


def test_the_comparison_folds_what_is_equal_and_marks_words_of_the_lines_that_differ() -> None:
    same = [f"line {i}" for i in range(40)]
    found = rows("\n".join([*same, "x = 1  # set", *same]), "\n".join([*same, "x = 2  # set", *same]))
    assert [row.equal for row in found] == [39, 0, 0, 0, 39]
    assert found[2].left == [("x", False), ("=", False), ("1", True), ("", False), ("#", False), ("set", False)]


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abc"), max_size=9))
def test_the_rows_of_a_comparison_hold_both_texts(left: list[str], right: list[str]) -> None:
    a, b = "\n".join(left), "\n".join(right)
    found = rows(a, b)
    if a != b and not any(row.equal for row in found):
        for text, side in ((a, [row.left for row in found]), (b, [row.right for row in found])):
            lines = [" ".join(word for word, _ in pieces) for pieces in side if pieces is not None]
            assert lines == text.split("\n") or (not text and not lines)


def test_steps_are_aligned_by_the_file_that_they_edit() -> None:
    def edit(at: int, path: str, new: str) -> Step:
        arguments = {"path": path, "old_str": "a", "new_str": new}
        return Step(at, "", action="edit", arguments=arguments, calls=(Call("edit", arguments),), needs_call=False)

    left = [edit(0, "a.py", "x"), edit(1, "b.py", "y")]
    right = [edit(0, "b.py", "z"), edit(1, "c.py", "y")]
    assert align(left, right) == [(0, None), (1, 0), (None, 1)]


def test_a_rollout_without_steps_has_no_step_to_go_to() -> None:
    record = nasty_record()
    outline = OutlineOf(replace(record, trajectory=replace(record.trajectory, steps=())))
    assert [outline.beside(0, by, lambda entry: True) for by in (1, -1)] == [None, None]


async def test_of_a_300_step_rollout_what_matters_is_a_few_keys_away(tmp_path: Path) -> None:
    file = made.write(tmp_path / "agents.jsonl", {f"a{i}": list(made.agent(300, i, 2_000)) for i in range(2)})
    run = open_dump(file, whole=True).folder
    async with running(run.parent, Stepper(run, 1), size=(120, 36)) as app:
        text = await app.press("x")
        assert app.screen.step == 98 and "✗ $ pytest -q" in text, "the first test command that failed"
        await app.press("g", "f")
        text = await app.type("util")
        assert "122 ✓ edit app/util.py" in text and "1 of 301 steps" in text, "shown as it is typed"
        assert (await app.press("enter")) and app.screen.step == 121
        await app.press("f", *["backspace"] * 4, "enter", "colon")
        await app.type("120")
        await app.press("enter")
        assert app.screen.step == 119 and "conversation · step 120 of 301" in app.text
        await app.press("asterisk")
        assert app.screen.outline.entries[app.screen.step].branches[0][1].line.startswith(("$", "$ git"))
        text = await app.press("d")
        assert "reward 0.00" in text and "reward 0.25" in text and "They first differ at" in text


@pytest.mark.parametrize(
    "size",
    [
        *((80, 24), (100, 14), (240, 70)),
        *(pytest.param(size, marks=pytest.mark.stress) for size in ((110, 30), (120, 36), (150, 45))),
    ],
)
async def test_the_text_gets_its_width(kinds: Path, size: tuple[int, int]) -> None:
    async with running(kinds.parent, Stepper(kinds, 1), size=size) as app:
        for keys in ((), ("greater_than_sign",) * 12, ("less_than_sign",) * 24):
            await app.press(*keys)
            least = 70 if size[0] >= 100 else size[0] - 2 - 2 * (size[0] >= 80)
            assert app.screen.conversation.size.width + 2 >= least, keys


def test_a_rollout_is_printed_as_the_stepper_renders_it(kinds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_reader(kinds) as reader:
        record = reader.bodies.trajectory("kinds")
    text = "\n".join(text_lines(record))
    assert "✗ $ for f in *.py; do" in text and "exit 1" in text and "**" not in text and "\x1b" not in text
    document = markdown(record)
    assert "```diff\n-        self.values" in document and "**✗ $**" in document and document.count("## Step ") == 9


def test_a_hostile_rollout_is_safe_in_every_printed_form() -> None:
    record = nasty_record()
    for text in ("\n".join(text_lines(record, 0)), markdown(record)):
        assert steers_the_terminal(text.replace("\n", "")) == []
    step = replace(record.trajectory.steps[0], thought="<script>x</script> `<b>`", text="<img src=x>")
    other = replace(record, trajectory=replace(record.trajectory, steps=(step,)))
    assert "<script" not in markdown(other) and "`<b>`" in markdown(other)


def test_inspect_prints_one_step_in_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpo_tui.tui.entry", "inspect", str(made.write_kinds(tmp_path))]
    with forked_processes():
        shown = subprocess.run([*command, "--at", "1/3", "--text"], capture_output=True, text=True, check=True)
        missing = subprocess.run([*command, "--at", "1/99", "--text"], capture_output=True, text=True)
    assert "✓ edit app/util.py" in shown.stdout and "─ 2 ─" not in shown.stdout
    assert missing.returncode == 3 and "has 9 steps, and no step 99" in missing.stderr


BOARD = Display("ansi", " X | O \n---+---\n \x1b[31mX\x1b[0m |  \x1b[2J", "board")


def test_views_of_an_environment_are_recorded_and_rendered(tmp_path: Path) -> None:
    views = (BOARD, Display.table([["player", "score"], ["a|b", 3]]), Display("image", "images/frame.png"))
    message = {"role": "tool", "content": "moved", "display": [
        {"kind": "ansi", "content": BOARD.content, "title": "board"},
        {"kind": "table", "rows": [["player", "score"], ["a|b", 3]]},
        {"kind": "image", "content": "images/frame.png"},
    ]}  # fmt: skip
    with Recorder(tmp_path / "run") as record:
        record.rollouts(
            1, [{"messages": [made.turn("", made.call("move", "1", to=3)), {**message, "tool_call_id": "1"}]}]
        )
    with RunReader(tmp_path / "run") as reader:
        recorded = reader.bodies.trajectory(1)
    assert recorded.trajectory.steps[0].display == views
    text = "\n".join(text_lines(recorded))
    assert "board" in text and "---+---" in text and "␛[2J" in text and "\x1b" not in text
    assert re.search(r"player +score", text) and "a|b" in text, text


def test_a_game_shows_its_board() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    game = GymnasiumGame.__new__(GymnasiumGame)
    game._env = gymnasium.make("FrozenLake-v1", render_mode="ansi", is_slippery=False)
    game._env.reset(seed=0)
    assert "\x1b[41mS\x1b[0m" in str(game.board())


@pytest.mark.parametrize("kind", list(Alphabet))
def test_tokens_are_shown_as_the_text_that_they_stand_for(kind: Alphabet) -> None:
    symbols = {
        Alphabet.BYTE_LEVEL: ["What", "Ġis", "Ċ", "æ", "Ĺ", "¥", "ÃŁ", "<|im_end|>"],
        Alphabet.SENTENCEPIECE: ["What", "▁is", "<0x0A>", "<0xE6>", "<0x97>", "<0xA5>", "ß", "<|im_end|>"],
        Alphabet.TEXT: ["What", " is", "\n", "日", "", "", "ß", "<|im_end|>"],
    }[kind]
    texts = texts_in_order(symbols, kind)
    assert "".join(texts).replace(SAME_CHARACTER, "") == "What is\n日ß<|im_end|>"
    assert kind is Alphabet.TEXT or texts[3:6] == ["日", SAME_CHARACTER, SAME_CHARACTER]


@given(st.text(max_size=30))
def test_any_text_comes_back_from_single_bytes(text: str) -> None:
    symbols = [f"<0x{byte:02X}>" for byte in text.encode("utf-8", "replace")]
    back = "".join(texts_in_order(symbols, Alphabet.SENTENCEPIECE)).replace(SAME_CHARACTER, "")
    assert back == text.encode("utf-8", "replace").decode().replace(SAME_CHARACTER, "")


@pytest.mark.parametrize(
    ("symbols", "kind"),
    [
        (["a", "Ġthe", "Ċ"], Alphabet.BYTE_LEVEL),
        (["▁the", "<0x0A>"], Alphabet.SENTENCEPIECE),
        (["▁the", "Ġajn"], Alphabet.SENTENCEPIECE),
        ([" the", "Ġa"], Alphabet.TEXT),
    ],
)
async def test_an_alphabet_is_recognised_without_being_named(
    tmp_path: Path, symbols: list[str], kind: Alphabet
) -> None:
    with Recorder(tmp_path / "run") as record:
        record.vocabulary(symbols)
        tokens = token_arrays([0, 1] * 40, [0] * 10 + [1] * 70)
        record.rollouts(1, [Rollout(prompt="What is 5 + 1?", completion="6", tokens=lambda: tokens)])  # type: ignore[arg-type]
    with RunReader(tmp_path / "run") as reader:
        assert reader.bodies.alphabet is kind
        assert [m.text for m in reader.bodies.trajectory(1).trajectory.messages] == ["What is 5 + 1?"]
    async with running(tmp_path, Stepper(tmp_path / "run", 1), size=(80, 24)) as app:
        text = await app.press("t")
        assert "Ġ" not in text.replace("Ġa", "") and "▁" not in text and "the" in text
        assert kind is Alphabet.TEXT or symbols[1 if kind is Alphabet.BYTE_LEVEL else 0] in await app.press("r")


async def test_words_of_tokens_are_not_torn(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as record:
        record.vocabulary(["Sm", "ol", "LM", "Ġwrites", "Ġa", "Ġline"])
        tokens = token_arrays([0, 1, 2, 3, 4, 5] * 30, [1] * 180)
        record.rollouts(1, [Rollout(prompt="?", completion="…", tokens=lambda: tokens)])  # type: ignore[arg-type]
    async with running(tmp_path, Stepper(tmp_path / "run", 1), size=(80, 24)) as app:
        await app.press("t")
        lines = [line.plain[9:].strip() for line in app.screen.tokens.lines][3:]
        whole = {"SmolLM", "writes", "a", "line", "lineSmolLM"}
        assert lines and all(word in whole for line in lines for word in line.split()), lines


async def test_a_key_goes_to_the_worst_mismatch_and_then_to_the_next(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n, worst = 6000, (4321, 77, 5998)
    sampler = rng.uniform(-2, -0.5, n)
    trainer = sampler + rng.uniform(-0.01, 0.01, n)
    for place, nats in zip(worst, (-0.9, 0.7, -0.5), strict=True):
        trainer[place] += nats
    trainer[3] += 5.0  # of the prompt, so it does not count
    with Recorder(tmp_path / "runs" / "a") as record:
        record.vocabulary([f"Ġw{i}" for i in range(n)])
        tokens = token_arrays(
            range(n), [0] * 10 + [1] * (n - 10), sampler.tolist(), overlays={"trainer": trainer.tolist()}
        )
        record.rollouts(1, [Rollout(prompt="?", completion="…", tokens=lambda: tokens)])  # type: ignore[arg-type]
        record.rollouts(2, [Rollout(prompt="?", completion="none recorded")])  # type: ignore[arg-type]
    for size in ((80, 24),):
        async with running(tmp_path / "runs", Stepper(tmp_path / "runs" / "a", 1), size=size) as app:
            for i, (place, nats) in enumerate(zip(worst, ("-0.9", "+0.7", "-0.5"), strict=True), 1):
                text = (await app.press("w")).replace("−", "-")
                assert re.search(rf"mismatch {i} of 5,990: \{nats}\d* nats", text), text
                marked = [s.text for line in _on_screen(app) for s in line.segments if s.style and s.style.reverse]
                assert [text.strip() for text in marked] == [f"w{place}"]


def _on_screen(app: Any) -> list[Any]:
    pane = app.screen.tokens
    return list(pane.lines[pane.top : pane.top + pane.size.height])


def test_a_rollout_says_at_once_which_messages_are_wrong() -> None:
    with pytest.raises(TypeError, match=r"prompt of a Rollout contains a int; expected a text, or messages"):
        Rollout(prompt=[3])  # type: ignore[arg-type]
