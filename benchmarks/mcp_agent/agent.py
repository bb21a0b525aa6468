"""The agent: one procedure for every run, with tool calls through the official MCP client."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp
from mcp.types import TextContent

from .evidence import CURVES, SUPPORT, Evidence

READ = 2
"""Rollouts to read per finding."""
ROWS = 64
"""Rollouts to list of its step."""


@dataclass(frozen=True)
class Conclusion:
    """The detector of the cause (empty: none), the sentence with its supporting evidence, and the cost.

    first: the first finding, before its evidence was read. size: bytes of the answers.
    """

    cause: str
    support: str
    first: str
    calls: int
    size: int


class Agent:
    """Calls tools of an MCP session, and counts calls and bytes."""

    def __init__(self, session: mcp.ClientSession) -> None:
        self._session = session
        self._calls = self._size = 0

    async def runs(self) -> list[str]:
        """Return the ids of all runs."""
        found, offset = [], 0
        while offset is not None:
            answer = await self._ask("list_runs", offset=offset)
            found += [run["id"] for run in answer["untrusted"]]
            offset = answer["next_offset"]
        return found

    async def conclude(self, run: str) -> Conclusion:
        """Find the cause in a run: the first warning that rollouts and metrics support, else the first warning."""
        self._calls = self._size = 0
        told = (await self._ask("findings", run=run))["untrusted"]["findings"]
        grave = [f["found"] for f in told if f["found"]["finding"]["severity"] in ("failure", "warning")]
        faults = [fault for fault in grave if not fault["cause"]]
        first = faults[0]["finding"]["detector"] if faults else ""
        curves = (await self._ask("metrics", run=run, names=list(CURVES)))["untrusted"] if faults else {}
        for fault in faults:
            name = fault["finding"]["detector"]
            support = SUPPORT[name](await self._evidence(run, fault, curves)) if name in SUPPORT else ""
            if support or name not in SUPPORT:
                return Conclusion(name, support, first, self._calls, self._size)
        return Conclusion(first, "", first, self._calls, self._size)

    async def _evidence(self, run: str, fault: Mapping[str, Any], curves: Mapping[str, Any]) -> Evidence:
        step = fault["strongest"]
        listed = await self._ask("query_rollouts", run=run, filter=f"split:train and step:{step}", limit=ROWS)
        named = fault["finding"]["trajectories"] or [row["id"] for row in listed["untrusted"]]
        read, explained, tokens = [], [], []
        for rollout in named[:READ]:
            read.append((await self._ask("read_rollout", run=run, rollout=rollout))["untrusted"]["trajectory"])
            explained.append((await self._ask("explain_reward", run=run, rollout=rollout))["untrusted"])
            tokens.append((await self._ask("tokens", run=run, rollout=rollout))["untrusted"] or [])
        return Evidence(step, listed["untrusted"], read, explained, tokens, curves)

    async def _ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self._session.call_tool(tool, arguments)
        text = "".join(part.text for part in answer.content if isinstance(part, TextContent))
        self._calls += 1
        self._size += len(text.encode())
        return {"untrusted": None} if answer.isError else json.loads(text)  # for example, tokens were not recorded


@asynccontextmanager
async def agent(home: Path) -> AsyncIterator[Agent]:
    """Start `grpo-tui mcp` for a folder of runs, with an agent as its client."""
    words = ["-m", "grpo_tui.tui.cli", "mcp", "--runs-dir", str(home)]
    server = mcp.StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with mcp.stdio_client(server) as streams, mcp.ClientSession(*streams) as session:
        await session.initialize()
        yield Agent(session)
