# pyright: reportMissingImports=false
"""A small real server: `python mcp_server.py [PORT]`, over standard input and output, or over HTTP at PORT."""

import os
import sys

from mcp.server.fastmcp import FastMCP

server = FastMCP("shelf", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)


@server.tool()
def price(item: str, pieces: int = 1) -> str:
    """What pieces of an item cost."""
    if item not in {"apple": 3, "pear": 4}:
        raise ValueError(f"there is no {item}")
    return str({"apple": 3, "pear": 4}[item] * pieces)


@server.tool()
def stop() -> str:
    """Ends the server, as a crash would."""
    os._exit(3)


if __name__ == "__main__":
    server.run("streamable-http" if len(sys.argv) > 1 else "stdio")
