"""Access control and size limits, checked before any other code reads a request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from .....envs.calls import finite
from .problems import HttpProblem

MAX_DEPTH = 64
MAX_DIGITS = 300
BODY_SECONDS = 30.0
"""Time limit for the body of a request."""


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback one, reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Guard:
    """Access rules. tokens: a caller must send one of these secrets (empty: open access). loopback: without tokens, the
    `Host` header must name this machine, which prevents DNS rebinding by web pages.
    """

    loopback: bool
    tokens: Sequence[str] = ()
    max_body_bytes: int = 8 * 2**20

    def admit(self, request: Request) -> None:
        """Raise HttpProblem for a caller without access."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1:
            raise HttpProblem(400, f"send one Host header, not {len(hosts)}")
        if self.loopback and not self.tokens:
            name = hosts[0].rpartition(":")[0] if hosts[0].rpartition(":")[2].isdigit() else hosts[0]
            if not is_loopback(name.strip("[]")):
                fix = "Behind a proxy, set GRPO_TUI_TOKEN, or let it send this server's address"
                given = f"the Host header {hosts[0][:200]!r} does not name the loopback interface"
                raise HttpProblem(403, f"{given}. {fix}")
        if self.tokens and self._token(request) is None:
            raise HttpProblem(401, "a token is needed: send `Authorization: Bearer <token>`", code="invalid_api_key")

    def source(self, request: Request, user: str | None) -> str:
        """Return the source of a request, `caller` or `caller/user` in hashed form, for `learn.influence`.

        The caller is identified by its token, or by its address if there are no tokens (for IPv6, the /64 network).
        `user` is unverified, so it only counts within its caller.
        """
        token = self._token(request)
        caller = f"token-{token + 1}" if token is not None else f"address-{_digest(_network(request))}"
        return f"{caller}/{_digest(user)}" if user else caller

    def _token(self, request: Request) -> int | None:
        """Return the index of the token that was sent; None if it is missing or unknown."""
        kind, _, credentials = request.headers.get("authorization", "").partition(" ")
        sent = credentials.strip().encode()
        known = [hmac.compare_digest(sent, token.encode()) for token in self.tokens]
        return known.index(True) if kind.lower() == "bearer" and any(known) else None

    async def json_body(self, request: Request) -> dict[str, object]:
        """Read the JSON object in a request's body. Raises HttpProblem."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HttpProblem(415, "send `Content-Type: application/json`")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HttpProblem(415, "send the body without a Content-Encoding")
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit():
            if len(length) > 18 or int(length) > self.max_body_bytes:
                raise HttpProblem(413, f"the body has {length[:18]} bytes, the limit is {self.max_body_bytes}")
        elif "transfer-encoding" not in request.headers:
            raise HttpProblem(411, "send a Content-Length, or the body in chunks")
        try:
            body = await asyncio.wait_for(self._body(request), BODY_SECONDS)
        except TimeoutError:
            raise HttpProblem(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise HttpProblem(400, "the body ended early") from None
        data = parsed(body)
        if not isinstance(data, dict):
            raise HttpProblem(400, f"the body must be a JSON object, not {type(data).__name__}")
        return data

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.max_body_bytes:
                raise HttpProblem(413, f"the body has more bytes than the limit of {self.max_body_bytes}")
        return bytes(body)


def parsed(body: bytes) -> object:
    """Parse a body as unambiguous JSON: no duplicate keys, lone surrogates or deep nesting. Raises HttpProblem."""
    try:
        text = body.decode("utf-8-sig")
        data = json.loads(
            text, parse_constant=_no_constant, object_pairs_hook=_object, parse_int=_number, parse_float=finite
        )
    except RecursionError:
        raise HttpProblem(400, "the JSON is nested too deeply") from None
    except ValueError as error:
        raise HttpProblem(400, f"the body is not JSON: {error}") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        raise HttpProblem(400, f"the JSON is nested too deeply: at most {MAX_DEPTH} levels")
    if "\\ud" in text.lower():  # perhaps a lone surrogate, which cannot be encoded
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HttpProblem(400, "the body contains half a character (a lone surrogate)") from None
    return data


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(repeated, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated[:80]!r} occurs twice")
    return found


def _number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _depth(data: object) -> int:
    """Return the nesting depth of lists and objects, without recursion."""
    depth, level = 0, [data]
    while level := [v for v in level if isinstance(v, (dict, list))]:
        depth += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return depth


def _network(request: Request) -> str:
    host = "" if request.client is None else request.client.host
    try:
        return str(ipaddress.ip_network(f"{host}/{64 if ':' in host else 32}", strict=False))
    except ValueError:
        return host


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
