"""`grpo-tui web`: the app in a browser on this machine, through textual-serve."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...engine.imports.background import is_path_of_dump
from .common import HOST, Home, fail, free_port, known_runs, say
from .dumps import named_run

if TYPE_CHECKING:
    from aiohttp.web import Application, Request, StreamResponse


def web(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run or a dump. Default: the list of runs.", autocompletion=known_runs),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port. 0 chooses a free one.")] = 0,
    *,
    home: Home,
) -> None:
    """Show the app in a browser, on 127.0.0.1 only.

    The printed address contains a token. A request without it is refused (403). Each tab runs its own app, which ends
    with the tab. From another machine, use ssh -L PORT:127.0.0.1:PORT.
    """
    if find_spec("textual_serve") is None:
        fail("grpo-tui web needs the package textual-serve: pip install 'grpo-tui[web]'")
    if run is not None and not is_path_of_dump(run, home):
        named_run(run, home)  # ends the command where there is none
    port = free_port("--port", port)
    opening = [] if run is None else ["inspect", run]
    command = [sys.executable, "-P", "-m", "grpo_tui.tui.cli", "--runs-dir", str(home), *opening]
    os.environ["GRPO_TUI_IMAGES"] = "blocks"  # a browser has no graphics protocol
    _server(f"exec {shlex.join(command)}", port).serve()


def _server(command: str, port: int) -> Any:
    """Return the server. All its addresses begin with a token, and every other one answers 403."""
    from aiohttp import web as http
    from textual_serve.server import Server  # pyright: ignore[reportMissingImports]

    token = secrets.token_urlsafe(24)
    address = f"http://{HOST}:{port}"
    sources = f"'self' {address} ws://{HOST}:{port} data: blob: 'unsafe-inline'"
    headers = {
        # The page of textual-serve asks Google for a font. Nothing leaves this machine.
        "Content-Security-Policy": f"default-src {sources}; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }

    async def refused(request: Request) -> StreamResponse:
        raise http.HTTPForbidden(text="open the address that grpo-tui web printed, including its token\n")

    async def add_headers(request: Request, response: StreamResponse) -> None:
        response.headers.update(headers)

    class TokenServer(Server):
        async def _make_app(self) -> Application:
            outer = http.Application()
            outer.add_subapp(f"/{token}/", await super()._make_app())
            outer.router.add_route("*", "/{tail:.*}", refused)
            outer.on_response_prepare.append(add_headers)
            return outer

        def initialize_logging(self) -> None:
            return

        async def on_startup(self, app: Application) -> None:
            say(f"{address}/{token}/")
            say("Ctrl+C stops the server and its apps")

    return TokenServer(command, HOST, port, "grpo-tui", address)
