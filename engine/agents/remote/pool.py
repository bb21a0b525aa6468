"""All servers as one pool: their availability, the distribution of rollouts, and failure handling.

Everything runs in one event loop on its own thread. Trainers call `run`, sessions of any loop call `generate`. A failed
server leaves the pool. Its requests go to another server with the same seeds, which gives the same tokens. Every
`PROBE_S` seconds (less often after repeated failures) a task checks the server, loads the adapters in use, and compares
its log-probs of a fixed text. If they match, it rejoins. A busy server (429, 503) stays and gets a pause. A long turn
is not a failure while its server works.
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
from typing import Any, TypeVar

from ....configs.errors import GrpoTuiError
from ....envs.spans import Spans
from .client import ADMIN_TIMEOUT_S, ServerClient, open_http
from .placement import ALIKE, balance, better, spread
from .protocol import (
    FIRST_PAUSE_S,
    GenerateAnswer,
    GenerateRequest,
    ServerBusy,
    ServerRefusal,
    ServerTrouble,
)
from .server import Homes, Server, Standing

logger = logging.getLogger(__name__)
T = TypeVar("T")

PROBE_S = 2.0
"""Seconds between two attempts to readmit a server."""
MOST_DOUBLINGS = 8
"""The pause doubles with each failure within `server.FORGIVEN` turns, at most this many times."""
SLOW_SHARE = 0.1
"""A server below this share of the rollouts, relative to the fastest, is reported as slow."""
SIGN_TOKENS = 4
"""Tokens of a request that tests whether a server works."""
OVERDUE = 4.0
"""A turn is abandoned after this many times its expected duration."""
ATTEMPTS = 4
"""A request that failed on this many servers in a row is considered faulty itself."""


class NoServersLeft(GrpoTuiError, RuntimeError):
    """No server answered for `rollouts.server_wait_s` seconds."""


class ServerPool:
    """Servers at `urls`.

    request_timeout_s: longer turns are checked. wait_s: how long to wait while no server is in.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        key: str | None = None,
        request_timeout_s: float = 120.0,
        wait_s: float = 300.0,
    ) -> None:
        self.request_timeout_s = request_timeout_s
        self.wait_s = wait_s
        self.tell: Callable[[str, bool], object] = _log
        """Receives a message about a server that goes out or comes back, and whether it is good news, on the pool's
        thread."""
        self.admit: Callable[[ServerClient], Awaitable[None]] | None = None
        """Prepares and verifies a server before it is in. Raises ServerTrouble if it is not ready."""
        self.spans = Spans()
        """When each server wrote turns, by its address."""
        self._http = open_http()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollout servers", daemon=True)
        self._thread.start()
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self.servers = [Server(ServerClient(url, self._http, key)) for url in urls]

    def close(self) -> None:
        if not self._thread.is_alive():
            return

        async def end() -> None:
            others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._http.aclose()

        self.run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._loop.is_running():
            self._loop.close()

    def begin(self, work: Coroutine[object, None, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[object, None, T]) -> T:
        return self.begin(work).result()

    async def generate(self, request: GenerateRequest, homes: Homes, row: int) -> GenerateAnswer:
        """Return the answer to a request from the home of rollout `row` or another server; awaitable in any loop.

        Raises NoServersLeft, and ServerRefusal if every available server refuses.
        """
        return await asyncio.wrap_future(self.begin(self._generate(request, homes, row)))

    def homes(self, prompts: int, rollouts: int) -> Homes:
        self._turn += 1
        return Homes(prompts, rollouts, self._turn)

    async def take_in(self) -> None:
        """Try to admit every server that was not asked yet. Call it in the pool's loop."""
        new = [s for s in self.servers if not s.up and not s.retried and not s.left]
        await asyncio.gather(*(self._try(s) for s in new))
        for server in new:
            if not server.up:
                if any(s.up for s in self.servers):
                    self._tell(f"rollout server {server.url} is not used: {server.why_out}", False)
                self._keep_trying(server)

    def leave(self, url: str, reason: str) -> bool:
        """Remove a server, unless it is the last one. Returns whether it was removed. Call it on any thread."""

        async def leave() -> bool:
            server = next(s for s in self.servers if s.url == url)
            others = any(s.up for s in self.servers if s is not server)
            if others:
                server.why_out, server.left = reason, True
                self._tell(f"rollout server {url} leaves the pool: {reason}. Restart the server, then the run.", False)
            else:
                self._tell(f"rollout server {url} is the last one and stays: {reason}", False)
            return others

        return self.run(leave())

    def restore_shares(self) -> None:
        """Restore the share of slow servers that passed verification as fast as others. Call it in the pool's loop."""
        proving = [s.client.proved_in_s for s in self.servers if s.up and s.client.proved_in_s]
        for server in self.servers:
            if server.up and server.load.share < SLOW_SHARE and server.client.proved_in_s <= ALIKE * min(proving):
                server.slow = False
                server.load.forget()

    async def each(self, action: Callable[[ServerClient], Awaitable[None]]) -> None:
        """Run an action on each available server; one that fails goes out. Call it in the pool's loop."""

        async def one(server: Server) -> None:
            try:
                await action(server.client)
            except (ServerTrouble, ServerRefusal) as problem:
                self._take_out(server, str(problem), problem if isinstance(problem, ServerRefusal) else None)

        await asyncio.gather(*(one(s) for s in self.servers if s.up))

    def standing(self) -> Standing:
        """Return the available servers and the reasons for others. Call it on any thread."""
        out = {s.url: s.why_out for s in self.servers if not s.up}
        return Standing(len(self.servers) - len(out), len(self.servers), out)

    def measured(self, found: Mapping[str, tuple[float, float]]) -> None:
        """Record the mismatch and the age of the turns that each server wrote for a step (`ServerState`)."""
        for server in self.servers:
            server.mismatch, server.behind = found.get(server.url, (None, None))

    def states(self) -> list[dict[str, Any]]:
        return [
            {
                "url": s.url,
                "in_flight": s.load.in_flight,
                **{name: getattr(s, name) for name in ("turns", "tokens", "why_out", "mismatch", "behind")},
            }
            for s in self.servers
        ]

    async def wait_for_one(self, wait_s: float | None) -> None:
        """Return when a server is available. Call it in the pool's loop.

        Raises NoServersLeft after `wait_s` seconds (None: never), and ServerRefusal at once if each server refuses.
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
            raise NoServersLeft(
                f"no rollout server was available for {wait_s:g} s ({self.standing().reasons})"
            ) from None

    # ------------------------------------------------------------------------------------------------ inside the loop

    async def _generate(self, request: GenerateRequest, homes: Homes, row: int) -> GenerateAnswer:
        failures: list[str] = []
        refused: set[str] = set()
        busy_until = time.monotonic() + max(self.wait_s, self.request_timeout_s)
        while True:
            server = await self._server(homes, row, refused)
            sent = time.monotonic()
            try:
                return await self._ask(server, request)
            except ServerBusy as problem:
                server.pause(problem, sent)
                if min((s.busy_until for s in self.servers if s.up), default=0.0) > busy_until:
                    raise NoServersLeft(f"rollout servers accept no requests: {server.url}: {problem}") from None
            except ServerTrouble as problem:
                failures.append(f"{server.url}: {problem}")
                self._take_out(server, str(problem))
                if len(failures) >= max(ATTEMPTS, 2 * len(self.servers)):
                    reasons = "; ".join(failures[-len(self.servers) :])
                    raise NoServersLeft(f"a request failed {len(failures)} times, most recently: {reasons}") from None
            except ServerRefusal:
                refused.add(server.url)
                if all(s.url in refused for s in self.servers if s.up):
                    raise

    async def _server(self, homes: Homes, row: int, refused: set[str]) -> Server:
        """Return the rollout's server, a new one if that is out or overloaded, or another one while it is busy."""
        while True:
            await self.wait_for_one(self.wait_s)
            up = [s for s in self.servers if s.up and s.url not in refused] or [s for s in self.servers if s.up]
            now = time.monotonic()
            free = [s for s in up if s.busy_until <= now]
            if free:
                break
            await asyncio.sleep(min(s.busy_until for s in up) - now + random.uniform(0.0, FIRST_PAUSE_S))
        loads = [s.load for s in up]
        if not homes.servers:
            homes.servers = [up[i] for i in spread(loads, homes.prompts, homes.rollouts, homes.turn)]
        home = homes.servers[row]
        if home not in up:
            home = min(up, key=lambda s: s.load.crowd())
        home = homes.servers[row] = up[better(loads, up.index(home), homes.rollouts)]
        return home if home in free else min(free, key=lambda s: s.load.crowd())

    async def _ask(self, server: Server, request: GenerateRequest) -> GenerateAnswer:
        """Request one turn, with no time limit while its server works (`_watch`)."""
        started, tokens = server.load.begin(), 0
        turn = asyncio.ensure_future(server.client.generate(request))
        try:
            while not (await asyncio.wait({turn}, timeout=self.request_timeout_s))[0]:
                await self._watch(server, request, started)
            answer = turn.result()
            tokens = len(answer.token_ids)
            server.answered(started, tokens)
            return dataclasses.replace(answer, server=server.url)
        finally:
            turn.cancel()
            server.load.end(started, tokens)
            if tokens:
                balance([s.load for s in self.servers if s.up])
                self._note_slow_servers()

    def _note_slow_servers(self) -> None:
        paces = [s.load.pace for s in self.servers if s.up and s.load.pace]
        for server in self.servers:
            pace = server.load.pace or 0.0
            if server.up and not server.slow and server.load.share < SLOW_SHARE and pace > 2 * min(paces):
                server.slow = True
                self._tell(
                    f"rollout server {server.url} is slow: {pace:.2g} s per token, against {min(paces):.2g} s on the "
                    "fastest. It gets few rollouts.",
                    False,
                )

    async def _watch(self, server: Server, request: GenerateRequest, started: float) -> None:
        """Raise ServerTrouble for a long turn if its server writes nothing else either, or would have finished it at
        its usual pace."""
        probed, pace = time.monotonic(), server.load.pace or 0.0
        if probed - server.heard > self.request_timeout_s:
            sign = dataclasses.replace(
                request, max_tokens=SIGN_TOKENS, request_id=f"probe-alive-{random.getrandbits(32):08x}"
            )
            try:
                answer = await server.client.patiently(lambda: server.client.generate(sign, ADMIN_TIMEOUT_S))
            except ServerTrouble as problem:
                if server.heard < probed:
                    waited = probed - started
                    raise ServerTrouble(f"a turn is not finished after {waited:.0f} s; {problem}") from None
            else:
                server.heard = time.monotonic()
                pace = max(pace, (server.heard - probed) / len(answer.token_ids))
        if probed - started > OVERDUE * request.max_tokens * pace:
            raise ServerTrouble(
                f"a turn of at most {request.max_tokens} tokens is not finished after {probed - started:.0f} s, at "
                f"{pace:.2g} s per token for others"
            )

    def _take_out(self, server: Server, reason: str, refusal: ServerRefusal | None = None) -> None:
        if not server.up:
            return
        server.why_out, server.refusal = reason, refusal
        server.failures, server.since_failure = server.failures + 1, 0
        server.client.forget()
        self._tell(
            f"rollout server {server.url} is unavailable: {reason}; its rollouts go to other servers until it is back",
            False,
        )
        self._keep_trying(server)

    def _keep_trying(self, server: Server) -> None:
        server.retried = True

        async def again() -> None:
            started = time.monotonic()
            while not server.up and not server.left:
                await asyncio.sleep(PROBE_S * 2 ** min(max(server.failures - 1, 0), MOST_DOUBLINGS))
                await self._try(server)
            server.retried = False
            if server.left:
                return
            server.load.forget()
            self._tell(f"rollout server {server.url} is back after {time.monotonic() - started:.0f} s", True)

        task = asyncio.get_running_loop().create_task(again())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, server: Server) -> None:
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
        except Exception:  # a listener must not end the servers' loop
            logger.exception("reporting a change of a rollout server failed")


def record_change(event: Callable[..., object], sentence: str, good: bool, **more: object) -> None:
    """Report a server in a run's record. event: `RunWriter.event` or `StepRecorder.event`."""
    facts = {"detector": "rollout_servers", "subject": "", "value": 0.0, "threshold": 0.0, "trajectories": []}
    event("note" if good else "alert", sentence, severity="good" if good else "warning", **facts, **more)


def _log(sentence: str, good: bool) -> None:
    logger.log(logging.INFO if good else logging.WARNING, sentence)
