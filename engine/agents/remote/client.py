"""One inference server over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from ....configs.errors import GrpoTuiError
from ....rewards.chat_completions import error_message
from .protocol import GenerateAnswer, GenerateRequest, ServerBusy, ServerRefusal, ServerTrouble

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

ADMIN_TIMEOUT_S = 60.0
"""Time limit of administrative calls."""
CONNECTIONS = 1024

SCALE_OUT = "start it with --enable-scale-out"
LORA = "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
KEY = "set the key that rollouts.api_key_env names"


class MissingHTTPClient(GrpoTuiError, ImportError):
    """httpx is not installed."""


class ServerClient:
    """A server at `url`. Raises ServerTrouble for a failure, ServerRefusal for a permanent refusal.

    http: the shared client of the event loop. key: sent as a bearer token.
    """

    def __init__(self, url: str, http: httpx.AsyncClient, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = http
        self._free = asyncio.Condition()
        self._in_flight = 0
        self._probed = False
        self._probes_alone: bool | None = None
        self.proved_in_s = 0.0
        """Seconds it took to verify the last version; 0 before the first."""
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    async def generate(self, request: GenerateRequest, timeout_s: float | None = None) -> GenerateAnswer:
        """Write one turn within `timeout_s` (None: no limit).

        On a CPU, a request for prompt log-probs runs alone, because vLLM's LoRA crashes if other requests run with it
        (0.32: "einsum(): subscript b has size ...": it looks up the rows of the prompt in a table of the requests;
        github.com/vllm-project/vllm, 16668 and 51594, are open).
        """
        alone = request.prompt_logprobs and await self._is_on_cpu()
        async with self._place(alone):
            body = await self._call("POST", "/inference/v1/generate", request.to_json(), timeout_s)
        return GenerateAnswer.from_json(body, request)

    async def patiently(self, ask: Callable[[], Awaitable[T]], patience_s: float = ADMIN_TIMEOUT_S) -> T:
        """Return the result of `ask`, pausing while the server is busy. Raises ServerBusy after `patience_s`."""
        until = time.monotonic() + patience_s
        for pauses in itertools.count():
            try:
                return await ask()
            except ServerBusy as busy:
                pause = busy.pause_s(pauses)
                if time.monotonic() + pause > until:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError

    def forget(self) -> None:
        self._probes_alone = None

    async def _is_on_cpu(self) -> bool:
        """Return whether the server runs on a CPU, in which case it reports the memory of its CPU cache."""
        if self._probes_alone is None:
            with contextlib.suppress(ServerRefusal, ServerTrouble):
                found = await self.patiently(lambda: self._call("GET", "/metrics"))
                self._probes_alone = re.search(rb'cpu_kvcache_space_bytes="\d', found) is not None
        if self._probes_alone is None:
            self._probes_alone = "cpu" in await self.version()
        return self._probes_alone

    @contextlib.asynccontextmanager
    async def _place(self, alone: bool) -> AsyncIterator[None]:
        async with self._free:
            await self._free.wait_for(lambda: not self._probed)
            self._probed = alone
            try:
                await self._free.wait_for(lambda: not alone or not self._in_flight)
            except BaseException:
                self._probed = False
                self._free.notify_all()
                raise
            self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            async with self._free:
                self._probed = self._probed and not alone
                self._free.notify_all()

    async def version(self) -> str:
        return str(self._field(await self._admin("GET", "/version"), "version"))

    async def models(self) -> dict[str, str]:
        """Return the served names, the base model's first, and the folder of each."""
        found = self._field(await self._admin("GET", "/v1/models"), "data")
        try:
            return {str(m["id"]): str(m.get("root") or "") for m in found}  # type: ignore[attr-defined]
        except (TypeError, KeyError, AttributeError):
            raise ServerTrouble("its list of models cannot be read") from None

    async def load(self, name: str, folder: str) -> None:
        """Load the adapters in `folder`, a path on the server's machine, as `name`."""
        if (await self.models()).get(name) == folder:
            return  # names are never reused, so it is the same
        body = json.dumps({"lora_name": name, "lora_path": folder}).encode()
        await self._admin("POST", "/v1/load_lora_adapter", body)

    async def unload(self, name: str) -> None:
        if name in await self.models():
            await self._admin("POST", "/v1/unload_lora_adapter", json.dumps({"lora_name": name}).encode())

    async def _admin(self, method: str, path: str, body: bytes | None = None) -> bytes:
        return await self.patiently(lambda: self._call(method, path, body))

    async def _call(
        self, method: str, path: str, body: bytes | None = None, timeout_s: float | None = ADMIN_TIMEOUT_S
    ) -> bytes:
        import httpx

        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._http.request(method, self.url + path, content=body, headers=self._headers)
        except TimeoutError:
            raise ServerTrouble(f"it did not answer within {timeout_s:g} s") from None
        except httpx.InvalidURL as problem:
            raise ServerRefusal(f"rollouts.servers: {self.url} is not a server address ({problem})") from problem
        except httpx.HTTPError as problem:
            reason = str(problem) or type(problem).__name__
            raise ServerTrouble(f"it cannot be reached ({reason[:120]})") from None
        if answer.status_code == 200:
            return answer.content
        reason = error_message(answer.content)
        if answer.status_code in (429, 503):
            retry_after_s = _seconds(answer.headers.get("retry-after", ""))
            raise ServerBusy(f"it is busy ({answer.status_code}: {reason})", retry_after_s)
        if answer.status_code in (401, 403):
            advice = KEY if answer.status_code == 401 else SCALE_OUT
            raise ServerRefusal(f"the server {self.url} refuses {path} ({answer.status_code}: {reason}); {advice}")
        if answer.status_code in (404, 405) and path.endswith("lora_adapter") and "lora" not in reason.lower():
            raise ServerRefusal(f"the server {self.url} cannot load adapters; {LORA}")
        if answer.status_code in (400, 413, 422):
            raise ServerRefusal(f"the server {self.url} refuses a request to {path} ({answer.status_code}: {reason})")
        raise ServerTrouble(f"it answered {answer.status_code} to {path} ({reason})")

    @staticmethod
    def _field(body: bytes, name: str) -> object:
        try:
            return json.loads(body)[name]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise ServerTrouble("its answer cannot be read") from None


def open_http() -> httpx.AsyncClient:
    """Return an HTTP client for one event loop. Raises MissingHTTPClient."""
    try:
        import httpx
    except ImportError:
        raise MissingHTTPClient(
            "rollouts on servers need an HTTP client, which is not installed: pip install 'grpo-tui[vllm]'"
        ) from None
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    # Servers are named by address. The environment's proxies are for the outside world.
    return httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)


def _seconds(retry_after: str) -> float | None:
    """Parse the header `Retry-After`: seconds, or a date."""
    try:
        if retry_after.strip().isdigit():
            return float(retry_after)
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None
