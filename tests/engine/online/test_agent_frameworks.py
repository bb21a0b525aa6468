"""Agent frameworks, as their users call them, solve a sum with a tool over a real server.

Tried with openai 3.54 (Python) and 6 (Node), openai-agents 0.24, litellm 1.110.2, langgraph 1.2.24 and
langchain-openai 1.7.4. A test of a package that is not installed is skipped.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.runs.read.reader import RunReader

from .calling import DONE, calling_config, trained_policy
from .chats import Served, served
from .node import node_folder
from .test_online_run import wait_for

pytestmark = [pytest.mark.together("called_tools"), pytest.mark.stress]
QUESTION = "Add 2 and 3."
NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "any", maxRetries: 0 });
const number = { type: "integer" };
const parameters = { type: "object", properties: { a: number, b: number }, required: ["a", "b"] };
const sum = ({ a, b }) => String(a + b);
const run = client.chat.completions.runTools({
  model: process.argv[3],
  messages: [{ role: "user", content: "Add 2 and 3." }],
  tools: [{ type: "function", function: { name: "add", parameters, parse: JSON.parse, function: sum } }],
});
console.log(JSON.stringify([await run.finalContent(), await run.finalFunctionToolCallResult()]));
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("frameworks")
    config = calling_config(trained_policy(request.config.cache), folder, updates=False)
    with served(config, folder) as made:
        yield made


@pytest.fixture
def _one_rollout(run: Served) -> Iterator[None]:
    """Each test is one conversation, and so one rollout in the record."""
    before = [row.id for row in _rows(run)]
    yield
    wait_for(lambda: len(_rows(run)) == len(before) + 1, "the rollout", 30)
    [row] = [row for row in _rows(run) if row.id not in before]
    first, last = RunReader(run.run_dir).bodies.trajectory(row.id).trajectory.steps
    assert (first.action, first.arguments, first.calls[0].result) == ("add", {"a": 2, "b": 3}, "5")
    assert last.text == DONE


def _rows(run: Served) -> list[Any]:
    return RunReader(run.run_dir).rollouts.page(limit=1000)


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip a test before its server starts."""
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} is not installed")


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def langgraph_agent(run: Served) -> Any:
    langchain, prebuilt = import_module("langchain_openai"), import_module("langgraph.prebuilt")
    model = langchain.ChatOpenAI(model=run.model, base_url=f"{run.url}/v1", api_key="any", max_retries=0)
    return prebuilt.create_react_agent(model, [add])


@needs("langgraph", "langchain_openai")
@pytest.mark.usefixtures("_one_rollout")
def test_langgraph(run: Served) -> None:
    messages = langgraph_agent(run).invoke({"messages": [("user", QUESTION)]})["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[2].content == "5" and messages[-1].content == DONE


@needs("langgraph", "langchain_openai")
@pytest.mark.usefixtures("_one_rollout")
def test_langgraph_streams(run: Served) -> None:
    parts = langgraph_agent(run).stream({"messages": [("user", QUESTION)]}, stream_mode="messages")
    said = [part.content for part, _ in parts if part.type == "AIMessageChunk"]
    assert "".join(said) == DONE


@needs("agents")
@pytest.mark.usefixtures("_one_rollout")
def test_openai_agents(run: Served) -> None:
    agents = import_module("agents")
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{run.url}/v1", api_key="any", max_retries=0)
    model = agents.OpenAIChatCompletionsModel(model=run.model, openai_client=client)
    agent = agents.Agent(name="sums", instructions="Use the tool.", model=model, tools=[agents.function_tool(add)])
    result = asyncio.run(agents.Runner.run(agent, QUESTION))
    assert result.final_output == DONE and len(result.new_items) == 3


@needs("litellm")
@pytest.mark.usefixtures("_one_rollout")
def test_litellm(run: Served) -> None:
    litellm = import_module("litellm")
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["a", "b"]}
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}}]
    options = {
        "model": run.model,
        "custom_llm_provider": "openai",
        "api_base": f"{run.url}/v1",
        "api_key": "any",
        "tools": tools,
    }
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    message = litellm.completion(messages=messages, **options).choices[0].message
    [call] = message.tool_calls
    value = add(**json.loads(call.function.arguments))
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": str(value)}]
    assert litellm.completion(messages=messages, **options).choices[0].message.content == DONE


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Path:
    return node_folder(request.config.cache)


@pytest.mark.usefixtures("_one_rollout")
def test_openai_for_node(node: Path, run: Served) -> None:
    (node / "tools.mjs").write_text(NODE)
    command = ["node", "tools.mjs", run.url, run.model]
    done = subprocess.run(command, cwd=node, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout or "null") == [DONE, "5"], done.stderr
