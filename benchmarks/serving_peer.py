"""Compare streaming with `transformers serve` (`python -m benchmarks.serving --against-transformers`).

`grpo-tui online` and `transformers serve` serve SmolLM2-135M-Instruct in float32 on the same processors. Callers stream
answers of up to `--tokens` tokens from both, in alternating stretches. A row has the medians over the stretches of the
time to the first text and of tokens per second, and the median of the ratios within a pair of stretches. With
`--learning`, updates are on, and callers give the right answer to 30 % of the questions. While the other server runs,
all processes of `grpo-tui online` are suspended, so that it has the processors to itself.

`transformers serve` needs fastapi, which may be in a separate folder: `pip install --target FOLDER fastapi`, then
`--packages FOLDER`. It answers one request at a time, or several concurrently with `--continuous-batching`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from transformers import AutoTokenizer

from .feedback import SHARE, START_S, served
from .questions import TASKS, Question, split
from .smollm2 import smollm2


@dataclass(frozen=True)
class Measured:
    """first: median time to the first text in seconds. rate: total tokens per second of all callers."""

    first: float
    rate: float


class Caller:
    """Streams answers from one server. learns: give feedback on some answers."""

    def __init__(self, url: str, model: str, tokens: int, learns: bool = False) -> None:
        self.url, self.model, self.limit, self.learns = url, model, tokens, learns
        self.words: Any = AutoTokenizer.from_pretrained(model)

    async def load(self, questions: list[Question], callers: int) -> Measured:
        """Stream the answers to all questions, `callers` at a time."""
        left, found = iter(questions), list[tuple[float, str]]()

        async def work(client: httpx.AsyncClient) -> None:
            for question in left:
                found.append(await self._one(client, question))

        limits = httpx.Limits(max_connections=callers + 1)
        began = time.perf_counter()
        async with httpx.AsyncClient(base_url=self.url, timeout=1200, limits=limits) as client:
            await asyncio.gather(*(work(client) for _ in range(callers)))
        seconds = time.perf_counter() - began
        written = sum(len(self.words.encode(text, add_special_tokens=False)) for _, text in found)
        return Measured(statistics.median(first for first, _ in found), written / seconds)

    async def _one(self, client: httpx.AsyncClient, question: Question) -> tuple[float, str]:
        chat = [{"role": "user", "content": question.text}]
        body = {"model": self.model, "messages": chat, "max_tokens": self.limit, "stream": True}
        began, first, text, identifier = time.perf_counter(), 0.0, "", ""
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                identifier = chunk["id"]
                piece = (chunk["choices"][0]["delta"].get("content") if chunk["choices"] else "") or ""
                if piece and not text:
                    first = time.perf_counter() - began
                text += piece
        if self.learns and random.random() < SHARE:
            await client.post("/v1/feedback", json={"id": identifier, "answer": question.answer})
        return first, text


@contextlib.contextmanager
def peer(base: str, packages: Path | None, continuous: bool) -> Iterator[str]:
    """Serve a model with `transformers serve`; yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join(filter(None, [str(packages or ""), os.environ.get("PYTHONPATH", "")]))
    command = [str(Path(sys.executable).parent / "transformers"), "serve", base, "--dtype", "float32"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(
        command + (["--continuous-batching"] if continuous else []), env={**os.environ, "PYTHONPATH": path}
    )
    try:
        until = time.monotonic() + START_S
        while time.monotonic() < until and process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).is_success:
                    break
            time.sleep(0.5)
        else:
            raise SystemExit("transformers serve did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def of_online() -> list[psutil.Process]:
    """Return the processes of `grpo-tui online` that this process started."""
    started = [child for child in psutil.Process().children() if "online" in child.cmdline()]
    return [process for child in started for process in (child, *child.children(recursive=True))]


@contextlib.contextmanager
def asleep(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(processes):
            process.resume()


def compare(given: argparse.Namespace) -> None:
    """Print one row for each number of callers."""
    base = str(smollm2())
    settings = {"online.updates": given.learning, "online.answer": TASKS["larger"].form}
    with served(base, settings) as (client, _), peer(base, given.packages, given.continuous_batching) as url:
        ours = Caller(str(client.base_url), base, given.tokens, given.learning)
        theirs = Caller(url, base, given.tokens)
        _, questions = split("larger", 0, 0, 1000)
        draw = random.Random(0)
        warm = draw.sample(questions, 2)
        for caller in (ours, theirs):
            asyncio.run(caller.load(warm, 1))
        print("| callers | first text, s | transformers serve | ratio | tokens/s | transformers serve | ratio |")
        for callers in map(int, given.callers.split(",")):
            pairs: list[tuple[Measured, Measured]] = []
            for stretch in range(given.stretches):
                asked = draw.sample(questions, max(callers, given.requests))
                order = (ours, theirs) if stretch % 2 else (theirs, ours)
                found: dict[Caller, Measured] = {}
                for caller in order:
                    with asleep(of_online()) if caller is theirs else contextlib.nullcontext():
                        found[caller] = asyncio.run(caller.load(asked, callers))
                pairs.append((found[ours], found[theirs]))
            cells = []
            for name, form in (("first", "{:.2f}"), ("rate", "{:.1f}")):
                a, b = ([getattr(m, name) for m in side] for side in zip(*pairs, strict=True))
                cells += [form.format(statistics.median(a)), form.format(statistics.median(b))]
                cells.append(f"{statistics.median(x / y for x, y in zip(a, b, strict=True)):.2f}")
            print(f"| {callers} | " + " | ".join(cells) + " |", flush=True)
