"""Serving over HTTP, measured: `python -m benchmarks.serving [--callers 1,4,16,50] [--requests 60]`.

A real run (`grpo-tui online`, updates off) answers questions about a picture. For each number of callers: latency
(median and 99th percentile), answers and tokens per second, and the ratio to one caller. Last row: short questions of 8
callers while another sends prompts of the greatest allowed length.
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
    """Seconds, and tokens of the shown rollout."""
    began = time.perf_counter()
    answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    return time.perf_counter() - began, int(answer.json()["usage"]["total_tokens"])


async def load(url: str, callers: int, requests: int, body: dict[str, Any]) -> tuple[list[float], int, float]:
    """Latencies, tokens and seconds of `requests` requests by `callers` at once."""
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
    """Short questions of 8 callers while another keeps asking long ones."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:

        async def keep_asking() -> None:
            while True:
                await ask(client, long_question())

        long = asyncio.ensure_future(keep_asking())
        try:
            return await load(url, 8, requests, question())
        finally:
            long.cancel()


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
    parser.add_argument("--requests", type=int, default=60)
    given = parser.parse_args()
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
