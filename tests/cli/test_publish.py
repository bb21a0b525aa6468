"""The result of a run: its model card, merged into its base, and pushed to a stand-in of the hub over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_tui.engine.evaluation.card import record_hash
from grpo_tui.engine.launch import trainer
from grpo_tui.engine.launch.start import gather
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from grpo_tui.tui.cli import main
from tests.engine.training.runs import make_run

from .conftest import Cli

TOKEN = "hf_" + "Q" * 34


class Hub(ThreadingHTTPServer):
    """Repositories as the hub's client makes and fills them: create, preupload, LFS, commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.seen: list[tuple[str, str, str | None]] = []
        self.created: list[dict[str, Any]] = []
        self.commits = 0
        self.refuses = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub  # type: ignore[assignment]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, data: Any, status: int = 200) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.server.objects[self.path.rsplit("/", 1)[1]] = self._body()
        self._answer({})

    def do_GET(self) -> None:
        self._answer({"error": "no such file"}, 404)

    def do_POST(self) -> None:
        hub, body = self.server, self._body()
        hub.seen.append(("POST", self.path, self.headers.get("Authorization")))
        if hub.refuses:
            self._answer({"error": "You have no right to write here"}, hub.refuses)
        elif self.path == "/api/validate-yaml":
            yaml.safe_load(json.loads(body)["content"].split("---")[1])
            self._answer({"errors": [], "warnings": []})
        elif self.path == "/api/repos/create":
            hub.created.append(json.loads(body))
            self._answer({"url": f"{hub.url}/org/name", "name": "org/name"})
        elif "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            modes = {f["path"]: "lfs" if f["path"].endswith(".safetensors") else "regular" for f in asked}
            files = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
            self._answer({"files": files})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            upload = [{**o, "actions": {"upload": {"href": f"{hub.url}/lfs/{o['oid']}"}}} for o in objects]
            self._answer({"transfer": "basic", "objects": upload})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "lfsFile":
                    hub.files[line["value"]["path"]] = hub.objects[line["value"]["oid"]]
            hub.commits += 1
            self._answer({"success": True, "commitOid": "a" * 40, "commitUrl": f"{hub.url}/org/name/commit/{'a' * 40}"})
        else:
            self._answer({"error": f"unknown {self.path}"}, 404)


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps with adapters, of a base model in bfloat16."""
    folder = tmp_path_factory.mktemp("published")
    base = folder / "base"
    run_dir = make_run(folder / "runs" / "1124-1700-abcd", base, max_steps=2, eval_every=1, learning_rate=0.05)
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    (run_dir / "run.json").write_text(json.dumps({"id": run_dir.name, "mode": "rft", "facts": gather()}))
    assert run(run_dir) == 0
    return run_dir


def adapters(run_dir: Path) -> Path:
    return run_dir / f"adapters-{run_dir.name}"


def environment(hub: Hub, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", **more}


def pushed(run_dir: Path, hub: Hub, *options: str) -> subprocess.CompletedProcess[str]:
    """Push in a process of its own: the hub's client reads its variables when it is imported."""
    command = [sys.executable, "-m", "grpo_tui.tui.cli", "push", run_dir.name, "org/name", *options]
    command += ["--runs-dir", str(run_dir.parent)]
    variables = os.environ | environment(hub)
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)


def test_the_saved_folder_has_a_card_of_the_record(trained: Path):
    card = (adapters(trained) / "README.md").read_text()
    facts = yaml.safe_load(card.split("---")[1])
    assert facts["library_name"] == "peft" and "grpo" in facts["tags"]
    assert f"SHA-256 of metrics and rollouts of run {trained.name}" in card
    assert re.search(r"\| during training \| 2 \| greedy \| 4 \| \d+\.\d% \| \d+\.\d% to \d+\.\d% \|", card)
    assert "max_steps: 2" in card and "torch 2." in card and "[More Information Needed]" not in card
    with RunReader(trained) as reader:
        loss = dict(reader.metrics.points("train/loss"))
    assert f"| `train/loss` | {loss[1]:.4g} | {loss[2]:.4g} |" in card


def test_the_hash_changes_with_any_number_of_the_record(trained: Path, monkeypatch: pytest.MonkeyPatch):
    with RunReader(trained) as reader:
        before = record_hash(reader)
        assert record_hash(reader) == before
        points = reader.metrics.points
        monkeypatch.setattr(reader.metrics, "points", lambda name: [(s, v + 1e-9) for s, v in points(name)])
        assert record_hash(reader) != before


