"""The cells that are sent leave a terminal as Textual's own whole lines would, in a tenth of the bytes."""

from __future__ import annotations

import fcntl
import io
import os
import random
import re
import signal
import struct
import termios
from pathlib import Path
from typing import Any

import pyte
import pytest
from rich.color import ColorSystem
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType, Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from grpo_tui.tui.app.inside_textual import pieces
from grpo_tui.tui.app.painter import Painter, Unpaintable

from .terminal import ESCAPE, TELLING, app_terminal, settled, until
from .test_hostile import hostile  # noqa: F401  a fixture
from .test_terminal import OPEN

WIDTH, HEIGHT = 40, 8
CONSOLE = Console(color_system="truecolor", force_terminal=True, file=io.StringIO())
STYLES = [
    None,
    Style(color="#ff0000", bgcolor="#101010"),
    Style(color="#00ff00", bgcolor="#101010"),
    Style(color="#00ff00", bgcolor="#202040", bold=True),
    Style(color="#00ff00", bgcolor="#202040", underline=True),
    Style(bgcolor="#202040", italic=True),
    Style(color="#ffffff", reverse=True),
    Style(color="#ffffff", bgcolor="#101010", strike=True),
    Style(color="red", bgcolor="blue"),
]
WORDS = ["reward", " ", "   ", "│", "▁▂▃", "x", "⣿⠐", "0.12", "→ ", "a b  c"]
WIDE = ["日本", "👍 ", "é", "한 글"]


