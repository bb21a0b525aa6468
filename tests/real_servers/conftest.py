"""Two real servers of the built-in tiny policy, started from the Python that `VLLM_PYTHON` names."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import grpo_tui

TINY = Path(grpo_tui.__file__).parents[1] / "engine" / "demonstration" / "policies" / "base"
START_S = 1200
OPTIONS = (
    *("--enable-lora", "--max-lora-rank", "16", "--max-loras", "3", "--max-cpu-loras", "6", "--dtype", "float32"),
    *("--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--block-size", "32"),
    *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192", "--max-model-len", "1024"),
)
ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class RealServer:
    """A `vllm serve` on a port of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{self.port}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [os.environ["VLLM_PYTHON"], "-m", "vllm.entrypoints.openai.api_server", "--model", str(TINY)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), "--host", "127.0.0.1", *OPTIONS],
                env={**os.environ, **ENVIRONMENT},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=2):
                    return
            except (OSError, urllib.error.URLError):
                assert self.process is not None and self.process.poll() is None, self.log.read_text()[-3000:]
                assert time.monotonic() < deadline, self.log.read_text()[-3000:]
                time.sleep(0.5)

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealServer]]:
    if "VLLM_PYTHON" not in os.environ:
        pytest.skip("needs vLLM in an environment of its own (2.4 GB): make test-vllm")
    made = [RealServer(tmp_path_factory.mktemp("vllm")) for _ in range(2)]
    try:
        for server in made:
            server.start()
        for server in made:
            server.wait()
        yield made
    finally:
        for server in made:
            server.kill()
