"""What was searched for is found and marked as the index finds it: case, accents and line breaks do not matter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query, needles
from grpo_tui.engine.runs.types import Call, Step
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.app.destinations import Stepper, Trajectories
from grpo_tui.tui.app.rollout_fields import Field
from grpo_tui.tui.app.text_search import fold, span_after, span_before, spans
from grpo_tui.tui.app.theme import DEFAULT_THEME, THEMES, Palette
from grpo_tui.tui.app.widgets.pane import Line
from grpo_tui.tui.app.widgets.rendering import Renderer
from grpo_tui.tui.app.widgets.text_layout import Flow, TextLayout

from .drive import running

PALETTE = Palette(THEMES[DEFAULT_THEME])


@pytest.mark.parametrize(
    ("wanted", "text", "found"),
    [
        ("cafe", "Un CAFÉ noir", ["CAFÉ"]),
        ("CAFÉ", "cafe\u0301 cafe", ["cafe\u0301", "cafe"]),
        ("strasse", "die Straße", ["Straße"]),
        ("Straße", "STRASSE", ["STRASSE"]),
        ("ΣΟΦΟΣ", "σοφός", ["σοφός"]),
        ("istanbul", "İstanbul", ["İstanbul"]),
        ("한국", "대한국", ["한국"]),
        ("two words", "two,\n  Words", ["two,\n  Words"]),
        ("x == 3", "if x == 3:", ["x == 3"]),
        ("(", "f(x)", ["("]),
        ("", "x", []),
    ],
)
def test_letters_are_the_same_in_any_case_and_with_any_accent(wanted: str, text: str, found: list[str]) -> None:
    assert [text[a:b] for a, b in spans(text, [wanted])] == found


def test_the_words_of_a_search_are_those_of_the_index() -> None:
    assert needles('SEGMENT_OBJECT_AT "two, words" naï* -not agent:x') == ("SEGMENT OBJECT AT", "two words", "naï", "x")


letters = st.text("aAáÁbß \n.", max_size=30)


@given(letters, st.text("aAábß", min_size=1, max_size=3), st.integers(0, 30))
def test_the_nearest_match_is_one_of_all(text: str, wanted: str, at: int) -> None:
    at = min(at, len(text))
    behind, before = span_after(text, [wanted], at), span_before(text, [wanted], at)
    assert behind == next(iter(spans(text[at:], [wanted]) and [_moved(spans(text[at:], [wanted])[0], at)]), None)
    assert (before is not None) == bool(spans(text[:at], [wanted]))
    for found in filter(None, (behind, before)):
        assert fold(text[slice(*found)]) == fold(wanted)


def _moved(span: tuple[int, int], by: int) -> tuple[int, int]:
    return span[0] + by, span[1] + by


def marked(lines: list[Line]) -> str:
    """All characters that are marked as found."""
    style = PALETTE.base + PALETTE.found
    return "".join(s.text for line in lines for s in line.segments if s.style == style)


@given(
    st.lists(st.text("abcé日", min_size=1, max_size=40), min_size=1, max_size=12),
    st.sampled_from([" ", "\n", ", "]),
    st.text("abcé日", min_size=1, max_size=30),
    st.integers(14, 80),
)
def test_a_match_is_marked_whole_wherever_lines_are_broken(
    words: list[str], between: str, wanted: str, width: int
) -> None:
    text = between.join([*words, wanted[: len(wanted) // 2], wanted, *words])
    find = (f"{words[-1]} {wanted[: len(wanted) // 2]} {wanted}".strip(), wanted)
    lay = TextLayout(Renderer(PALETTE), width, {"text": 9}, find, lambda key: True, lambda key: False)
    lay.put(0, [Field("thought", text)])
    lines = list(Flow(lay.parts))
    for sought in lay.find:
        if spans(text, [sought]):
            assert fold(sought).replace(" ", "") in fold(marked(lines)).replace(between.strip() or " ", "").replace(
                " ", ""
            )


async def test_a_search_of_the_list_is_marked_where_it_opens(run: Path, tmp_path: Path) -> None:
    own = tmp_path / "runs" / "accents"
    own.mkdir(parents=True)
    with RunReader(run) as reader:
        record = reader.bodies.trajectory(1)
    said = "Les " + "mots " * 30 + "CAFÉ,\nnoir et amer"
    first = replace(record.trajectory.steps[0], thought=said, text=said)
    writer = RunWriter(own)
    steps = (first, *record.trajectory.steps[1:])
    writer.trajectories(1, [replace(record, trajectory=replace(record.trajectory, id="one", steps=steps))])
    writer.close()
    async with running(own.parent, Trajectories(own, Query(search='"cafe noir"')), size=(150, 45)) as app:
        await app.press("enter")
        found = app.app.palette.base + app.app.palette.found
        shown = [s.text for line in app.screen.text.lines for s in line.segments if s.style == found]
        assert shown == ["CAFÉ,", "noir"], app.text


def _sentence(first: int, last: int) -> str:
    return " ".join(f"word needle{i:03}" for i in range(first, last))


async def test_each_match_scrolls_to_its_own_line(run: Path, tmp_path: Path) -> None:
    """In calls whose paths lose their folder, wrapped lines with several matches, indented JSON, and raw texts."""
    data = json.dumps({"items": [{"name": f"needle{i:03}", "size": i} for i in range(14, 50)], "more": ["x" * 60] * 40})
    calls = (
        Call(
            "view",
            {"path": "/a/long/folder/needle000.py"},
            result="\r\n\n" + _sentence(2, 7) + "\r\n" + _sentence(7, 9),
        ),
        Call("view", {"path": "/a/long/folder/needle009.py", "note": _sentence(10, 14)}, result=data),
        Call("view", {"path": "/a/long/folder/x.py"}, result="x" * 30_000 + _sentence(50, 54) + "x" * 9_000),
    )
    steps = (Step(0, "", action="view", calls=calls), Step(1, _sentence(54, 60), action=None))
    with RunReader(run) as reader:
        record = replace(reader.bodies.trajectory(1), breakdown=None)
    own = tmp_path / "runs" / "places"
    own.mkdir(parents=True)
    writer = RunWriter(own)
    writer.trajectories(1, [replace(record, trajectory=replace(record.trajectory, id="one", steps=steps))])
    writer.close()
    async with running(own.parent, Stepper(own, 1), size=(90, 30)) as app:
        screen = app.screen
        screen.find = ("needle",)
        for raw in (False, True):
            seen = []
            while screen.find_match(1):
                screen.show_rollout()
                match, panel = screen.cursor.match, screen.reading
                written = panel.texts.of(match.key[0])[match.key[1]].text
                line = panel._line_of(match)
                near = "".join(panel.lines[i].plain.strip() for i in range(line, min(line + 2, len(panel.lines))))
                assert written[match.start : match.end + 3] in near
                seen.append(written[match.start + 6 : match.end + 3])
            assert set(seen) >= {f"{i:03}" for i in range(2, 60)} and (raw or seen == sorted(seen))
            await app.press("r", "g")


def test_letters_on_both_sides_of_a_line_end_are_no_match() -> None:
    lay = TextLayout(Renderer(PALETTE), 20, {"text": 9}, ["st"], lambda key: True, lambda key: False)
    lay.put(0, [Field("", "it stays at all his time always", kind="plain")])
    lines = list(Flow(lay.parts))
    assert [line.plain for line in lines] == ["it stays at all his", "time always"] and marked(lines) == "st"