class Shown:
    """A terminal, and what a person can tell apart in it."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self.stream = pyte.ByteStream(self.screen)
        self.feed("\x1b[?7l")  # no line wrap, as Textual sets it

    def feed(self, text: str) -> None:
        self.stream.feed(text.encode())

    @property
    def cells(self) -> list[list[object]]:
        return cells(self.screen)


def cells(screen: pyte.Screen) -> list[list[object]]:
    return [[_cell(screen.buffer[y][x]) for x in range(screen.columns)] for y in range(screen.lines)]


def _cell(cell: Any) -> object:
    lines = (cell.underscore, cell.strikethrough, cell.reverse)
    if cell.data == " " and not any(lines):
        return " ", cell.bg
    return cell.data, cell.fg, cell.bg, cell.bold, cell.italics, *lines


def strip(chance: random.Random, width: int, words: list[str]) -> Strip:
    segments, left = [], width
    while left > 0:
        text = chance.choice(words)
        made = Strip([Segment(text, chance.choice(STYLES))]).crop(0, left)
        segments += list(made)
        left -= made.cell_length
    return Strip(segments, width)


def layout_update(lines: list[list[Strip]], region: Region) -> LayoutUpdate:
    one_a_line = LayoutUpdate.__init__.__annotations__["strips"] == "list[Strip]"  # Textual 6.2
    made: list[Any] = [Strip.join(line) if one_a_line else line for line in lines]
    return LayoutUpdate(made, region)


def layout(chance: random.Random, words: list[str]) -> LayoutUpdate:
    lines = [[strip(chance, 15, words), strip(chance, WIDTH - 15, words)] for _ in range(HEIGHT)]
    return layout_update(lines, Region(0, 0, WIDTH, HEIGHT))


def chops(chance: random.Random, words: list[str]) -> ChopsUpdate:
    spans = []
    lines: list[dict[int, Strip | None]] = []
    for y in range(HEIGHT):
        if chance.random() < 0.5:
            spans.append((y, *chance.choice([(0, WIDTH), (0, 15), (15, WIDTH), (10, 30)])))
        lines.append({0: strip(chance, 15, words), 15: strip(chance, WIDTH - 15, words)})
        if not spans or spans[-1][0] != y or spans[-1][2] == 15:
            lines[-1][15] = None  # not rendered
    return ChopsUpdate(lines, spans or [(0, 0, 15)], [[15, WIDTH]] * HEIGHT)


def whole(update: CompositorUpdate, cursor: tuple[int, int]) -> str:
    return update.render_segments(CONSOLE) + Control.move_to(*cursor).segment.text


@pytest.mark.parametrize("words", [WORDS, WORDS + WIDE], ids=["single cells", "wide and combining characters"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.stress) for n in range(2, 6))])
def test_the_terminal_looks_as_if_textual_had_painted_it(seed: int, words: list[str]) -> None:
    chance = random.Random(seed)
    painter, ours, theirs = Painter(ColorSystem.TRUECOLOR), Shown(), Shown()
    for turn in range(60):
        update = layout(chance, words) if turn == 0 or chance.random() < 0.2 else chops(chance, words)
        cursor = (chance.randrange(WIDTH), chance.randrange(HEIGHT))
        ours.feed(painter.paint(pieces(update), (WIDTH, HEIGHT), cursor))
        theirs.feed(whole(update, cursor))
        assert ours.cells == theirs.cells, f"update {turn}"
        assert (ours.screen.cursor.x, ours.screen.cursor.y) == cursor
        if chance.random() < 0.1:  # as a resize does
            painter.forget()
            ours, theirs = Shown(), Shown()
            ours.feed(painter.paint(pieces(full := layout(chance, words)), (WIDTH, HEIGHT), cursor))
            theirs.feed(whole(full, cursor))
            assert ours.cells == theirs.cells


def line_update(*parts: tuple[str, Style | None]) -> LayoutUpdate:
    made = Strip([Segment(text, style) for text, style in parts])
    return layout_update([[made]], Region(0, 0, made.cell_length, 1))


def paint(painter: Painter, *parts: tuple[str, Style | None], cursor: tuple[int, int] = (0, 0)) -> str:
    return painter.paint(pieces(line_update(*parts)), (WIDTH, 1), cursor)


def test_what_is_there_already_is_not_sent() -> None:
    painter, style = Painter(ColorSystem.TRUECOLOR), STYLES[1]
    assert "reward 0.12" in paint(painter, ("reward 0.12", style))
    assert paint(painter, ("reward 0.12", style)) == ""
    assert paint(painter, ("reward 0.12", style), cursor=(3, 0)) == "\x1b[1;4H", "only the cursor moved"
    sent = paint(painter, ("reward 0.13", style), cursor=(3, 0))
    assert sent == "\x1b[1;11H\x1b[38;2;255;0;0;48;2;16;16;16m3\x1b[0m\x1b[1;4H"


def test_a_colour_is_sent_once_for_neighbours_that_share_it_and_not_for_blanks() -> None:
    painter = Painter(ColorSystem.TRUECOLOR)
    red, green = STYLES[1], STYLES[2]
    sent = paint(painter, ("one", red), (" ", green), ("two", red), ("three", green))
    assert sent.count("one two") == 1, "a blank between two words of a colour is written in that colour"
    assert sent.count("48;2;16;16;16") == 1, "the background that both share is sent once"


def test_after_forgetting_everything_is_sent() -> None:
    painter = Painter(ColorSystem.TRUECOLOR)
    first = paint(painter, ("reward", STYLES[3]))
    painter.forget()
    assert paint(painter, ("reward", STYLES[3])) == first


@pytest.mark.parametrize(
    "segment",
    [
        Segment("\x1b7", None, [(ControlType.CURSOR_FORWARD, 0)]),
        Segment("a", Style(link="http://example.org")),
    ],
    ids=["control", "link"],
)
def test_what_is_more_than_characters_and_colours_is_left_to_textual(segment: Segment) -> None:
    painter = Painter(ColorSystem.TRUECOLOR)
    with pytest.raises(Unpaintable):
        painter.paint([(0, 0, Strip([segment], 3))], (WIDTH, 1), (0, 0))


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\x9b5mb", "\x07\x08\x7f", "日\x1b]0;x\x07本"])
def test_the_last_door_lets_no_control_character_through(text: str) -> None:
    sent = paint(Painter(ColorSystem.TRUECOLOR), (text, STYLES[1]))
    rest = re.sub(r"\x1b\[[0-9;]*[mHC]", "", sent)
    assert rest.lstrip(" ") == re.sub(r"[\x00-\x1f\x7f-\x9f]", "", text)  # wide characters are put on blanks


def test_a_text_that_the_terminal_draws_wider_keeps_its_end_on_the_blanks_behind_it() -> None:
    sent = paint(Painter(ColorSystem.TRUECOLOR), ("हिन्दी", STYLES[1]), (" " * 9, STYLES[1]), ("│", STYLES[2]))
    assert sent.index(" " * 9) < sent.index("हिन्दी") < sent.index("│"), "a vowel sign takes a cell of its own in xterm"


def test_ever_new_colours_do_not_pile_up() -> None:
    painter, shown = Painter(ColorSystem.TRUECOLOR), Shown()
    for turn in range(400):
        parts = [("▀", Style(color=f"#{turn:04x}{x:02x}", bgcolor=f"#{x:02x}{turn:04x}")) for x in range(WIDTH)]
        shown.feed(paint(painter, *parts))
    assert len(painter._styles) < 9000
    assert [cell[1:3] for cell in shown.cells[0]] == [(f"018f{x:02x}", f"{x:02x}018f") for x in range(WIDTH)]  # type: ignore[index]


KEYS = ("jjj", "\x04", "f", "reward<5\r", "Gk", "\r", "lL", "t", "tt", "/", ESCAPE, "\x10" + ESCAPE, "?", ESCAPE, "y")


@pytest.mark.parametrize("size", [(80, 24), (150, 45)], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("which", ["run", "hostile"])
def test_after_many_keys_the_screen_is_what_painting_all_of_it_gives(
    request: pytest.FixtureRequest, which: str, size: tuple[int, int], tmp_path: Path
) -> None:
    path = request.getfixturevalue(which)
    with app_terminal(
        "-c", TELLING, str(path), cwd=tmp_path, size=size, variables={"XDG_STATE_HOME": tmp_path}
    ) as screen:
        screen.see("1 of ")
        for keys in KEYS:
            settled(screen, keys)
            before, sent = cells(screen.screen), len(screen.raw)
            settled(screen, "\x0c")
            assert len(screen.raw) > sent + size[0] * size[1], "everything is sent again"
            assert cells(screen.screen) == before, f"after {keys!r}"


def test_what_other_programs_and_a_resize_left_is_painted_over(run: Path, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\nprintf '\\033[2J\\033[Hleft by the pager'\n")
    pager.chmod(0o755)
    variables = {"XDG_STATE_HOME": tmp_path, "PAGER": pager}
    with app_terminal("-c", OPEN, str(run), "3", cwd=tmp_path, size=(120, 40), variables=variables) as screen:
        screen.see("step 1/", "3 of 320")
        before = (screen.settle(), cells(screen.screen))[1]
        screen.press("o")
        until(screen, lambda: b"left by the pager" in screen.raw)
        screen.see("step 1/", "3 of 320")
        screen.settle()
        assert cells(screen.screen) == before
        fcntl.ioctl(screen.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        screen.screen.resize(30, 100)
        screen.screen.erase_in_display(2)
        os.kill(screen.pid, signal.SIGWINCH)
        screen.see("step 1/", "3 of 320")
        assert all(line.strip() for line in screen.settle().splitlines()), "borders stand in every line"
