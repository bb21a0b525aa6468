"""Private names of Textual stand in one file, and without them the app runs on what Textual does itself."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from textual.app import App
from textual.screen import ModalScreen, Screen
from textual.widget import Widget

import grpo_tui.tui
from tests.forked import ANEW

from .terminal import ESCAPE, app_terminal

SEAM = "grpo_tui.tui.app.inside_textual"
BASES = (App, Screen, ModalScreen, Widget)
META = {"_merged_bindings", "_computes", "_decorated_handlers", "_reactives"}
"""What Textual's metaclass writes into every class."""

OPEN = """
import sys
from pathlib import Path
from textual import _compositor
from textual.app import App
from textual.screen import Screen
{change}
from grpo_tui.tui.app.app import GrpoApp
from grpo_tui.tui.app.destinations import Trajectories

app = GrpoApp(Path(sys.argv[1]).parent, Trajectories(Path(sys.argv[1])))
{after}
app.run()
print(app.failure)
"""
WITHOUT_UPDATES = """
updates = _compositor.LayoutUpdate, _compositor.ChopsUpdate
del _compositor.LayoutUpdate, _compositor.ChopsUpdate
"""
BACK = "_compositor.LayoutUpdate, _compositor.ChopsUpdate = updates\n"
OTHER_UPDATES = """
class Other(_compositor.LayoutUpdate):
    def __init__(self, strips, region, more=None): super().__init__(strips, region)
_compositor.LayoutUpdate = Other
"""
OTHER_DISPLAY = """
display = App._display
App._display = lambda self, screen, renderable, more=None: display(self, screen, renderable)
"""
OTHER_PUSHING = """
push = Screen._push_result_callback
def other(self, requester, callback, *future):
    if requester is self.app and not future:
        raise TypeError("missing argument: 'future'")
    push(self, requester, callback, *future)
Screen._push_result_callback = other
"""
PAINTED = "assert app.painter is not None"
UNPAINTED = "assert app.painter is None"
FALLS = "app.painter.paint = lambda *given: given[0].nothing"


def _modules() -> list[str]:
    return [m.name for m in pkgutil.walk_packages(grpo_tui.tui.__path__, "grpo_tui.tui.") if "__main__" not in m.name]


def _privates(cls: type) -> set[str]:
    """The private names of the Textual classes that a class inherits from, those given in methods too."""
    return set().union(*map(_privates_of, cls.__mro__)) - META


@functools.cache
def _privates_of(base: type) -> set[str]:
    if not base.__module__.startswith("textual"):
        return set()
    names = {n for n in vars(base) if re.match(r"_[a-z]", n)}
    return names | set(re.findall(r"\bself\.(_[a-z]\w*)", inspect.getsource(base)))


@pytest.mark.parametrize("name", [n for n in _modules() if n != SEAM])
def test_no_private_name_of_textual_is_used_elsewhere(name: str) -> None:
    module = importlib.import_module(name)
    source = inspect.getsource(module)
    assert not re.findall(r"(?:from|import) (?:textual|rich)[\w.]*\._\w+", source)
    lines = source.splitlines()
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    sources = {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in classes}
    for cls in vars(module).values():
        if inspect.isclass(cls) and cls.__module__ == name and issubclass(cls, BASES):
            own = sources[cls.__name__]
            used = set(re.findall(r"\b(?:self|app|screen)\.(_[a-z]\w*)|def (_[a-z]\w*)", own))
            assert not {n for pair in used for n in pair if n} & _privates(cls), cls


@pytest.mark.parametrize(
    ("change", "after"),
    [
        ("", PAINTED),
        (WITHOUT_UPDATES, BACK + UNPAINTED),
        (OTHER_UPDATES, UNPAINTED),
        (OTHER_DISPLAY, UNPAINTED),
        ("", FALLS),
        (OTHER_PUSHING, PAINTED),
    ],
    ids=[
        "as it is",
        "no updates",
        "updates of another make",
        "another _display",
        "other content",
        "another way of pushing",
    ],
)
def test_the_app_runs_where_textual_is_another_one_inside(run: Path, tmp_path: Path, change: str, after: str) -> None:
    program = OPEN.format(change=change, after=after)
    variables = {"XDG_STATE_HOME": tmp_path, ANEW: 1}
    with app_terminal("-c", program, str(run), cwd=tmp_path, size=(120, 30), variables=variables) as screen:
        screen.see("1 of 320", "SEGMENT")
        screen.press("j\r")
        screen.see("step 1/", "ab12 · 2 of 320")
        screen.press(ESCAPE)
        screen.see("2 of 320", "SEGMENT")
        screen.press(ESCAPE)  # the first screen is replaced or covered
        screen.see("3 runs")
        screen.press("q")
        assert screen.wait() == 0
        assert b"Error" not in screen.raw
