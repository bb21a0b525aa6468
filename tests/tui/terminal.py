"""The pseudo-terminal of the end-to-end tests, from their folder: test folders are no packages of one another."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "e2e" / "terminal.py"
_spec = importlib.util.spec_from_file_location("e2e_terminal", _FILE)
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

Terminal: Any = _module.Terminal


_OPEN = (
    "import sys; from pathlib import Path; from grpo_tui.tui.app.app import run_app; "
    "from grpo_tui.tui.app import destinations; run = Path(sys.argv[1]); "
    "run_app(run.parent, eval(sys.argv[2], {**vars(destinations), 'run': run}))"
)


def app_terminal(
    *words: str,
    cwd: Path,
    variables: Mapping[str, object],
    size: tuple[int, int] = (150, 45),
    forked: bool = True,
) -> Any:
    """The app in a terminal: a program of this Python (`-m MODULE …`, `-c CODE …`), and variables of its environment.

    forked: of a server that has loaded the app.
    """
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    command = [sys.executable, *words]
    return Terminal(command, cwd=cwd, env=environment, rows=size[1], columns=size[0], forked=forked, light=True)


def opened(run: Path, place: str, size: tuple[int, int] = (80, 24)) -> Any:
    """The app in a terminal at a destination, such as `Live(run)`."""
    return app_terminal(
        "-c", _OPEN, str(run), place, cwd=run.parent, size=size, variables={"XDG_STATE_HOME": run.parent / "state"}
    )


def until(screen: Any, holds: Callable[[], bool], within: float = 30.0) -> None:
    """Wait until something holds of a terminal, such as that certain bytes arrived."""
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, f"waited {within} s; the screen is\n{screen.text}"
        if not screen._pump(0.05):
            time.sleep(0.05)


_TELLING = f"""
import asyncio, sys
sys.path.append({str(Path(__file__).parents[2])!r})
from pathlib import Path
from textual.binding import Binding
from textual.widgets import Input
from grpo_tui.tui.app import app
from grpo_tui.tui.app.destinations import Trajectories
from tests.tui.rest import at_rest

class Telling(app.GrpoApp):
    # writes a mark that no terminal shows once it has answered all keys before f12

    CSS_PATH = Path(app.__file__).with_name("app.tcss")
    BINDINGS = [Binding("f12", "tell", priority=True)]

    def action_tell(self):
        self.telling = asyncio.create_task(self.tell())

    async def tell(self):
        for box in self.screen.query(Input):
            box.cursor_blink = False
        await at_rest(self)
        self._driver.write("\\x1b]777;settled\\x07")
        self._driver.flush()

app.GrpoApp = Telling
"""
TELLING = _TELLING + "run = Path(sys.argv[1]); Telling(run.parent, Trajectories(run)).run()"
"""The trajectories of a run in an app that tells when it has answered (`settled`)."""
TELLING_COMMAND = _TELLING + "from grpo_tui.tui.entry import main; main()"
"""`grpo-tui …` whose app tells when it has answered."""
ESCAPE = "\x1b[27u"
"""Escape in one piece: a bare one is told from the beginning of a sequence by the time that passes."""
_SETTLED = b"\x1b]777;settled\x07"


def settled(screen: Any, keys: str = "") -> str:
    """Press keys and wait until an app that tells it has answered them; the screen afterwards."""
    marks = screen.raw.count(_SETTLED)
    screen.press(keys + "\x1b[24~")
    until(screen, lambda: screen.raw.count(_SETTLED) > marks)
    return screen.text
