"""Chat with the policy of an online run, and rate its answers.

The user can rate and correct an answer. The screen shows when a version that learnt from it serves, and asks that
version the same question again. `i` shows the answer without feedback that the policy is least certain of.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from rich.style import Style

from ....engine.runs.control.requests import request
from ....engine.runs.control.status import look
from ....engine.runs.errors import RecordError
from ..data import Reads
from ..widgets.pane import Line, Pane, wrapped
from ..widgets.prompt_bar import ask
from .base import AppScreen

T = TypeVar("T")
TOKEN_VARIABLE = "GRPO_TUI_TOKEN"
TIMEOUT_S = 180.0
_BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, http.client.HTTPException)
"""Errors of a broken connection, or of a reply that is not from our server."""


class ServerProblem(Exception):
    """The server cannot be reached or refuses. The message is for the user."""


class ChatClient:
    """The server whose address is in a run's folder. Every method raises ServerProblem."""

    def __init__(self, run: Path) -> None:
        self.address = run / "online" / "address.json"
        """The server writes this file once it answers requests."""

    def models(self) -> list[str]:
        """Return the served policy's name, then `name@version` for each version that can be asked."""
        with _readable("the reply cannot be read"):
            served, *versions = self._json("GET", "/v1/models")["data"]
            return [str(model["id"]) for model in (served, *versions)]

    def write(self, model: str, messages: list[dict[str, str]], on_text: Callable[[str], None]) -> dict[str, object]:
        """Stream an answer. Returns its `id` and `policy_version`."""
        body = {"model": model, "messages": messages, "stream": True}
        found: dict[str, object] = {}
        with self._open("POST", "/v1/chat/completions", body) as response, _readable("the answer was cut off"):
            for line in response:
                data = line.decode("utf-8", "replace").strip().removeprefix("data: ")
                if data == "[DONE]":
                    return found
                if not data.startswith("{"):
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise ServerProblem(str(event["error"].get("message")))
                found["id"] = event["id"]
                found["policy_version"] = event.get("grpo_tui", {}).get("policy_version")
                for choice in event["choices"]:
                    on_text(str(choice["delta"].get("content") or ""))
        raise ServerProblem("the answer was cut off: the server has ended")

    def feedback(self, **said: object) -> dict[str, Any]:
        """Send feedback. Returns its outcome so far."""
        return self._json("POST", "/v1/feedback", said)

    def outcome(self, identifier: str) -> dict[str, Any]:
        """Return the outcome so far of earlier feedback."""
        return self._json("GET", f"/v1/feedback/{identifier}")

    def unjudged(self) -> list[dict[str, object]]:
        """Return answers without feedback, least certain first."""
        return list(self._json("GET", "/v1/feedback")["answers"])

    def _json(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        with self._open(method, path, body) as response, _readable("the reply cannot be read"):
            return json.loads(response.read())

    def _open(self, method: str, path: str, body: Mapping[str, object] | None = None) -> http.client.HTTPResponse:
        try:
            found = json.loads(self.address.read_bytes())
            address, certificate = str(found["url"]).rstrip("/"), found.get("certificate")
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ServerProblem("this run does not serve over HTTP; start it with --serve HOST:PORT") from error
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get(TOKEN_VARIABLE, "").split():
            headers["Authorization"] = f"Bearer {token[0]}"
        data = None if body is None else json.dumps(body).encode()
        try:
            trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of the server's own certificate, whatever host it names
            trust.check_hostname = False
            if certificate is not None:
                trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
                trust.load_verify_locations(certificate)
            opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trust))
            return opener.open(Request(address + path, data, headers, method=method), timeout=TIMEOUT_S)
        except HTTPError as error:
            message = f"the server returned status {error.code}"
            with error, suppress(*_BROKEN):
                message = str(json.loads(error.read())["error"]["message"])
            if error.code == 401:
                message = f"the server accepts other tokens: start the app with {TOKEN_VARIABLE} set to one of them"
            raise ServerProblem(message) from error
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: a token that no header accepts
            raise ServerProblem(f"the server cannot be reached: {getattr(error, 'reason', error)}") from error


