"""All servers as one: who is in, where rollouts go, and what happens when one fails.

Everything here runs in one event loop on a thread of its own; trainers call `run`, and sessions of any loop `generate`.
A server that failed is out: what it was asked is asked of another one, with the same seeds, so that the tokens are the
same ones. A task asks it every `PROBE_S` seconds whether it serves, gives it the adapters that are in use, and compares
what it says of a fixed text; then it is in again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ....configs.errors import GrpoTuiError
from .client import ServerClient, open_http
from .protocol import GenerateAnswer, GenerateRequest, ServerRefusal, ServerTrouble

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)
T = TypeVar("T")

NOT_ASKED = "it was not asked yet"
PROBE_S = 2.0
"""Seconds between two attempts to take a server in again."""
ATTEMPTS = 4
"""A request that failed on so many servers in a row, each of which came back, is at fault itself."""

Admit = Callable[[ServerClient], Awaitable[None]]
"""Make a server ready and prove it; raises ServerTrouble where it is not."""
Tell = Callable[[str, bool], None]
"""Hears a sentence about a server, and whether it is good news."""


class NoServersLeft(GrpoTuiError, RuntimeError):
    """No server answered for `rollouts.server_wait_s` seconds."""


@dataclass
class Server:
    """One server of the pool. why_out: empty while it is in; refusal: set where it would not help to wait.
    retried: somebody asks it from time to time whether it is fit again. turns, tokens: that it wrote so far."""

    client: ServerClient
    why_out: str = NOT_ASKED
    refusal: ServerRefusal | None = None
    retried: bool = False
    in_flight: int = 0
    turns: int = 0
    tokens: int = 0

    @property
    def up(self) -> bool:
        """Whether the server is asked."""
        return not self.why_out

    @property
    def url(self) -> str:
        """The server's address."""
        return self.client.url


@dataclass(frozen=True)
class Standing:
    """`up` of `all` servers are in; `out`: why each of the others is not, by address."""

    up: int
    all: int
    out: Mapping[str, str]

    @property
    def reasons(self) -> str:
        """Why servers are out, for a person."""
        return "; ".join(f"{url}: {reason}" for url, reason in self.out.items())


