"""A real HTTP server of a folder that answers ranges, and counts the bytes it sends."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RangeServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    sent = 0
    status = 0
    """Answer every request with this status instead."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: RangeServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        if self.server.status:
            return self.send_error(self.server.status)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            return super().do_GET()
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, path.stat().st_size)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{path.stat().st_size}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.server.sent += len(data)
        self.wfile.write(data)

    def do_HEAD(self) -> None:
        if self.server.status:
            return self.send_error(self.server.status)
        super().do_HEAD()


@contextmanager
def serving(folder: Path) -> Iterator[RangeServer]:
    server = RangeServer(("127.0.0.1", 0), lambda *given: _Handler(*given, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
