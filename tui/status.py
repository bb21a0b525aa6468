"""A run's status as a sign and a colour; the sign alone says it too."""

from __future__ import annotations

from rich.style import Style

from .app.theme import Palette

_SIGNS = {
    "starting": "◌", "running": "●", "paused": "‖", "stopping": "◍", "finished": "✓", "stopped": "■", "crashed": "✗",
}  # fmt: skip


def status_sign(status: str) -> str:
    """One character a status."""
    return _SIGNS.get(status, "?")


def status_style(p: Palette, status: str) -> Style:
    """The style that goes with it."""
    return {
        "running": p.good_bold,
        "starting": p.good,
        "paused": p.warn_bold,
        "stopping": p.warn,
        "finished": p.accent,
        "stopped": p.muted,
        "crashed": p.bad_bold,
    }.get(status, p.muted)
