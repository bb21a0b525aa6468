"""Copy text to the user's clipboard and report where it went.

A terminal receives a copy as an escape sequence (OSC 52) and never confirms it. Programs that confirm are preferred:
tmux or the desktop's clipboard. tmux ignores the sequence by default, so inside tmux the text goes to
`tmux load-buffer -w`, which passes it to the terminal.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

OSC52_BYTES = 74_994
"""The smallest limit among terminals: 100,000 bytes in base64, with the sequence around it."""


@dataclass(frozen=True)
class Copied:
    """The result of a copy. `message` is for the user. With `send`, the caller writes the sequence to the terminal."""

    message: str
    send: bool = False


def copy(text: str, what: str, environment: Mapping[str, str] = os.environ) -> Copied:
    """Copy `text`, called `what` in the message. Never call it on the painting thread: it may take seconds."""
    data = text.encode("utf-8", "replace")
    if environment.get("TMUX") and shutil.which("tmux"):
        return Copied(_to_tmux(data, what))
    program = _desktop(environment)
    if program is not None and _hand_over(program, data):
        return Copied(f"Copied {what} to the clipboard.")
    if environment.get("STY"):
        return Copied(f"{what} not copied: GNU screen does not pass copies on. {_INSTEAD}")
    if environment.get("TERM") in ("linux", "vt100", "vt220"):
        return Copied(f"{what} not copied: this terminal has no clipboard. {_INSTEAD}")
    if len(data) > OSC52_BYTES:
        size = f"{len(data) // 1024:,} KiB"
        return Copied(
            f"Sent {what} to the terminal, which may keep only {OSC52_BYTES // 1024} of {size}. {_INSTEAD}", True
        )
    return Copied(f"Sent {what} to the terminal, which copies it if allowed.", True)


_INSTEAD = "Press e to write a file."


def _to_tmux(data: bytes, what: str) -> str:
    if not _hand_over(["tmux", "load-buffer", "-w", "-"], data):
        if not _hand_over(["tmux", "load-buffer", "-"], data):  # before tmux 3.2 there is no -w
            return f"{what} not copied: tmux refused it. {_INSTEAD}"
        return f"Copied {what} to tmux's buffer: prefix ] pastes it."
    allowed = _run(["tmux", "show-options", "-gsv", "set-clipboard"]) != "off"
    if allowed and "clipboard" in (_run(["tmux", "display-message", "-p", "#{client_termfeatures}"]) or ""):
        return f"Copied {what} to tmux's buffer and the terminal's clipboard."
    return f"Copied {what} to tmux's buffer (prefix ] pastes it). tmux does not pass it to the terminal's clipboard."


def _desktop(environment: Mapping[str, str]) -> list[str] | None:
    if environment.get("SSH_CONNECTION") or environment.get("SSH_TTY"):
        return None
    candidates = []
    if sys.platform == "darwin":
        candidates.append(["pbcopy"])
    if environment.get("WAYLAND_DISPLAY"):
        candidates.append(["wl-copy"])
    if environment.get("DISPLAY"):
        candidates += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    return next((c for c in candidates if shutil.which(c[0])), None)


def _run(command: list[str], data: bytes | None = None, output: int = subprocess.PIPE) -> str | None:
    """Return the output of a program, or None if it failed."""
    try:
        done = subprocess.run(command, input=data, stdout=output, stderr=subprocess.DEVNULL, timeout=3.0, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout or b"").decode("utf-8", "replace").strip() if done.returncode == 0 else None


def _hand_over(command: list[str], data: bytes) -> bool:
    """Return whether a program took the text. Some keep running to serve it, so their output is not awaited."""
    return _run(command, data, subprocess.DEVNULL) is not None
