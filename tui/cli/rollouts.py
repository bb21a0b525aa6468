"""`grpo-tui rollouts`: inference servers that write the turns of rollouts."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Annotated

import typer

from .common import ExitCode, SetOption, fail, say

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def rollouts() -> None:
    """Run inference servers for rollouts (rollouts.engine: vllm)."""


@app.command("serve")
def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A hub id, a folder, a preset or a configuration.")],
    gpus: Annotated[str, typer.Option(metavar="0,1", help="The GPUs to use, by default one server each.")] = "",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs per server.")] = 1,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The first server's port. The others follow.")] = 8000,
    only_print: Annotated[bool, typer.Option("--print", help="Print the commands without running them.")] = False,
    set_: SetOption = None,
) -> None:
    """Print and run the `vllm serve` commands that rollouts need. If one server ends, all end."""
    from ...configs.loading import presets
    from ...engine.launch.outcome import safe_path
    from ...engine.launch.rollout_servers import serve_commands
    from .config import load

    known = model.removesuffix(".yaml") in presets() or model.endswith((".yaml", ".yml"))
    # What trains on the servers says itself that it does.
    options: dict[str, tuple[str, object]] = {
        "rollouts.engine": ("serve", "vllm"),
        "rollouts.servers": ("serve", [f"http://{host}:{port}"]),
    }
    if not known:
        options["model.base"] = ("MODEL", model)
    config = load(model if known else None, set_, options=options)
    if config.model.lora is None:
        fail("model.lora is null, but servers need adapters: set r, alpha, … of model.lora", ExitCode.USAGE)
    gpu_ids = [g.strip() for g in gpus.split(",") if g.strip()]
    if len(gpu_ids) % tensor_parallel:
        fail(f"--gpus has {len(gpu_ids)} GPUs, not a multiple of --tensor-parallel {tensor_parallel}", ExitCode.USAGE)
    commands = serve_commands(config, gpu_ids, host, port, tensor_parallel)
    for command in commands:
        say(shlex.join([*(f"{k}={v}" for k, v in command.variables.items()), *command.arguments]))
    urls = ", ".join(c.url for c in commands)
    say(f"train on them with --set rollouts.engine=vllm --set 'rollouts.servers=[{urls}]'")
    if only_print:
        return
    if shutil.which("vllm") is None:
        fail("vllm is not installed; in a separate environment: pip install 'vllm>=0.32'")
    key = os.environ.get(config.rollouts.api_key_env)
    secret = {"VLLM_API_KEY": key} if key else {}
    environment = {**os.environ, **safe_path(), **secret}
    raise typer.Exit(_run([(c.arguments, {**environment, **c.variables}) for c in commands]))


def _run(commands: list[tuple[Sequence[str], dict[str, str]]]) -> int:
    """Run the servers until one ends or a signal ends them all (a second one kills them), and return the exit code."""
    asked: list[int] = []  # a handler that raises could lose a server that is just being started
    before = {n: signal.signal(n, lambda number, frame: asked.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    processes: list[subprocess.Popen[bytes]] = []
    code = answered = 0
    try:
        for arguments, environment in commands:
            processes.append(subprocess.Popen(arguments, env=environment))
        while processes:
            if len(asked) > answered:
                answered = len(asked)
                for process in processes:
                    process.terminate() if answered == 1 else process.kill()
            for process in list(processes):
                try:
                    code = max(code, abs(process.wait(timeout=0.5)))
                except subprocess.TimeoutExpired:
                    continue
                processes.remove(process)
                for other in processes:
                    other.terminate()
    finally:
        for n, old in before.items():
            signal.signal(n, old)
    return 128 + asked[0] if asked else min(code, 1)