class ServerPool:
    """Servers at `urls`. request_timeout_s: for one turn. wait_s: how long to wait while none is in.

    tell: hears when a server goes out or comes back, one sentence, on the thread of the pool.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        key: str | None = None,
        request_timeout_s: float = 120.0,
        wait_s: float = 300.0,
        tell: Tell | None = None,
    ) -> None:
        self.request_timeout_s = request_timeout_s
        self.wait_s = wait_s
        self.tell: Tell = tell or _log
        self.admit: Admit | None = None
        """What a server must go through before it is in."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollout servers", daemon=True)
        self._thread.start()
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        try:
            self._http = self.run(self._open())
        except GrpoTuiError:
            self._stop()
            raise
        self._changed = asyncio.Condition()
        self.servers = [Server(ServerClient(url, self._http, key)) for url in urls]

    @staticmethod
    async def _open() -> httpx.AsyncClient:
        """In the loop that it belongs to."""
        return open_http()

    def close(self) -> None:
        """Give up whatever is under way, and end the thread."""
        if not self._thread.is_alive():
            return

        async def end() -> None:
            others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._http.aclose()

        self.run(end())
        self._stop()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do this in the pool's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this in the pool's loop and wait for it."""
        return self.begin(work).result()

    async def generate(self, request: GenerateRequest, home: Home) -> GenerateAnswer:
        """The answer to a request, from `home` or from wherever it moves to; to be awaited in any loop.

        Raises NoServersLeft, and ServerRefusal where every server that is in refuses.
        """
        return await asyncio.wrap_future(self.begin(self._generate(request, home)))

    def homes(self, count: int) -> list[Home]:
        """Places for so many prompts, spread evenly: rollouts of one stay together, where their prompt is cached."""
        first, self._turn = self._turn, self._turn + count
        return [Home(first + i) for i in range(count)]

    async def take_in(self) -> None:
        """Have every server that was not asked yet try to come in, and wait until each has. In the pool's loop."""
        new = [s for s in self.servers if not s.up and not s.retried]
        await asyncio.gather(*(self._try(s) for s in new))
        for server in new:
            if not server.up:
                self._keep_trying(server)

    async def each(self, action: Callable[[ServerClient], Awaitable[None]]) -> None:
        """Do this with each server that is in; one that fails is out. In the pool's loop."""

        async def one(server: Server) -> None:
            try:
                await action(server.client)
            except (ServerTrouble, ServerRefusal) as problem:
                self._out(server, str(problem), problem if isinstance(problem, ServerRefusal) else None)

        await asyncio.gather(*(one(s) for s in self.servers if s.up))

    def standing(self) -> Standing:
        """How many servers are in, and why those that are not are out. On any thread."""
        out = {s.url: s.why_out for s in self.servers if not s.up}
        return Standing(len(self.servers) - len(out), len(self.servers), out)

    def states(self) -> list[dict[str, Any]]:
        """What each server does and did. On any thread."""
        return [
            {"url": s.url, "in_flight": s.in_flight, "turns": s.turns, "tokens": s.tokens, "why_out": s.why_out}
            for s in self.servers
        ]

    async def wait_for_one(self, wait_s: float | None) -> None:
        """Return when a server is in. In the pool's loop.

        Raises NoServersLeft after `wait_s` seconds (None: never), and ServerRefusal at once where each server refuses.
        """
        if any(s.up for s in self.servers):
            return
        refusals = [s.refusal for s in self.servers if s.refusal is not None and not s.up]
        if len(refusals) == len(self.servers):
            raise refusals[0]
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: any(s.up for s in self.servers))
        except TimeoutError:
            raise NoServersLeft(f"no rollout server was left for {wait_s:g} s ({self.standing().reasons})") from None

    # ------------------------------------------------------------------------------------------------ inside the loop

    async def _generate(self, request: GenerateRequest, home: Home) -> GenerateAnswer:
        failures: list[str] = []
        refused: set[str] = set()
        while True:
            server = await self._server(home, refused)
            try:
                with self._flight(server):
                    answer = await server.client.generate(request, self.request_timeout_s)
                server.turns += 1
                server.tokens += len(answer.token_ids)
                return answer
            except ServerTrouble as problem:
                failures.append(f"{server.url}: {problem.reason}")
                self._out(server, problem.reason)
                if len(failures) >= max(ATTEMPTS, 2 * len(self.servers)):
                    told = "; ".join(failures[-len(self.servers) :])
                    raise NoServersLeft(f"a request failed {len(failures)} times, last with {told}") from None
            except ServerRefusal:
                refused.add(server.url)
                if all(s.url in refused for s in self.servers if s.up):
                    raise

    async def _server(self, home: Home, refused: set[str]) -> Server:
        """The server of `home` if it is in, else the one with the least to do, which is its home from then on."""
        await self.wait_for_one(self.wait_s)
        up = [s for s in self.servers if s.up and s.url not in refused] or [s for s in self.servers if s.up]
        server = home.server
        if server is None:
            server = up[home.number % len(up)]
        elif server not in up:
            server = min(up, key=lambda s: s.in_flight)
        home.server = server
        return server

    @contextlib.contextmanager
    def _flight(self, server: Server) -> Iterator[None]:
        server.in_flight += 1
        try:
            yield
        finally:
            server.in_flight -= 1

    def _out(self, server: Server, reason: str, refusal: ServerRefusal | None = None) -> None:
        if not server.up:
            return
        server.why_out, server.refusal = reason, refusal
        self._tell(f"rollout server {server.url} is out: {reason}; its rollouts go to others until it is back", False)
        self._keep_trying(server)

    def _keep_trying(self, server: Server) -> None:
        server.retried = True

        async def again() -> None:
            began = time.monotonic()
            while not server.up:
                await asyncio.sleep(PROBE_S)
                await self._try(server)
            server.retried = False
            self._tell(f"rollout server {server.url} is back after {time.monotonic() - began:.0f} s", True)

        task = asyncio.get_running_loop().create_task(again())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, server: Server) -> None:
        """Take a server in, if it is fit."""
        try:
            if self.admit is not None:
                await self.admit(server.client)
        except (ServerTrouble, ServerRefusal) as problem:
            server.why_out = str(problem)
            server.refusal = problem if isinstance(problem, ServerRefusal) else None
            return
        server.why_out, server.refusal = "", None
        async with self._changed:
            self._changed.notify_all()

    def _tell(self, sentence: str, good: bool) -> None:
        try:
            self.tell(sentence, good)
        except Exception:  # whoever listens must not end the servers' loop
            logger.exception("telling of a server")

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._loop.is_running():
            self._loop.close()


def _log(sentence: str, good: bool) -> None:
    logger.log(logging.INFO if good else logging.WARNING, sentence)


@dataclass
class Home:
    """Where the rollouts of one prompt are: chosen at the first request, and again when that server is out."""

    number: int
    server: Server | None = None