@contextmanager
def _readable(problem: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise ServerProblem(f"{problem}: {error}") from error


async def _on_a_thread(do: Callable[[], T]) -> T:
    """Call on a thread that the app does not wait for when it ends: a server may take minutes to answer."""
    found = Future[T]()
    found.set_running_or_notify_cancel()

    def call() -> None:
        try:
            found.set_result(do())
        except Exception as error:
            found.set_exception(error)

    Thread(target=call, name="chat", daemon=True).start()
    return await asyncio.wrap_future(found)


_WITHOUT_LEARNING = ("write", "new", "help", "back", "app.quit")
"""Keys of a chat without learning."""
LOOK_S = 2.0
"""Seconds between two requests for the outcome of feedback."""


@dataclass
class ChatExchange:
    """A message and its answer. messages: the conversation up to it. others: answers of other versions."""

    prompt: str
    messages: list[dict[str, str]]
    id: str = ""
    answer: str = ""
    version: int | None = None
    certainty: float | None = None
    writing: bool = False
    feedback: str = ""
    others: list[tuple[str, str]] = field(default_factory=list)


class ChatPane(Pane):
    """The exchanges, newest last."""

    def __init__(self) -> None:
        super().__init__("chat")
        self.exchanges: list[ChatExchange] = []
        self.note = ""

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        lines: list[Line] = []

        def put(head: str, text: str, style: Style) -> None:
            lines.append(Line(p).add(head, p.muted))
            lines.extend(wrapped(p, text or "…", width, style, max(1, len(text)), after=Line(p).gap(2)))

        for exchange in self.exchanges:
            put("you", exchange.prompt, p.strong)
            sure = "" if exchange.certainty is None else f" · certainty {exchange.certainty:.2f}"
            version = "" if exchange.version is None else f" · version {exchange.version}"
            put(f"policy{version}{sure}{' · writing' if exchange.writing else ''}", exchange.answer, p.text)
            for name, text in exchange.others:
                put(name, text, p.text)
            lines += wrapped(p, exchange.feedback, width, p.accent)
            lines.append(Line(p))
        if not lines:
            lines = wrapped(
                p, self.note or "enter writes a message · i shows an answer without feedback", width, p.muted
            )
        return lines


class ChatScreen(AppScreen):
    """A chat with the policy that a run serves. started: whether the app started the server for it. Then nothing learns
    from feedback, and the server stops with the screen."""

    view = "chat"

    def __init__(self, reads: Reads, started: bool = False) -> None:
        super().__init__()
        self.client, self.reads, self.started = ChatClient(reads.path), reads, started
        self.chat = ChatPane()
        self.model = ""
        self._followed: dict[str, ChatExchange] = {}
        """Exchanges with feedback that no version contains yet, by id."""
        self._seen: set[str] = set()
        """Ids of answers that the inbox skips: it has shown them, or they were written here."""

    def panes(self) -> list[Pane]:
        return [self.chat]

    def header(self, width: int) -> tuple[Line, Line]:
        p, name = self.palette, look(self.reads.path).name if self.started else "chat"
        return Line(p).add(name, p.title, most=max(8, width - 20)), Line(p)

    def hint_label(self, action: str, label: str) -> str:
        return label if not self.started or action in _WITHOUT_LEARNING else ""

    def on_mount(self) -> None:
        self.chat.note = "loading the policy…" if self.started else ""
        self._connect()
        self.set_interval(LOOK_S, self._look)

    def on_unmount(self) -> None:
        if self.started:
            with suppress(OSError, RecordError):
                request(self.reads.path, "stop")

    def _connect(self) -> None:
        """Ask for the served policy, repeatedly while a started server loads it."""

        def known(_: str) -> None:
            self.chat.note = ""
            self._show()

        if not self.started or self.client.address.exists():
            self._call(self._served, known)
        elif not (info := look(self.reads.path)).active:
            self.chat.note = f"The server has ended: {info.error or info.status}."
            self._show()

    def _served(self) -> str:
        """Return the name of the served policy. Runs on a thread. The server may have started after the screen."""
        self.model = self.model or self.client.models()[0]
        return self.model

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_write(self) -> Awaitable[None] | None:
        if self.started and not self.model:
            self.say(self.chat.note)
            return None
        if self.chat.exchanges and self.chat.exchanges[-1].writing:
            self.say("The policy is still writing.")
            return None
        return ask(self, "Message", "", lambda text: self._send(text) if text else None)

    def action_new(self) -> None:
        self.chat.exchanges.clear()
        self.chat.changed(keep_scroll=False)

    def action_rate(self, verdict: str) -> None:
        self._judge(verdict=verdict)

    def action_correct(self) -> Awaitable[None] | None:
        if (last := self._last()) is not None:
            return ask(self, "Correct text", last.answer, lambda text: self._judge(correction=text) if text else None)

    def action_base(self) -> None:
        if (last := self._last()) is not None:
            self._again(last, 0, "version 0 (base)")

    def action_version(self) -> None:
        def chosen(text: str) -> None:
            if (last := self._last()) is not None and text:
                self._again(last, text, f"version {text}")

        def check(text: str) -> str:
            return "" if not text or (text.isascii() and text.isdigit()) else "the number of a version"

        def show(names: list[str]) -> None:
            ask(self, "Version", "", chosen, check, hint=" · ".join(n.rpartition("@")[2] for n in names[1:]))

        self._call(self.client.models, show)

    def action_inbox(self) -> None:
        def show(answers: list[dict[str, Any]]) -> None:
            found = next((a for a in answers if a["id"] not in self._seen), None)
            if found is None:
                self.say("No more answers without feedback.")
                return
            self._seen.add(found["id"])
            prompt, facts = str(found["prompt"]), [found[n] for n in ("answer", "policy_version", "certainty")]
            messages = found.get("messages") or [{"role": "user", "content": prompt}]
            self.chat.exchanges.append(ChatExchange(prompt, messages, found["id"], *facts))
            self._show()

        self._call(self.client.unjudged, show)

    # -- what they do -------------------------------------------------------------------------------------------

    def _last(self) -> ChatExchange | None:
        if self.chat.exchanges and self.chat.exchanges[-1].id:
            return self.chat.exchanges[-1]
        self.say("There is no answer yet.")
        return None

    def _send(self, text: str) -> None:
        before = next((e for e in reversed(self.chat.exchanges) if e.id), None)  # the last one with an answer
        earlier: list[dict[str, str]] = []
        if before is not None and before.certainty is None:
            earlier = [*before.messages, {"role": "assistant", "content": before.answer}]
        exchange = ChatExchange(text, [*earlier, {"role": "user", "content": text}], writing=True)
        self.chat.exchanges.append(exchange)
        self._show()

        def piece(text: str) -> None:
            exchange.answer += text
            self.call_later(self._show)

        def done(found: dict[str, Any]) -> None:
            exchange.id, exchange.version, exchange.writing = found.get("id", ""), found.get("policy_version"), False
            self._seen.add(exchange.id.split("-")[1] if "-" in exchange.id else exchange.id)
            self._show()

        def failed() -> None:
            exchange.writing = False
            self._show()

        self._call(lambda: self.client.write(self._served(), exchange.messages, piece), done, failed)

    def _again(self, exchange: ChatExchange, version: int | str, name: str) -> None:
        texts: list[str] = []

        def done(_: object) -> None:
            exchange.others.append((name, "".join(texts)))
            self._show()

        def write() -> object:
            return self.client.write(f"{self._served()}@{version}", exchange.messages, texts.append)

        self._call(write, done)

    def _judge(self, **said: str) -> None:
        if (exchange := self._last()) is None:
            return

        self._call(lambda: self.client.feedback(id=exchange.id, **said), lambda outcome: self._note(exchange, outcome))

    def _look(self) -> None:
        if self.started and not self.model:
            self._connect()
        followed, self._followed = self._followed, {}  # cleared during the requests: `_note` adds an exchange again
        for identifier, exchange in followed.items():
            self._call(
                lambda i=identifier: self.client.outcome(i),
                lambda outcome, e=exchange: self._note(e, outcome),
            )

    def _note(self, exchange: ChatExchange, outcome: dict[str, Any]) -> None:
        """Show the state of feedback. Once a version includes it, ask that version the same question."""
        before = exchange.feedback
        if outcome.get("learned"):
            version = outcome["version"]
            exchange.feedback = f"learned in update {outcome['update']}, included in version {version}"
            self._again(exchange, version, f"version {version}, trained on this feedback")
        else:
            accepted = "accepted" if outcome.get("accepted") else "not accepted"
            if outcome.get("accepted"):
                self._followed[exchange.id] = exchange
            exchange.feedback = f"feedback {accepted}: {outcome.get('reason', '')}"
        if exchange.feedback != before:  # otherwise keep the place of a user who reads further up
            self._show()

    def _show(self) -> None:
        self.chat.changed()
        self.chat.scroll_line_to(10**9)

    def _call(self, do: Callable[[], T], then: Callable[[T], None], failed: Callable[[], None] = lambda: None) -> None:

        async def called() -> None:
            try:
                found = await _on_a_thread(do)
            except ServerProblem as problem:
                self.say(str(problem), "error")
                failed()
                return
            then(found)

        self.run_worker(called(), group="chat")
