"""Inference servers for rollouts: the command to start one, and checks of a running one. Standard library only."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...configs.schema import BUILTIN_MODEL, RunConfig
from .trainer import Fact

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts for --max-lora-rank."""
OLDEST = (0, 32)
"""The first vLLM version with all endpoints that we use."""
TIMEOUT_S = 60.0
TEXT = list(range(20, 40))
"""Token ids that every vocabulary has."""
RESTART = "restart it as `grpo-tui rollouts serve` would start it"


@dataclass(frozen=True)
class ServerCommand:
    """The command that starts a server: environment `variables` and `arguments`. The server answers at `url`."""

    variables: Mapping[str, str]
    arguments: Sequence[str]
    url: str


def serve_commands(
    config: RunConfig, gpus: Sequence[str], host: str = "127.0.0.1", port: int = 8000, tensor_parallel: int = 1
) -> list[ServerCommand]:
    """Return one server per `tensor_parallel` GPUs, or a single one if no GPU is named, on ports from `port` up."""
    lora = config.model.lora
    rank = next((r for r in RANKS if lora is not None and r >= lora.r), RANKS[-1])
    # Training needs the versions of all steps in progress and the next one. `online` needs the one that answers, the
    # next one, and one that a caller names.
    versions = max(config.rollouts.max_staleness + 2, 3)
    length = max(config.training.max_trajectory_tokens, config.online.max_trajectory_tokens)
    arguments = [
        "vllm",
        "serve",
        model_path(config.model.base),
        "--enable-lora",
        f"--max-lora-rank={rank}",
        f"--max-loras={versions}",
        f"--max-cpu-loras={2 * versions}",
        f"--dtype={config.model.sampling}",
        f"--max-model-len={length}",
        "--logprobs-mode=processed_logprobs",
        "--enable-scale-out",
        f"--host={host}",
    ]
    if tensor_parallel > 1:
        arguments.append(f"--tensor-parallel-size={tensor_parallel}")
    devices = [",".join(gpus[i : i + tensor_parallel]) for i in range(0, len(gpus), tensor_parallel)]
    commands = []
    for number, gpu in enumerate(devices or [""]):
        variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
        if gpu:
            variables["CUDA_VISIBLE_DEVICES"] = gpu
        commands.append(
            ServerCommand(variables, [*arguments, f"--port={port + number}"], f"http://{host}:{port + number}")
        )
    return commands


def model_path(base: str) -> str:
    """Return the name of the base model on a server."""
    if base == BUILTIN_MODEL:
        return str(Path(__file__).parents[1] / "demonstration" / "policies" / "base")
    return base


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.said = code, message


def check_server(url: str, key: str | None = None) -> Iterator[Fact]:
    """Yield one line per requirement of rollouts: version, key, token endpoint, adapters, kind of log-probs."""
    url = url.rstrip("/")
    try:
        version = str(_call(url, "/version", key)["version"])
        served = _call(url, "/v1/models", key)["data"]
        base = str(served[0]["id"])
    except _Refused as problem:
        advice = "set the key that rollouts.api_key_env names (GRPO_TUI_VLLM_KEY)" if problem.code == 401 else RESTART
        yield Fact("missing", f"server {url} refuses to list its models ({problem})", advice)
        return
    except (OSError, ValueError, KeyError, IndexError, TypeError) as problem:
        reason = getattr(problem, "reason", problem)
        yield Fact("missing", f"server {url} does not answer ({reason})", "start it: grpo-tui rollouts serve MODEL")
        return
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield Fact("missing", f"server {url} runs vLLM {version}", f"install vllm {oldest} or later there")
    else:
        yield Fact("good", f"server {url} runs vLLM {version} with {base}")
    yield _adapters(url, key)
    yield from _tokens(url, base, key)


def _adapters(url: str, key: str | None) -> Fact:
    """Ask for an adapter that cannot exist. A server that can load adapters reports it as missing; others do not know
    the request."""
    try:
        _call(url, "/v1/load_lora_adapter", key, {"lora_name": "grpo-tui-doctor", "lora_path": "/nowhere/grpo-tui"})
    except _Refused as problem:
        if "lora" in problem.said.lower() and "not enabled" not in problem.said.lower():
            return Fact("good", f"server {url} loads adapters")
        advice = f"{RESTART}: VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve … --enable-lora"
        return Fact("missing", f"server {url} does not load adapters ({problem})", advice)
    except (OSError, ValueError) as problem:
        return Fact("missing", f"server {url} closed the connection when asked for an adapter ({problem})", RESTART)
    return Fact("missing", f"server {url} claims to have loaded adapters that do not exist", RESTART)


def _tokens(url: str, base: str, key: str | None) -> Iterator[Fact]:
    """Draw a token at temperature 2. Its log-prob must differ from the one at temperature 1."""
    try:
        first = _generate(url, base, key, TEXT, temperature=2.0)["choices"][0]
        token, logprob = first["token_ids"][0], float(first["logprobs"]["content"][0]["logprob"])
        second = _generate(url, base, key, [*TEXT, token], temperature=1.0)
        raw = float(second["prompt_logprobs"][-1][str(token)]["logprob"])
    except _Refused as problem:
        advice = f"{RESTART}: vllm serve … --enable-scale-out" if problem.code in (403, 404) else RESTART
        yield Fact("missing", f"server {url} generates no tokens ({problem})", advice)
        return
    except (OSError, ValueError, KeyError, IndexError, TypeError) as problem:
        yield Fact("missing", f"server {url} returns an unreadable answer ({problem})", RESTART)
        return
    yield Fact("good", f"server {url} accepts and returns token ids")
    if abs(logprob - raw) < 1e-3:
        advice = f"{RESTART}: vllm serve … --logprobs-mode processed_logprobs"
        yield Fact("missing", f"server {url} returns log-probs that ignore the temperature", advice)
    else:
        yield Fact("good", f"server {url} returns log-probs at the sampling temperature")


def _generate(url: str, model: str, key: str | None, tokens: Sequence[int], temperature: float) -> dict:
    sampling = {"max_tokens": 1, "temperature": temperature, "top_p": 1.0, "top_k": 0, "seed": 0, "ignore_eos": True}
    sampling |= {"logprobs": 0, "prompt_logprobs": 1}
    body = {"model": model, "token_ids": list(tokens), "sampling_params": sampling, "request_id": "grpo-tui-doctor"}
    return _call(url, "/inference/v1/generate", key, body)


def _call(url: str, path: str, key: str | None, body: Mapping[str, object] | None = None) -> dict:
    """Send a request and parse its JSON answer. Raises _Refused, OSError, ValueError."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy: servers are given by address
    try:
        with opener.open(urllib.request.Request(url + path, data, headers), timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as problem:
        reason = " ".join(problem.read(2000).decode("utf-8", "replace").split())
        raise _Refused(problem.code, "".join(c for c in reason if c.isprintable())[:160]) from None
