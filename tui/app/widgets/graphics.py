"""Real pixels in terminals that support them: kitty's protocol or sixel, through textual-image.

The environment determines the protocol. No query is sent, because its answer would arrive among the keys.
`GRPO_TUI_IMAGES` (`kitty`, `sixel` or `blocks`) overrides the choice for unknown terminals.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from textual.widget import Widget

Kind = Literal["kitty", "sixel", "blocks"]

_KITTY_PROGRAMS = ("ghostty",)
_SIXEL_PROGRAMS = ("WezTerm", "iTerm.app", "mintty", "contour", "BlackBox")
_SIXEL_TERMS = ("foot", "mlterm", "contour", "yaft", "xterm-sixel")


def kind(environment: Mapping[str, str] = os.environ) -> Kind:
    """Return the image protocol of this terminal."""
    chosen = environment.get("GRPO_TUI_IMAGES", "")
    if chosen in ("kitty", "sixel", "blocks"):
        return chosen  # type: ignore[return-value]
    if environment.get("NO_COLOR") or environment.get("TMUX") or environment.get("STY"):
        return "blocks"  # multiplexers drop or misplace graphics
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if environment.get("KITTY_WINDOW_ID") or term in ("xterm-kitty", "xterm-ghostty") or program in _KITTY_PROGRAMS:
        return "kitty"
    if program in _SIXEL_PROGRAMS or term.startswith(_SIXEL_TERMS):
        return "sixel"
    return "blocks"


def cell_pixels() -> tuple[int, int]:
    """Return the pixel size of a cell as the terminal's driver reports it, or 10 × 20."""
    try:
        import fcntl
        import struct
        import termios

        assert sys.__stdout__ is not None
        packed = fcntl.ioctl(sys.__stdout__.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
        rows, columns, width, height = struct.unpack("HHHH", packed)
        if rows and columns and width >= columns and height >= rows:
            return width // columns, height // rows
    except (ImportError, OSError, ValueError, AssertionError):
        pass
    return 10, 20


def make(chosen: Kind, send: Callable[[str], None]) -> Widget:
    """Return a textual-image widget for this protocol. Its `image` takes a PIL image. `send` writes to the terminal."""
    from textual_image import _terminal

    # Importing the package sends queries to the terminal, and the running app would take the answers for keys.
    size = _terminal.CellSize(*cell_pixels())
    setattr(_terminal.get_cell_size, "_result", size)  # noqa: B010  where textual-image keeps it
    real: object = sys.__stdout__
    try:
        sys.__stdout__ = SimpleNamespace(isatty=lambda: False)  # type: ignore[misc, assignment]
        from textual_image.widget import SixelImage, TGPImage
    finally:
        sys.__stdout__ = real  # type: ignore[misc]
    from textual_image.renderable import tgp

    # Pictures in kitty's protocol are written when drawn, bypassing the app. See `OwnOutputApp.send`.
    tgp.sys = SimpleNamespace(__stdout__=SimpleNamespace(write=send, flush=lambda: None))  # type: ignore[assignment]
    return TGPImage(id="graphic") if chosen == "kitty" else SixelImage(id="graphic")
