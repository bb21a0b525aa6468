"""Tools of a real MCP server, over standard input and output and over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.configs.sections import EnvironmentConfig
from grpo_tui.envs.dataset import DatasetEnv
from grpo_tui.envs.loading import EnvLoadError
from grpo_tui.envs.tools import ToolSpec

from .scripts import ByteAgent

pytest.importorskip("mcp", reason="needs the extra mcp")

SERVER = Path(__file__).parent / "mcp_server.py"
TASK = {"messages": [{"role": "user", "content": "What do two apples cost?"}], "answer": "6"}


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def played(env: DatasetEnv, *turns: str) -> Any:
    agent = ByteAgent(lambda row, turn, seen: turns[min(turn, len(turns) - 1)])
    return env.run_trial([TASK], agent, 1)["trajectories"][0]


@pytest.fixture(scope="module")
def stdio() -> DatasetEnv:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHELF_TOKEN", "me")  # servers get their keys so
        return DatasetEnv(tools=[f"mcp:{sys.executable} {SERVER}"])


@pytest.fixture
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(SERVER), str(port)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.kill()
        server.wait()


def test_the_tools_are_declared_with_their_types(stdio: DatasetEnv) -> None:
    price = stdio.functions["price"].spec
    assert price.description == "What pieces of an item cost."
    assert [(a.name, a.type, a.required) for a in price.arguments] == [
        ("item", "string", True),
        ("pieces", "integer", False),
    ]
    assert stdio.tools[-1].name == "ANSWER"


def test_the_policy_reads_the_fields_of_nested_arguments(stdio: DatasetEnv) -> None:
    label = stdio.functions["label"].spec
    item = {
        "description": "A label on the shelf.",
        "properties": {
            "text": {"description": "What it says.", "type": "string"},
            "title": {"default": False, "type": "boolean"},
        },
        "required": ["text"],
        "type": "object",
    }
    assert label.arguments[0].schema == {"items": item, "type": "array"}
    assert '"title": {"default": false, "type": "boolean"}' in stdio.explain()
    assert (label.arguments[1].type, label.arguments[1].nullable) == ("string", True)
    assert ToolSpec.from_json(label.to_json()) == label
    done = played(stdio, call("label", labels=[{"text": "new"}], colour=None), call("label", labels="new"), "6")
    assert done.steps[0].observation == "1 labels, None, as me"
    assert done.steps[1].error == "labels must be array"


def test_texts_and_pictures_of_a_tool(stdio: DatasetEnv) -> None:
    result = stdio.functions["look"].run({})
    assert result.observation == "\ntwo apples\n[image]"
    assert result.images[0].load().shape == (2, 3, 3)


def test_calls_and_errors_of_a_tool(stdio: DatasetEnv) -> None:
    trajectory = played(
        stdio, call("price", item="apple", pieces=2), call("price", item="plum"), call("price", pieces="two"), "6"
    )
    assert trajectory.steps[0].observation == "6"
    assert "there is no plum" in (trajectory.steps[1].error or "")
    assert trajectory.steps[2].error == "item missing"  # checked against the declaration, before the server
    assert trajectory.correct is True


def test_a_server_that_dies_fails_its_rollout_and_is_started_again(stdio: DatasetEnv) -> None:
    failed = played(stdio, call("stop"), "6")
    assert failed.stop_reason == "error"
    assert "did not answer stop" in failed.error
    assert played(stdio, call("price", item="pear"), "4").steps[0].observation == "4"


def test_an_error_of_the_protocol_is_the_policy_s_and_ends_no_other_call(stdio: DatasetEnv) -> None:
    turns = [[call("price", item="apple", pieces=0), "6"], [call("wait"), "6"]]
    agent = ByteAgent(lambda row, turn, seen: turns[row][turn])
    refused, waited = stdio.run_trial([TASK], agent, 2)["trajectories"]
    assert refused.steps[0].error == "pieces must be positive" and refused.correct is True
    assert waited.steps[0].observation == "waited"


def test_over_http(address: str) -> None:
    env = DatasetEnv(tools=[f"mcp:{address}"])
    assert played(env, call("price", item="apple", pieces=2), "6").steps[0].observation == "6"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no-such-command --at-all", "there is no command no-such-command; give one that starts the server"),
        ("http://127.0.0.1:9/mcp", "no MCP server answers there .*; start it first, or correct the address"),
        (f"{sys.executable} -c 'print(1)'", "mcp:"),
    ],
)
def test_a_server_that_cannot_be_had_is_one_sentence(target: str, said: str) -> None:
    with pytest.raises(EnvLoadError, match=said) as raised:
        DatasetEnv(tools=[f"mcp:{target}"])
    assert "\n" not in str(raised.value)


def test_a_configuration_names_servers_beside_functions() -> None:
    assert EnvironmentConfig(tools=["mcp:python server.py", "tools.py:search"]).tools[0] == "mcp:python server.py"
    with pytest.raises(ValueError, match="names no server"):
        EnvironmentConfig(tools=["mcp: "])
