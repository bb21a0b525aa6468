"""Colours by meaning: dark, light, and a colour-blind-safe form of each.

Widgets ask for a role (`palette.good`), never for a colour. Colour never carries a meaning on its own: each
such role also has a sign (✓ ✗ ⚠ ▲ ▼), a word or a pattern, so the screens also work under `NO_COLOR`. The
colour-blind-safe series are those of Okabe and Ito (2008).
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual.theme import Theme


@dataclass(frozen=True)
class Colors:
    """The colours of one theme, as `#rrggbb`."""

    background: str
    panel: str
    border: str
    faint: str
    muted: str
    text: str
    accent: str
    good: str
    bad: str
    warn: str
    cursor: str
    band: str
    series: tuple[str, ...]
    dark: bool = True


THEMES: dict[str, Colors] = {
    "grpo-dark": Colors(
        background="#0f1218", panel="#161b24", border="#3b4557", faint="#667085", muted="#98a2b3", text="#dfe4ec",
        accent="#7cb7ff", good="#7ddc8f", bad="#ff7b86", warn="#f2c36b", cursor="#24344f", band="#1b2636",
        series=("#7cb7ff", "#7ddc8f", "#f2c36b", "#d49bff", "#ff9e7a", "#5fd7d0", "#ff8fb8", "#b8c46a"),
    ),
    "grpo-light": Colors(
        background="#fcfcfa", panel="#f1f2f4", border="#b4bcc8", faint="#7c8594", muted="#59616e", text="#1d2530",
        accent="#0b5fc4", good="#1a7f37", bad="#c1232f", warn="#8f5a00", cursor="#d5e5fb", band="#e3ecf7", dark=False,
        series=("#0b5fc4", "#1a7f37", "#a15c00", "#7a3bc0", "#c8481c", "#00747a", "#b3206b", "#5c6b00"),
    ),
    "grpo-dark-safe": Colors(
        background="#0f1218", panel="#161b24", border="#3b4557", faint="#667085", muted="#98a2b3", text="#dfe4ec",
        accent="#56b4e9", good="#56b4e9", bad="#e69f00", warn="#f0e442", cursor="#24344f", band="#1b2636",
        series=("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#4d9de0", "#d55e00", "#c8ccd4"),
    ),
    "grpo-light-safe": Colors(
        background="#fcfcfa", panel="#f1f2f4", border="#b4bcc8", faint="#7c8594", muted="#59616e", text="#1d2530",
        accent="#0072b2", good="#0072b2", bad="#b34700", warn="#7d6200", cursor="#d5e5fb", band="#e3ecf7", dark=False,
        series=("#0072b2", "#b85200", "#00785a", "#8c6d00", "#a8457c", "#2f6f96", "#8f3d00", "#444c58"),
    ),
}  # fmt: skip
DEFAULT_THEME = "grpo-dark"

PATTERNS = "█▓▒░▚▞▤▥"
"""Fills that distinguish series without colour."""


class Palette:
    """The styles of one theme by meaning, ready for segments."""

    def __init__(self, colors: Colors) -> None:
        self.colors = colors
        self.border = Style(color=colors.border)
        self.faint = Style(color=colors.faint)
        self.muted = Style(color=colors.muted)
        self.text = Style(color=colors.text)
        self.accent = Style(color=colors.accent)
        self.good = Style(color=colors.good)
        self.bad = Style(color=colors.bad)
        self.warn = Style(color=colors.warn)
        self.title = self.strong = Style(color=colors.text, bold=True)
        self.key = Style(color=colors.accent, bold=True)
        self.cursor = Style(bgcolor=colors.cursor, bold=True)
        self.band = Style(bgcolor=colors.band)
        self.series = tuple(Style(color=color) for color in colors.series)
        self.base = Style(color=colors.text, bgcolor=colors.background)
        self.found = Style(color=colors.background, bgcolor=colors.warn)
        self.good_bold = Style(color=colors.good, bold=True)
        self.bad_bold = Style(color=colors.bad, bold=True)
        self.warn_bold = Style(color=colors.warn, bold=True)

    def status(self, status: str) -> tuple[str, Style]:
        return {
            "starting": ("◌", self.good),
            "running": ("●", self.good_bold),
            "paused": ("‖", self.warn_bold),
            "stopping": ("◍", self.warn),
            "finished": ("✓", self.accent),
            "stopped": ("■", self.muted),
            "crashed": ("✗", self.bad_bold),
        }.get(status, ("?", self.muted))

    def outcome(self, correct: bool | None) -> Style:
        return self.muted if correct is None else self.good if correct else self.bad

    def sign(self, value: float | None) -> Style:
        return self.muted if not value else self.good if value > 0 else self.bad


def textual_themes() -> list[Theme]:
    """Return the themes for Textual's widgets (inputs, palette, dialogs)."""
    return [
        Theme(
            name=name,
            primary=c.accent,
            secondary=c.muted,
            accent=c.accent,
            foreground=c.text,
            background=c.background,
            surface=c.background,
            panel=c.panel,
            success=c.good,
            warning=c.warn,
            error=c.bad,
            dark=c.dark,
            variables={"border": c.border, "input-cursor-background": c.accent, "block-cursor-background": c.cursor},
        )
        for name, c in THEMES.items()
    ]
