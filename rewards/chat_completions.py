"""A client for any server that implements OpenAI's chat completions API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

from ..configs.errors import GrpoTuiError

AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})
"""HTTP status codes to retry."""
LONGEST_PAUSE_S = 60.0
FAILURES = (OSError, HTTPException, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""Exceptions from a failed connection or a malformed answer."""


class ChatError(GrpoTuiError, RuntimeError):
    """A request failed. The message is one sentence without the API key. `code`: HTTP status (None: no answer)."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the API key to another server."""

    def redirect_request(self, req: object, fp: object, code: int, msg: str, headers: object, newurl: str) -> None:
        return None


class ChatCompletions:
    """The API at `url`, such as `http://127.0.0.1:8000/v1`.

    key: sent as a bearer token, if any. parallel: maximum concurrent requests. timeout: seconds per request. tries:
    maximum attempts while the server is busy, fails or cannot be reached.
    """

    def __init__(self, url: str, key: str, *, parallel: int, timeout: float, tries: int) -> None:
        self.url, self.timeout, self.tries = url.rstrip("/"), timeout, tries
        self._key = key.strip()
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._threads = ThreadPoolExecutor(parallel)

    async def ask(self, body: dict[str, object], tries: int | None = None) -> dict[str, Any]:
        """Return the first choice of the answer, with its `usage`. Raises ChatError."""
        tries = tries or self.tries
        for attempt in range(1, tries + 1):
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._post, body)
            except FAILURES as problem:
                code = getattr(problem, "code", None)
                if attempt == tries or (code is not None and code not in AGAIN):
                    raise ChatError(f"{self.url} did not answer: {self._described(problem)}", code) from None
                headers = getattr(problem, "headers", None)
                retry_after = headers.get("Retry-After", "") if headers is not None else ""
                pause = float(retry_after) if retry_after.isdecimal() else 0.5 * 2**attempt
                await asyncio.sleep(min(pause, LONGEST_PAUSE_S))
        raise AssertionError("unreachable")

    def _post(self, body: dict[str, object]) -> dict[str, object]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(f"{self.url}/chat/completions", json.dumps(body).encode(), headers)
        with self._opener.open(request, timeout=self.timeout) as reply:
            answer = json.load(reply)
        choice = answer["choices"][0]
        for call in choice["message"].get("tool_calls") or ():  # a malformed answer fails here
            call["function"]["name"]
        return {**choice, "usage": dict(answer.get("usage") or {})}

    def _described(self, problem: Exception) -> str:
        text = str(problem) or type(problem).__name__
        if isinstance(problem, urllib.error.HTTPError):
            with contextlib.suppress(OSError, HTTPException):
                text += f" ({message})" if (message := error_message(problem.read(100_000))) else ""
        elif not isinstance(problem, (OSError, HTTPException)):
            text = f"its answer is not a chat completion ({type(problem).__name__}: {text[:80]})"
        return text.replace(self._key, "***") if self._key else text


def error_message(body: bytes) -> str:
    """Extract the error message from a response body, as printable text."""
    text = body[:2000].decode("utf-8", "replace")
    try:
        found = json.loads(body)
        error = found.get("error", found.get("detail", found)) if isinstance(found, dict) else found
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, RecursionError):
        pass
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]
