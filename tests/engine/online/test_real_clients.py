"""A real run, asked by OpenAI's own clients and by curl, as `docs/serving.md` shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.launch.stop import stop_run
from grpo_tui.engine.online.store.snapshots import pointed_version
from grpo_tui.engine.runs.control.status import look
from tests.forked import forked_processes

from .node import node_folder
from .test_online_run import _address, wait_for
from .tiny import run_config

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "any", maxRetries: 0 });
const models = [];
for await (const model of client.models.list()) models.push(model.id);
const messages = [{ role: "user", content: "what is it?" }];
const answer = await client.chat.completions.create({ model: models[0], messages, max_tokens: 5 });
const old = await client.chat.completions.create({ model: models[0] + "@0", messages });
const right = await client.post("/feedback", { body: { id: answer.id, verdict: "right" } });
const refused = await client.chat.completions.create({ model: models[0], messages, n: 3 }).catch((error) => error);
const found = [answer.choices[0].message.content, old.model, right.accepted, refused instanceof OpenAI.BadRequestError];
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Where a real run answers, and its folder."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("HF_HUB_OFFLINE", "1")
        config = run_config(folder / "policy", serve="127.0.0.1:0", snapshot_every=2)
        with forked_processes():
            run_dir = Path(start_run(config, runs_dir=folder / "runs", run_id="served").path)
    try:
        yield wait_for(lambda: _address(run_dir), "the address"), run_dir
    finally:
        assert stop_run(look(run_dir), timeout=60).status == "stopped"


def _model(url: str) -> str:
    return str(httpx.get(f"{url}/v1/models").json()["data"][0]["id"])


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def _here(text: str, url: str) -> str:
    return text.replace("http://127.0.0.1:8000", url).replace("builtin:tiny", _model(url))


def test_openais_python_client(served: tuple[str, Path]) -> None:
    url, run_dir = served
    model, client = _model(url), openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "what is it?"}]
    answer = client.chat.completions.create(model=model, messages=messages)
    for _ in range(2):  # enough for a second version
        client.chat.completions.create(model=model, messages=messages)
    assert answer.choices[0].message.content in ("0", "1", "2") and answer.usage is not None
    chunks = client.chat.completions.create(model=model, messages=messages, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) in ("0", "1", "2")
    said = client.post("/feedback", cast_to=httpx.Response, body={"id": answer.id, "verdict": "wrong", "answer": "1"})
    assert said.json()["accepted"] is True
    wait_for(lambda: (pointed_version(run_dir / "snapshots") or 0) >= 2, "a second version")
    named = [m.id for m in client.models.list()]
    assert f"{model}@0" in named and f"{model}@2" in named
    assert client.chat.completions.create(model=f"{model}@0", messages=messages).model == f"{model}@0"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=f"{model}@999", messages=messages)
    with pytest.raises(openai.BadRequestError, match="tokens"):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "red " * 500}])
    assert httpx.get(f"{url}/health").json()["learning"] == "running"
    assert "grpo_tui_answer_seconds_count" in httpx.get(f"{url}/metrics").text


def test_the_lines_of_the_page(served: tuple[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    url, _ = served
    commands = [c for block in _blocks("sh") for c in re.findall(r"^curl(?:.*\\\n)*.*$", block, re.MULTILINE)]
    assert len(commands) == 6
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", _here(command.replace("curl", "curl -sS --fail-with-body", 1), url)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 and done.stdout, (command, done.stdout, done.stderr)
    [code] = _blocks("python")
    exec(compile(_here(code, url), str(PAGE), "exec"), {})
    assert "CompletionUsage" in capfd.readouterr().out


def test_openais_node_client(served: tuple[str, Path], request: pytest.FixtureRequest) -> None:
    folder = node_folder(request.config.cache)
    url, _ = served
    (folder / "client.mjs").write_text(NODE)
    (folder / "page.mjs").write_text(_here(_blocks("js")[0], url))
    done = subprocess.run(["node", "client.mjs", url], cwd=folder, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(rf'\["[012]","{_model(url)}@0",true,true\]\n', done.stdout), done.stderr
    page = subprocess.run(["node", "page.mjs"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert page.stdout in ("0", "1", "2"), page.stderr