def test_merge_gives_a_model_in_the_format_of_its_base_for_plain_transformers(trained: Path, cli: Cli, tmp_path: Path):
    done = cli("merge", trained.name, "--to", str(tmp_path / "merged"), "--runs-dir", str(trained.parent))
    assert done.returncode == 0, done.stderr
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.dtype == torch.bfloat16
    base: Any = AutoModelForCausalLM.from_pretrained(trained.parent.parent / "base", dtype=torch.float32)
    expected = PeftModel.from_pretrained(base, str(adapters(trained))).merge_and_unload()
    changed = 0
    for (name, found), exact in zip(merged.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, exact.to(torch.bfloat16)), name
        changed += not torch.equal(found.float(), dict(base.named_parameters()).get(name, found).float())
    tokens = AutoTokenizer.from_pretrained(tmp_path / "merged")("add 31 and 40", return_tensors="pt")
    assert merged.generate(**tokens, max_new_tokens=4).shape[1] > tokens["input_ids"].shape[1]
    assert "library_name: transformers" in (tmp_path / "merged" / "README.md").read_text()
    again = cli("merge", trained.name, "--to", str(tmp_path / "merged"), "--runs-dir", str(trained.parent))
    assert again.returncode == 2 and "already exists" in again.stderr


def test_merge_without_the_trainer_ends_as_training_does(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(trainer, "LIBRARIES", ("torch", "no_such_library"))
    assert main.run(["merge", trained.name, "--runs-dir", str(trained.parent)]) == 2
    assert "merging needs the trainer (no_such_library not installed)" in capsys.readouterr().err


def test_push_sends_adapters_and_card_in_one_commit_and_never_shows_the_token(trained: Path, hub: Hub, tmp_path: Path):
    done = pushed(trained, hub, "--private")
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert all(token == f"Bearer {TOKEN}" for _, path, token in hub.seen if path.startswith("/api/"))
    assert hub.created[0].get("private") or hub.created[0].get("visibility") == "private"
    assert hub.commits == 1
    assert TOKEN.encode() not in b"".join(p.read_bytes() for p in trained.rglob("*") if p.is_file())
    for name, data in hub.files.items():
        (tmp_path / "pulled" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pulled" / name).write_bytes(data)
    base = AutoModelForCausalLM.from_pretrained(trained.parent.parent / "base")
    loaded: Any = PeftModel.from_pretrained(base, str(tmp_path / "pulled"))
    assert loaded.peft_config["default"].r == 4
    sent, kept = (
        load_file(folder / "adapter_model.safetensors") for folder in (tmp_path / "pulled", adapters(trained))
    )
    assert sent.keys() == kept.keys() and all(torch.equal(sent[name], kept[name]) for name in kept)
    assert f"run {trained.name}" in hub.files["README.md"].decode()
    assert hashlib.sha256(hub.files["adapter_model.safetensors"]).hexdigest() in hub.objects


def test_what_the_hub_refuses_is_one_sentence_without_the_token(trained: Path, hub: Hub):
    hub.refuses = 403
    done = pushed(trained, hub)
    assert "403" in done.stderr and hub.seen
    assert done.returncode == 1 and "org/name was not pushed" in done.stderr
    assert TOKEN not in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "variables", "message", "code"),
    [
        (("push", "RUN", "name"), {}, "write ORG/NAME", 2),
        (("push", "RUN", "org/name"), {"HF_TOKEN": ""}, "HF_TOKEN is not set", 2),
        (("push", "nosuch", "org/name"), {}, "nosuch", 3),
        (("push", "RUN@7", "org/name"), {}, "no checkpoint of step 7", 2),
        (("merge", "RUN@base"), {}, "is not a trained policy", 2),
    ],
)
def test_a_wrong_command_is_refused_in_one_sentence(
    trained: Path, cli: Cli, hub: Hub, arguments: tuple[str, ...], variables: dict[str, str], message: str, code: int
):
    given = [a.replace("RUN", trained.name) for a in arguments]
    done = cli(*given, "--runs-dir", str(trained.parent), **environment(hub, **variables))
    assert done.returncode == code and message in done.stderr and not hub.seen
