"""Model text is made literal, wrapped and cut; numbers are short."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from grpo_tui.tui.format import ago, bar, duration, fixed, number, percent, progress, sparkline
from grpo_tui.tui.text import FIELD_LIMIT, cut, line, literal, wrap

ANY = st.text(st.characters(), max_size=200)
HOSTILE = [
    "[/red]",
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "a\u202eb",
    "x\u200b\u200dy",
    "\ud800",
    "\x9b31m",
    "e" + "\u0301" * 50,
    "👩‍👩‍👧",
    "\ufe0f",
]


def steers_the_terminal(text: str) -> list[str]:
    return [
        c for c in text
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or 0xFE00 <= ord(c) <= 0xFE0F
    ]  # fmt: skip


@given(ANY)
def test_nothing_that_steers_the_terminal_is_left(text: str) -> None:
    assert steers_the_terminal(literal(text)) == []


def test_each_character_is_shown_or_named() -> None:
    """Also those that the fast filter lets pass. Other planes hold ideographs and private characters."""
    for char in map(chr, (*range(0x20000), *range(0xE0000, 0xE1000))):
        shown = literal(char)
        assert not steers_the_terminal(shown) and (shown == char or char not in shown), hex(ord(char))
    assert [literal(filler) for filler in "\u3164\u115f\uffa0"] == ["‹3164›", "‹115F›", "‹FFA0›"]
    for mark in ("\ua8e0", "\ua802", "\ua66f", "\u2de0", "\u302a"):
        assert literal("e" + mark * 5).count("‹") == 2


@pytest.mark.parametrize("text", HOSTILE)
def test_known_tricks_are_shown_as_pictures(text: str) -> None:
    assert steers_the_terminal(literal(text)) == []


def test_what_is_shown_in_their_place() -> None:
    assert literal("\x1b[2J\x07\x7f") == "␛[2J␇␡"
    assert literal("a\u202eb\u200bc") == "a‹202E›b‹200B›c"
    assert literal("[link=http://x]y[/link]") == "[link=http://x]y[/link]", "markup is only text"
    assert literal("שלום عالم") == "שלום عالم", "scripts from right to left are text too"
    assert literal("e\u0301") == "e\u0301", "an accent is kept"
    assert literal("e" + "\u0301" * 5).count("‹0301›") == 2, "a pile of them is not"


@given(ANY)
def test_ordinary_text_is_unchanged(text: str) -> None:
    plain = "".join(c for c in text if c.isalnum() and c.isascii())
    assert literal(plain) == plain


@given(ANY, st.integers(1, 60))
def test_a_line_never_takes_more_cells_than_it_may(text: str, cells: int) -> None:
    assert cell_len(line(text, cells)) <= cells
    assert cell_len(cut(literal(text), cells)) <= cells


@given(ANY, st.integers(2, 60))
def test_wrapping_keeps_everything_but_spaces_and_fits(text: str, cells: int) -> None:
    lines = wrap(text, cells)
    assert all(cell_len(part) <= cells for part in lines)
    kept = "".join("".join(lines).split())
    wanted = "".join("".join(literal(p.expandtabs(4)) for p in text.replace("\r\n", "\n").split("\n")).split())
    assert kept == wanted


def test_a_cut_is_visible_and_says_how_much_is_missing() -> None:
    lines = wrap("x" * (FIELD_LIMIT + 1234), 80)
    assert lines[-1] == "✂ 1,234 more characters · o opens all"
    assert line("y" * 10_000_000, 10) == "yyyyyyyyy…"


def test_wide_characters_are_counted_by_their_cells() -> None:
    assert wrap("漢字漢字漢字", 4) == ["漢字", "漢字", "漢字"]
    assert cut("漢字漢字", 5) == "漢字…"
    assert wrap("किकिकि", 4) == ["किकि", "कि"], "most terminals draw the vowel sign in a cell of its own"


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_numbers_are_short(value: float) -> None:
    assert 0 < len(number(value)) <= 8
    assert 0 < len(fixed(value)) <= 9


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.00"),
        (0.784, "0.78"),
        (-1.3, "−1.30"),
        (12345.6, "12.3k"),
        (3e-5, "3e-5"),
        (1_000_000, "1.0M"),
        (0.0123, "0.012"),
    ],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_minus_zero_is_no_loss() -> None:
    assert fixed(-0.001) == "0.00" and fixed(0.001, signed=True) == "0.00"


def test_times_bars_and_curves() -> None:
    assert [duration(s) for s in (5, 521, 3723, 200_000)] == ["5 s", "8:41", "1:02:03", "2d 7h"]
    assert [ago(s) for s in (14, 180, 7200, 500_000)] == ["14 s", "3 min", "2 h", "5 d"]
    assert percent(0.41) == "41 %" and percent(None) == "–"
    assert bar(0.5, 4) == "██  " and len(bar(0.33, 10)) == 10
    assert progress(0.25, 8) == "██░░░░░░"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, 1.0], 8) == "▁▁" and sparkline([], 5) == "" and len(sparkline(list(range(1000)), 20)) == 20
    assert sparkline([0.0, float("nan"), 1.0], 3) == "▁ █"
