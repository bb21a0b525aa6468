"""The HTTP server of the engine: uvicorn on its own thread, on the loopback interface by default.

Callers on other machines need a token (`GRPO_TUI_TOKEN`, several separated by spaces). The routes are in `http/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ....configs.errors import GrpoTuiError
from .backend import EngineBackend
from .http.app import Api, make_app
from .http.asking import Engine, ServerMetrics
from .http.conversation import Uploads
from .http.guard import Guard, is_loopback

START_SECONDS = 10.0
STOP_SECONDS = 5
"""Time that open connections get to finish when the server stops."""


HEAD_SECONDS = 20.0
"""Time limit for the head of a request."""
IDLE_SECONDS = 65
"""Idle connections stay open this long: longer than clients keep theirs, so that none sends to a closed connection."""


class PatientProtocol(AutoHTTPProtocol):
    """uvicorn's protocol with a time limit for the head of a request, which uvicorn lacks."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any
    """The current request; None before the first."""
    _until: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head():
            self._forget()
        elif self._until is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _in_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._until = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _forget(self) -> None:
        if self._until is not None:
            self._until.cancel()
            self._until = None

    def _give_up(self) -> None:
        self._until = None
        if self._in_head() and not self.transport.is_closing():
            self.transport.close()


class ServeError(GrpoTuiError, RuntimeError):
    """The address cannot be used. The message contains the fix."""


def parse_address(address: str) -> tuple[str, int]:
    """Parse `HOST:PORT` (`[::1]:8000` for IPv6; `:8000` is loopback). Raises ServeError."""
    host, separator, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise ServeError(f"online.serve is {address!r}; expected HOST:PORT, such as 127.0.0.1:8000")
    return host, int(port)


class AnswerServer:
    """Serves answers over HTTP and puts requests into `backend.source`. It takes the address at once and accepts
    connections after `start`. Raises ServeError for an address in use, a public address without tokens, or an unusable
    certificate.
    """

    def __init__(
        self,
        address: str,
        *,
        tokens: Sequence[str] = (),
        max_body_bytes: int = 8 * 2**20,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        host, port = parse_address(address)
        if not is_loopback(host) and not tokens:
            raise ServeError(
                f"{host} can be reached from other machines: set GRPO_TUI_TOKEN to a secret that callers must send, "
                "or serve on 127.0.0.1"
            )
        self.certificate = certificate and str(certificate.absolute())
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            if certificate is not None:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except OSError as error:
            self._socket.close()
            raise ServeError(f"{address} cannot be served on: {error.strerror or error}") from error
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self.close = self._socket.close
        os.register_at_fork(after_in_child=self._leave)
        self._scheme = "http" if certificate is None else "https"
        self._guard = Guard(is_loopback(host), tokens, max_body_bytes)
        self._options: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key}

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.port}"

    def start(self, backend: EngineBackend, uploads: Uploads) -> None:
        """Start the server, and return once it accepts connections. Raises ServeError if it does not start."""
        self._source = backend.source
        engine = Engine(backend, ServerMetrics(backend))
        config = uvicorn.Config(
            make_app(Api(backend, engine, self._guard, uploads)),
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            http=PatientProtocol,
            proxy_headers=False,  # any caller could forge an address
            lifespan="off",
            timeout_graceful_shutdown=STOP_SECONDS,
            timeout_keep_alive=IDLE_SECONDS,
            **self._options,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="http", daemon=True
        )
        self._thread.start()
        until = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise ServeError(f"the HTTP server at {self.url} did not start. See the run's log.")
            time.sleep(0.01)

    def _leave(self) -> None:
        """Free the address in a forked process, such as a tool's, which may outlive this one."""
        with contextlib.suppress(OSError):  # closed already
            os.close(self._socket.detach())

    def stop(self) -> None:
        """Stop accepting requests, reply to waiting ones, and shut down."""
        self._source.turn_away()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS + 5)
