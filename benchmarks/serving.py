"""Serving over HTTP, measured: `python -m benchmarks.serving [--callers 1,4,16,50] [--requests 60]`.

A real run (`grpo-tui online`, updates off) answers questions about a picture. For each number of callers: latency
(median and 99th percentile), answers and tokens per second, and the ratio to one caller. Last row: short questions of 8
callers while another sends prompts of the greatest allowed length.

`--exact 200` compares default answers with greedy generation by transformers, and `--against-transformers` compares
streaming with `transformers serve`. Both use SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from PIL import Image, ImageDraw

from grpo_tui.engine.runs.durable import read_json

START_S = 120.0


def question(text: str = "colour at 40 40?") -> dict[str, Any]:
    image = Image.new("RGB", (96, 96), (230, 230, 230))
    ImageDraw.Draw(image).ellipse((20, 20, 60, 60), fill=(200, 30, 30))
    data = io.BytesIO()
    image.save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    return {"model": "builtin:tiny", "messages": [{"role": "user", "content": parts}]}


def long_question() -> dict[str, Any]:
    return {"model": "builtin:tiny", "messages": [{"role": "user", "content": "colour " * 240}]}


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[float, int]:
    """Send one request. Returns seconds, and tokens of the shown rollout."""
    began = time.perf_counter()
    answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    return time.perf_counter() - began, int(answer.json()["usage"]["total_tokens"])


async def load(url: str, callers: int, requests: int, body: dict[str, Any]) -> tuple[list[float], int, float]:
    """Send `requests` requests from `callers` concurrent callers. Returns latencies, tokens and seconds."""
    left = iter(range(requests))
    latencies: list[float] = []
    tokens = 0

    async def caller(client: httpx.AsyncClient) -> None:
        nonlocal tokens
        for _ in left:
            seconds, spent = await ask(client, body)
            latencies.append(seconds)
            tokens += spent

    began = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=callers)) as client:
        await asyncio.gather(*(caller(client) for _ in range(callers)))
    return latencies, tokens, time.perf_counter() - began


async def beside_long(url: str, requests: int) -> tuple[list[float], int, float]:
    """Send short questions from 8 callers while another caller keeps sending long ones."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:

        async def keep_asking() -> None:
            while True:
                await ask(client, long_question())

        long = asyncio.ensure_future(keep_asking())
        try:
            return await load(url, 8, requests, question())
        finally:
            long.cancel()


def exact(count: int, tokens: int, dtype: str) -> None:
    """Compare the server's default answers with greedy generation."""
    from benchmarks.feedback import served
    from benchmarks.questions import TASKS, Base, split
    from benchmarks.smollm2 import smollm2

    base = str(smollm2())
    task, questions = TASKS["larger"], split("larger", 0, 0, count)[1]
    formats = {f"model.{key}": dtype for key in ("weights", "compute", "sampling")}
    served_texts = []
    with served(base, {**formats, "online.updates": False}) as (client, _):
        for question in questions:
            chat = [{"role": "user", "content": question.text}]
            body = {"model": base, "messages": chat, "max_tokens": tokens}
            answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            served_texts.append(str(answer["choices"][0]["message"]["content"]))
    plain = Base(dtype).greedy(questions, tokens)
    equal = sum(a == b for a, b in zip(served_texts, plain, strict=True))
    for name, texts in (("served", served_texts), ("transformers", plain)):
        success = statistics.fmean(task.right(t, q) for t, q in zip(texts, questions, strict=True))
        print(f"{name:14} success {success:.3f}")
    print(f"{dtype}: {equal} of {count} texts are equal", flush=True)


def row(name: str, measured: tuple[list[float], int, float], alone: float | None) -> float:
    latencies, tokens, seconds = measured
    latencies.sort()
    rate = len(latencies) / seconds
    p99 = latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))]
    ratio = "" if alone is None else f"   {rate / alone:4.1f} x one by one"
    print(
        f"{name:28} p50 {statistics.median(latencies):6.2f} s   p99 {p99:6.2f} s   {rate:6.2f} answers/s   "
        f"{tokens / seconds:7.0f} tokens/s{ratio}",
        flush=True,
    )
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", default="1,4,16,50")
    parser.add_argument("--requests", type=int, default=60, help="answers of a row, or of a stretch")
    parser.add_argument("--exact", type=int, metavar="N", help="compare N default answers with greedy generation")
    parser.add_argument("--tokens", type=int, default=24, help="length limit of an answer in both comparisons")
    parser.add_argument("--dtype", default="float32", help="number format with --exact")
    parser.add_argument("--against-transformers", action="store_true", help="see benchmarks/serving_peer.py")
    parser.add_argument("--learning", action="store_true", help="learn while --against-transformers measures")
    parser.add_argument("--stretches", type=int, default=3, help="of each server, with --against-transformers")
    parser.add_argument("--packages", type=Path, help="a folder with fastapi, for transformers serve")
    parser.add_argument("--continuous-batching", action="store_true", help="of transformers serve")
    given = parser.parse_args()
    if given.against_transformers:
        from benchmarks.serving_peer import compare

        compare(given)
        return
    if given.exact:
        exact(given.exact, given.tokens, given.dtype)
        return
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "grpo_tui.tui.cli", "online", "--runs-dir", home, "--run-id", "serving"]
        settings = ["online.serve=127.0.0.1:0", "online.updates=false", "online.batch_requests=16"]
        process = subprocess.Popen(
            [*command, *(part for s in settings for part in ("--set", s))], stdout=subprocess.DEVNULL
        )
        try:
            url = _address(Path(home) / "serving" / "online" / "address.json", process)
            alone = row("1 caller", asyncio.run(load(url, 1, max(8, given.requests // 4), question())), None)
            for callers in (int(c) for c in given.callers.split(",") if c != "1"):
                row(f"{callers} callers", asyncio.run(load(url, callers, given.requests, question())), alone)
            row("8 callers beside a long one", asyncio.run(beside_long(url, given.requests)), alone)
        finally:
            stop = [sys.executable, "-m", "grpo_tui.tui.cli", "stop", "serving", "--runs-dir", home]
            subprocess.run(stop, stdout=subprocess.DEVNULL)
            process.wait(60)


def _address(file: Path, process: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        if file.exists():
            return str(read_json(file)["url"])
        time.sleep(0.2)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
