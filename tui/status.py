"""The status of a run as a sign and a colour. The sign is enough."""

from __future__ import annotations

from rich.style import Style

from .app.theme import Palette

_SIGNS = {
    "starting": "◌", "running": "●", "paused": "‖", "stopping": "◍", "finished": "✓", "stopped": "■", "crashed": "✗",
}  # fmt: skip


def status_sign(status: str) -> str:
    """Return one character a status."""
    return _SIGNS.get(status, "?")


def status_style(p: Palette, status: str) -> Style:
    """Return the style that goes with it."""
    return {
        "running": p.good_bold,
        "starting": p.good,
        "paused": p.warn_bold,
        "stopping": p.warn,
        "finished": p.accent,
        "stopped": p.muted,
        "crashed": p.bad_bold,
    }.get(status, p.muted)
