"""The tools of an environment with their arguments; a click or the number of one begins a call."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.runs.types import ToolSpec
from .line import Line, wrapped
from .pane import Pane


def template(tool: ToolSpec) -> str:
    """Return a call to complete: `LOOK(x=, y=)`."""
    return f"{tool.name}({', '.join(f'{a.name}=' for a in tool.arguments if a.required)})"


class ToolsPanel(Pane):
    """Number, name, description and arguments of each tool."""

    title = "tools"

    def __init__(self) -> None:
        super().__init__("tools")
        self.tools: Sequence[ToolSpec] | None = None
        """None: not known yet."""

    def put(self, tools: Sequence[ToolSpec]) -> None:
        if tools != self.tools:
            self.tools = tools
            self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        if self.tools is None:
            return []
        lines = [] if self.tools else wrapped(p, "No tools: the turn is the answer, in plain words.", width, p.faint)
        for number, tool in enumerate(self.tools, 1):
            of_tool = [Line(p).add(f"{number} " if number < 10 else "  ", p.key).add(tool.name, p.strong)]
            of_tool += [Line(p).gap(2).extend(line) for line in wrapped(p, tool.description, width - 2, p.muted)]
            for argument in tool.arguments:
                kind = " | ".join(argument.choices) if argument.choices else argument.type
                told = f"{argument.name}{'' if argument.required else '?'}: {kind}  {argument.description}".rstrip()
                of_tool += [Line(p).gap(2).extend(line) for line in wrapped(p, told, width - 2, p.text)]
            for line in of_tool:
                line.hits = [(0, width, ("tool", number))]
            lines += of_tool
        return lines
