"""A run of `grpo-tui online` on rollout servers: its engine in this process, and a worker's end of its snapshots."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import torch

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.online.process import load_serving_policy
from grpo_tui.engine.online.serve.assembly import serve
from grpo_tui.engine.online.store.snapshots import SnapshotWriter
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.online.store.update_task import UpdateTask
from grpo_tui.engine.runs.control.requests import ControlChannel, request
from grpo_tui.engine.runs.paths import OnlineFolder
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import RunWriter

from .test_online_run import wait_for
from .tiny import logits_of


class PoolRun:
    """The engine as the command puts it together, on a thread."""

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        self.config = config
        self.run_dir = run_dir
        self.run_dir.mkdir()
        self.folder = OnlineFolder(self.run_dir)
        self.model, self.tokenizer = load_serving_policy(self.config)
        self.weights = {0: {n: p.detach().clone() for n, p in self.model.named_parameters() if p.requires_grad}}
        self.ended: list[bool | BaseException] = []
        self._thread = threading.Thread(target=self._live)

    def start(self) -> None:
        self._thread.start()

    def _live(self) -> None:
        writer = RunWriter(self.run_dir, process="engine")
        try:
            self.ended.append(serve(self.config, self.run_dir, writer, ControlChannel(self.run_dir), False))
        except BaseException as problem:
            self.ended.append(problem)
        finally:
            writer.close()

    def publish(self, moved_by: float = 0.1) -> int:
        """The worker's next version: other weights."""
        version = len(self.weights)
        generator = torch.Generator().manual_seed(version)
        moved = {n: p + moved_by * torch.randn(p.shape, generator=generator) for n, p in self.weights[0].items()}
        with contextlib.closing(SnapshotWriter(self.folder.snapshots, base_model="tiny")) as snapshots:
            assert snapshots.publish(moved).version == version
        self.weights[version] = moved
        return version

    @property
    def url(self) -> str:
        def found() -> str | None:
            assert not self.ended, self.ended
            with contextlib.suppress(OSError, ValueError):
                return json.loads(self.folder.address.read_text())["url"]
            return None

        return wait_for(found, "the address")

    def post(self, question: str = "what is it?", model: str | None = None, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": question}], **fields}
        if model is not None:
            body["model"] = f"{self.config.model.base}{model}"
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60)

    def version(self, **asked: Any) -> int:
        """The version that answers."""
        answer = self.post(**asked)
        assert answer.status_code == 200, answer.text
        return answer.json()["grpo_tui"]["policy_version"]

    def answered_by(self, version: int) -> None:
        wait_for(lambda: self.version() == version, f"version {version}", 60)

    def health(self) -> tuple[int, Any]:
        found = httpx.get(f"{self.url}/health", timeout=60)
        return found.status_code, found.json()

    def folders(self) -> list[str]:
        """Versions whose folders are there."""
        return sorted(p.name.split("-")[1] for p in (self.run_dir / "served").iterdir())

    def events(self, *kinds: Any) -> list[str]:
        with RunReader(self.run_dir) as record:
            return [event.message for event in record.events(kinds=list(kinds), limit=1000)]

    def become(self, version: int) -> Any:
        """The model here with a version's weights."""
        for name, parameter in self.model.named_parameters():
            if name in self.weights[0]:
                parameter.data = self.weights[version][name]
        return self.model

    def apart_from_their_versions(self) -> dict[int, float]:
        """By version, how far log-probs (of the servers) and original logits (of the engine) in the tasks that wait are
        at most from those of that version, computed here: nats."""
        queue = SqliteQueue(self.folder.queue)
        worst: dict[int, float] = {}
        for identifier, _ in queue.tasks("queued"):
            task = UpdateTask.from_bytes(queue.payload(identifier) or b"")
            seen = task.experience
            logits = logits_of(self.become(task.policy_version), seen)
            scores = (logits / self.config.online.temperature).log_softmax(-1)
            said = scores.gather(-1, seen.at_agent_tokens("token_ids").long()[:, None])[:, 0]
            assert (task.original_logits.parts[0] - logits).abs().max() < 1e-4
            apart = float((seen.at_agent_tokens("logprobs") - said).abs().max())
            worst[task.policy_version] = max(apart, worst.get(task.policy_version, 0.0))
        queue.close()
        return worst

    def stop(self) -> None:
        if self._thread.is_alive():
            request(self.run_dir, "stop")
            self._thread.join(30)
        assert not self._thread.is_alive()
        assert all(not isinstance(end, BaseException) for end in self.ended), self.ended
