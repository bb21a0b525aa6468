"""Export the content of a screen to a file, the pager or the editor."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .text import file_name, literal

if TYPE_CHECKING:
    from textual.app import App


def write(run: Path, name: str, text: str) -> Path:
    """Write to `exports/` in the run's folder, or else to the current folder. Raises OSError if both fail."""
    safe = file_name(name).lstrip(".")
    exports, here = run / "exports", Path.cwd()
    for folder in (exports, here):
        try:
            folder.mkdir(exist_ok=True)
            file = folder / safe
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
            return file
        except OSError:
            continue
    raise OSError(f"neither {exports} nor {here} can be written")


def open_outside(app: App[object], text: str, variable: str, name: str) -> None:
    """Open a text in `$PAGER` or `$EDITOR`. The app waits until the program ends."""
    from textual.app import SuspendNotSupported  # imported here: the command line writes files without it

    fallback = ("less", "more") if variable == "PAGER" else ("vi", "nano")
    try:
        command = shlex.split(os.environ.get(variable, "")) or [p for p in fallback if shutil.which(p)][:1]
    except ValueError:  # an unclosed quotation mark
        command = []
    if not command or not shutil.which(command[0]):
        app.notify(f"Set ${variable} to a program that is installed.", severity="warning", markup=False)
        return
    # the pager gets literal text, too: control characters become pictures, line breaks stay
    shown = "\n".join(literal(part.expandtabs(4)) for part in text.split("\n"))
    try:
        with tempfile.TemporaryDirectory(prefix="grpo-tui-") as folder:
            path = Path(folder) / name
            path.write_text(shown, encoding="utf-8", errors="backslashreplace")
            with app.suspend():
                subprocess.run([*command, path], check=False)
    except SuspendNotSupported:
        app.notify("The browser cannot open programs. Press e to write a file.", severity="warning", markup=False)
    except OSError as error:
        app.notify(f"{command[0]} could not be started: {error}", severity="error", markup=False)
    finally:
        app.refresh(layout=True)
