"""Client of an online run, on the standard library only: texts, feedback, and answers without feedback."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TOKEN_VARIABLE = "GRPO_TUI_TOKEN"
TIMEOUT_S = 180.0


class ServerProblem(Exception):
    """The server cannot be reached or refuses; the message is for a person."""


class ChatClient:
    """The server whose address is in the folder of a run. Every method raises ServerProblem."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def models(self) -> list[str]:
        """The served policy's name first, then `name@version` for each version that can be asked."""
        return [str(m["id"]) for m in self._json("GET", "/v1/models")["data"]]

    def write(self, model: str, messages: list[dict[str, str]], on_text: Callable[[str], None]) -> dict[str, Any]:
        """Stream an answer; returns its `id` and `policy_version`."""
        body = {"model": model, "messages": messages, "stream": True}
        response = self._open("POST", "/v1/chat/completions", body)
        found: dict[str, Any] = {}
        try:
            for line in response:
                data = line.decode("utf-8", "replace").strip().removeprefix("data: ")
                if not data.startswith("{"):
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise ServerProblem(str(event["error"].get("message")))
                found["id"] = event["id"]
                found["policy_version"] = event.get("grpo_tui", {}).get("policy_version")
                for choice in event["choices"]:
                    on_text(str(choice["delta"].get("content") or ""))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ServerProblem(f"the answer broke off: {error}") from error
        finally:
            response.close()
        return found

    def feedback(self, **said: Any) -> dict[str, Any]:
        """Send feedback; returns its outcome so far."""
        return self._json("POST", "/v1/feedback", said)

    def outcome(self, identifier: str) -> dict[str, Any]:
        """How far earlier feedback is."""
        return self._json("GET", f"/v1/feedback/{identifier}")

    def unjudged(self) -> list[dict[str, Any]]:
        """Answers without feedback, the least certain first."""
        return list(self._json("GET", "/v1/feedback")["answers"])

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        response = self._open(method, path, body)
        try:
            return json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ServerProblem(f"the reply cannot be read: {error}") from error
        finally:
            response.close()

    def _open(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> http.client.HTTPResponse:
        try:
            url = urlsplit(str(json.loads((self.run / "online" / "address.json").read_bytes())["url"]))
            host, port = url.hostname or "127.0.0.1", url.port or 80
        except (OSError, ValueError, KeyError) as error:
            raise ServerProblem("this run does not serve over HTTP now; start it with --serve HOST:PORT") from error
        if url.scheme == "https":
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=TIMEOUT_S, context=ssl.create_default_context()
            )
        else:
            made = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get(TOKEN_VARIABLE, "").split():
            headers["Authorization"] = f"Bearer {token[0]}"
        try:
            made.request(method, path, None if body is None else json.dumps(body), headers)
            response = made.getresponse()
            if response.status >= 400:
                raise ServerProblem(_message(response.read()) or f"the server answers {response.status}")
            return response
        except (OSError, http.client.HTTPException) as error:
            raise ServerProblem(f"the server cannot be reached: {error}") from error


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
