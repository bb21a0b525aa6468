# pyright: reportMissingImports=false
"""A small real server: `python mcp_server.py [PORT]`, over standard input and output, or over HTTP at PORT."""

import asyncio
import base64
import io
import os
import sys

from mcp.server.fastmcp import FastMCP
from mcp.shared.exceptions import McpError
from mcp.types import (
    CallToolRequest,
    EmbeddedResource,
    ErrorData,
    ImageContent,
    ServerResult,
    TextContent,
    TextResourceContents,
)
from PIL import Image
from pydantic import BaseModel, Field

server = FastMCP("shelf", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)


@server.tool()
def price(item: str, pieces: int = 1) -> str:
    """What pieces of an item cost."""
    if item not in {"apple": 3, "pear": 4}:
        raise ValueError(f"there is no {item}")
    return str({"apple": 3, "pear": 4}[item] * pieces)


class Label(BaseModel):
    """A label on the shelf."""

    text: str = Field(description="What it says.")
    title: bool = False


@server.tool()
def label(labels: list[Label], colour: str | None = None) -> str:
    """Puts labels on the shelf."""
    return f"{len(labels)} labels, {colour}, as {os.environ.get('SHELF_TOKEN')}"


@server.tool()
def look() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Shows the shelf."""
    data = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(data, "PNG")
    picture = ImageContent(type="image", data=base64.b64encode(data.getvalue()).decode(), mimeType="image/png")
    catalogue = TextResourceContents(uri="file:///catalogue", text="two apples")  # type: ignore[arg-type]
    return [TextContent(type="text", text=""), EmbeddedResource(type="resource", resource=catalogue), picture]


@server.tool()
def stop() -> str:
    """Ends the server, as a crash would."""
    os._exit(3)


@server.tool()
async def wait() -> str:
    """Answers after a while."""
    await asyncio.sleep(1)
    return "waited"


_carry_out = server._mcp_server.request_handlers[CallToolRequest]


async def carry_out(request: CallToolRequest) -> ServerResult:
    """Refuse some arguments with an error of the protocol, as many servers do."""
    if (request.params.arguments or {}).get("pieces") == 0:
        raise McpError(ErrorData(code=-32602, message="pieces must be positive"))
    return await _carry_out(request)


server._mcp_server.request_handlers[CallToolRequest] = carry_out

if __name__ == "__main__":
    server.run("streamable-http" if len(sys.argv) > 1 else "stdio")
