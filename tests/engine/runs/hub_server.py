"""A stand-in of the hub for reading: its API as huggingface_hub 2.4 calls it, over the folders of this machine.

`ROOT/datasets/USER/NAME/…` is a repository. Files over 10 MB of the real hub are in a store of their own, to which
`resolve` redirects; here those over 64 KiB are.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = 1 << 16


class HubServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    root: Path
    private: str | None = None
    """The token without which nothing is shown."""
    sent = 0
    asked: list[str]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: HubServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        return

    def _json(self, data: object, status: int = 200, **headers: str) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _entry(self, repository: Path, path: Path) -> dict[str, object]:
        name = path.relative_to(repository).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "size": 0, "oid": hashlib.sha1(name.encode()).hexdigest()}
        data = path.read_bytes()
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(data)}
        entry["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        if len(data) > LARGE:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return entry

    def _closed(self, repository: Path | None) -> bool:
        """Refuse a stranger. The hub's answer is the same whether a repository is private or there is none."""
        known = self.server.private is None or self.headers.get("Authorization") == f"Bearer {self.server.private}"
        if known and repository is not None and repository.is_dir():
            return False
        self._json({"error": "Invalid username or password."}, 401, X_Error_Code="RepoNotFound")
        return True

    def do_GET(self) -> None:
        url = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {url}")
        if stored := re.fullmatch(r"/store/(.+)", url):
            return self._bytes(self.server.root / stored[1])
        api = re.fullmatch(r"/(?:api/)?(datasets/[^/]+/[^/]+)(?:/(revision|tree|resolve)/([^/]+)/?(.*))?", url)
        repository = self.server.root / api[1] if api else None
        if self._closed(repository) or api is None or repository is None:
            return
        _, what, revision, inside = api.groups()
        if what is not None and revision != "main":
            return self._json({"error": f"Invalid rev id: {revision}"}, 404, X_Error_Code="RevisionNotFound")
        path = repository / (inside or "")
        if what == "tree" and path.is_dir():
            return self._json([self._entry(repository, each) for each in sorted(path.iterdir())])
        if what in ("tree", "resolve") and not (what == "resolve" and path.is_file()):
            return self._json({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")
        if what == "resolve" and path.stat().st_size > LARGE:
            place = f"{self.server.address}/store/{path.relative_to(self.server.root).as_posix()}"
            return self._json({}, 302, Location=place)
        if what == "resolve":
            return self._bytes(path)
        self._json({"id": api[1].partition("/")[2], "sha": "0" * 40, "siblings": [], "private": False})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
        repository = self.server.root / "/".join(self.path.split("/")[2:5])
        if self._closed(repository):
            return
        paths = [repository / name for name in asked["paths"]]
        self._json([self._entry(repository, path) for path in paths if path.exists()])

    def _bytes(self, path: Path) -> None:
        data = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), min(int(wanted[2]) + 1, len(data))) if wanted else (0, len(data))
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last - 1}/{len(data)}")
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("Content-Length", str(last - first))
        self.end_headers()
        if self.command != "HEAD":
            self.server.sent += last - first
            self.wfile.write(data[first:last])


@contextmanager
def hub_of(root: Path) -> Iterator[HubServer]:
    """Serve the repositories of a folder."""
    server = HubServer(("127.0.0.1", 0), _Handler)
    server.root, server.asked = root, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
