"""`grpo-tui mcp`: let a coding agent read runs, through the Model Context Protocol."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from .common import HOST, Home, fail, free_port, warn
from .dumps import run_or_dump


def mcp(
    dumps: Annotated[
        list[str] | None,
        typer.Argument(metavar="DUMP", help="Dumps of other frameworks that the agent can also read."),
    ] = None,
    http: Annotated[int | None, typer.Option(metavar="PORT", min=1, max=65535, help="Serve HTTP on 127.0.0.1.")] = None,
    allow_notes: Annotated[bool, typer.Option("--allow-notes", help="Let the agent write notes on rollouts.")] = False,
    skill: Annotated[bool, typer.Option("--skill", help="Print the skill file for coding agents.")] = False,
    *,
    home: Home,
) -> None:
    """Serve the runs to a coding agent (Model Context Protocol), over standard input and output.

    An agent can list runs, read findings and rollouts, and ask how a reward and an advantage were computed. Answers
    have a size limit, and recorded text is marked as untrusted. The agent can only read the runs of --runs-dir and the
    given dumps.
    """
    if skill:
        print((Path(__file__).parents[1] / "agent_tools" / "SKILL.md").read_text(encoding="utf-8"))
        return
    if find_spec("mcp") is None:
        fail("grpo-tui mcp needs the package mcp: pip install 'grpo-tui[mcp]'")
    from ..agent_tools.server import serve
    from ..agent_tools.workspace import Workspace

    for dump in dumps or ():
        run_or_dump(dump, home)
    if http is not None:
        free_port("--http", http)
        warn(f"serving {home} at http://{HOST}:{http}/mcp")
    serve(Workspace(home, tuple(dumps or ())), allow_notes=allow_notes, port=http)
