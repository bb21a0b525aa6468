"""All servers as one: who is in, where rollouts go, and what happens when one fails.

Everything here runs in one event loop on a thread of its own; trainers call `run`, and sessions of any loop `generate`.
A server that failed is out: what it was asked is asked of another one, with the same seeds, so that the tokens are the
same ones. A task asks it every `PROBE_S` seconds (less often where it keeps failing) whether it serves, gives it the
adapters that are in use, and compares what it says of a fixed text; then it is in again. A server that is busy (429,
503) stays in and has its pause. A turn that takes long is no failure as long as the server works.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ....configs.errors import GrpoTuiError
from .client import ADMIN_TIMEOUT_S, ServerClient, open_http
from .placement import ALIKE, Load, balance, better, spread
from .protocol import (
    FIRST_PAUSE_S,
    GenerateAnswer,
    GenerateRequest,
    ServerBusy,
    ServerRefusal,
    ServerTrouble,
)

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)
T = TypeVar("T")

NOT_ASKED = "it was not asked yet"
PROBE_S = 2.0
"""Seconds between two attempts to take a server in again."""
FORGIVEN, MOST_DOUBLINGS = 64, 8
"""The pause doubles, so many times at most, with each failure of a server that wrote fewer than so many turns since."""
SLOW_SHARE = 0.1
"""A server with a smaller share of the rollouts than this, relative to the quickest, is called slow."""
SIGN_TOKENS = 4
"""Tokens by which a server shows that it works."""
OVERDUE = 4.0
"""A turn is given up that takes so many times as long as the server's pace makes likely."""
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
    retried: somebody asks it from time to time whether it is fit again, or it has left for good. turns, tokens: that it
    wrote so far. failures: in a row, with fewer than `FORGIVEN` turns (`since_failure`) in between. heard: when it gave
    an answer last."""

    client: ServerClient
    why_out: str = NOT_ASKED
    refusal: ServerRefusal | None = None
    retried: bool = False
    load: Load = field(default_factory=Load)
    failures: int = 0
    turns: int = 0
    tokens: int = 0
    since_failure: int = 0
    heard: float = 0.0
    busy_until: float = 0.0
    pauses: int = 0
    left: bool = False
    slow: bool = False
    """Whether that was told."""
    _pause_began: float = 0.0

    @property
    def up(self) -> bool:
        """Whether the server is asked."""
        return not self.why_out

    @property
    def url(self) -> str:
        """The server's address."""
        return self.client.url

    def pause(self, busy: ServerBusy, asked: float) -> None:
        """It asked for a pause, when it was asked at that time: of requests that were sent together one counts."""
        if asked >= self._pause_began:
            self.pauses += 1
            self._pause_began = time.monotonic()
        self.busy_until = max(self.busy_until, time.monotonic() + busy.pause_s(self.pauses - 1))

    def answered(self, asked: float, tokens: int) -> None:
        """It wrote a turn of so many tokens that it was asked for at that time."""
        self.heard = time.monotonic()
        self.turns += 1
        self.tokens += tokens
        self.since_failure += 1
        if asked >= self._pause_began:
            self.pauses = 0
        if self.since_failure >= FORGIVEN:
            self.failures = 0


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
    """Servers at `urls`. request_timeout_s: a turn that takes longer is looked after. wait_s: how long to wait while
    none is in.

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

    def homes(self, prompts: int, rollouts: int) -> list[Home]:
        """Places for so many rollouts of each prompt, prompt-major; `placement.spread` chooses servers when the first
        one begins."""
        self._turn += 1
        homes: list[Home] = []
        homes += [Home(homes, prompts, rollouts, self._turn) for _ in range(prompts * rollouts)]
        return homes

    async def take_in(self) -> None:
        """Have every server that was not asked yet try to come in, and wait until each has. In the pool's loop."""
        new = [s for s in self.servers if not s.up and not s.retried and not s.left]
        await asyncio.gather(*(self._try(s) for s in new))
        for server in new:
            if not server.up:
                if any(s.up for s in self.servers):
                    self._tell(f"rollout server {server.url} is not taken in: {server.why_out}", False)
                self._keep_trying(server)

    def leave(self, url: str, reason: str) -> bool:
        """Take a server out for good, unless it is the last one that is in; whether it was taken out. On any thread."""

        async def leave() -> bool:
            server = next(s for s in self.servers if s.url == url)
            others = any(s.up for s in self.servers if s is not server)
            if others:
                server.why_out, server.left = reason, True
                self._tell(f"rollout server {url} leaves the pool: {reason}; restart it, and then the run", False)
            else:
                self._tell(f"rollout server {url} is the last one and stays: {reason}", False)
            return others

        return self.run(leave())

    def weigh_anew(self) -> None:
        """Give slow servers that proved a version as quickly as the others their full share. In the pool's loop."""
        proving = [s.client.proved_in_s for s in self.servers if s.up and s.client.proved_in_s]
        for server in self.servers:
            if server.up and server.load.share < SLOW_SHARE and server.client.proved_in_s <= ALIKE * min(proving):
                server.slow = False
                server.load.forget()

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
            {"url": s.url, "in_flight": s.load.under_way, "turns": s.turns, "tokens": s.tokens, "why_out": s.why_out}
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
        busy_until = time.monotonic() + max(self.wait_s, self.request_timeout_s)
        while True:
            server = await self._server(home, refused)
            asked = time.monotonic()
            try:
                return await self._ask(server, request)
            except ServerBusy as problem:
                server.pause(problem, asked)
                if min((s.busy_until for s in self.servers if s.up), default=0.0) > busy_until:
                    raise NoServersLeft(f"rollout servers take no request: {server.url}: {problem.reason}") from None
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
        """The server at which a rollout is at home. One that is out, or far more loaded than another, is so no longer;
        while it is busy, another writes."""
        while True:
            await self.wait_for_one(self.wait_s)
            up = [s for s in self.servers if s.up and s.url not in refused] or [s for s in self.servers if s.up]
            now = time.monotonic()
            free = [s for s in up if s.busy_until <= now]
            if free:
                break
            await asyncio.sleep(min(s.busy_until for s in up) - now + random.uniform(0.0, FIRST_PAUSE_S))
        if home.server is None:
            home.place(up)
        if home.server not in up:
            home.server = min(up, key=lambda s: s.load.crowd())
        assert home.server is not None
        home.server = up[better([s.load for s in up], up.index(home.server), home.rollouts)]
        return home.server if home.server in free else min(free, key=lambda s: s.load.crowd())

    async def _ask(self, server: Server, request: GenerateRequest) -> GenerateAnswer:
        """One turn, which takes as long as it takes while its server works (`_look_after`)."""
        began, tokens = server.load.begin(), 0
        turn = asyncio.ensure_future(server.client.generate(request))
        try:
            while not (await asyncio.wait({turn}, timeout=self.request_timeout_s))[0]:
                await self._look_after(server, request, began)
            answer = turn.result()
            tokens = len(answer.token_ids)
            server.answered(began, tokens)
            return dataclasses.replace(answer, server=server.url)
        finally:
            turn.cancel()
            server.load.end(began, tokens)
            if tokens:
                balance([s.load for s in self.servers if s.up])
                self._note_slow_ones()

    def _note_slow_ones(self) -> None:
        paces = [s.load.pace for s in self.servers if s.up and s.load.pace]
        for server in self.servers:
            pace = server.load.pace or 0.0
            if server.up and not server.slow and server.load.share < SLOW_SHARE and pace > 2 * min(paces):
                server.slow = True
                self._tell(
                    f"rollout server {server.url} is slow: {pace:.2g} s a token, {min(paces):.2g} s on the quickest; "
                    "it gets few rollouts",
                    False,
                )

    async def _look_after(self, server: Server, request: GenerateRequest, began: float) -> None:
        """Raises ServerTrouble where a turn that takes long will not be written: where the server writes nothing else
        either, or at its pace would have written it long ago."""
        asked, pace = time.monotonic(), server.load.pace or 0.0
        if asked - server.heard > self.request_timeout_s:
            sign = dataclasses.replace(
                request, max_tokens=SIGN_TOKENS, request_id=f"probe-alive-{random.getrandbits(32):08x}"
            )
            try:
                answer = await server.client.patiently(lambda: server.client.generate(sign, ADMIN_TIMEOUT_S))
            except ServerTrouble as problem:
                if server.heard < asked:
                    raise ServerTrouble(f"a turn is not done after {asked - began:.0f} s; {problem.reason}") from None
            else:
                server.heard = time.monotonic()
                pace = max(pace, (server.heard - asked) / len(answer.token_ids))
        if asked - began > OVERDUE * request.max_tokens * pace:
            raise ServerTrouble(
                f"a turn of at most {request.max_tokens} tokens is not done after {asked - began:.0f} s, "
                f"at {pace:.2g} s a token for others"
            )

    def _out(self, server: Server, reason: str, refusal: ServerRefusal | None = None) -> None:
        if not server.up:
            return
        server.why_out, server.refusal = reason, refusal
        server.failures, server.since_failure = server.failures + 1, 0
        server.client.forget()
        self._tell(f"rollout server {server.url} is out: {reason}; its rollouts go to others until it is back", False)
        self._keep_trying(server)

    def _keep_trying(self, server: Server) -> None:
        server.retried = True

        async def again() -> None:
            began = time.monotonic()
            while not server.up and not server.left:
                await asyncio.sleep(PROBE_S * 2 ** min(max(server.failures - 1, 0), MOST_DOUBLINGS))
                await self._try(server)
            server.retried = False
            if server.left:
                return
            server.load.forget()
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
        if server.left:
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
    """Where a rollout's turns are written. together: those of its session, `prompts` times `rollouts`; turn: the
    session's number."""

    together: list[Home]
    prompts: int
    rollouts: int
    turn: int
    server: Server | None = None

    def place(self, servers: Sequence[Server]) -> None:
        """Choose the servers of the whole session."""
        numbers = spread([s.load for s in servers], self.prompts, self.rollouts, self.turn)
        for home, number in zip(self.together, numbers, strict=True):
            home.server = servers[number]
