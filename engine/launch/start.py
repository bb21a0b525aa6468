"""Start or resume a run: first its folder and files, then its processes."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..runs.columns import SCHEMA_VERSION
from ..runs.control import requests as control
from ..runs.control.status import ENDED, look, process_names, process_state
from ..runs.durable import Locked, hold, make_folder, read_json, replace_file, sync_folder
from ..runs.masking import mask, mask_command
from ..runs.paths import CONFIG_FILE, LOGS, PROCESSES, RUN_FILE, new_run_id, pinned
from ..runs.read.record import damage
from ..runs.types import RunInfo
from . import LaunchError, trainer
from .children import spawn
from .find import find_run
from .settings import config_checksum, config_damage, configuration_id, keep_settings, rendered, restore_settings
from .stop import wait_until_gone

if TYPE_CHECKING:
    from ...configs.schema import RunConfig

MODULES = {"training": "grpo_tui.engine.training"}
PLAY_MODULES = {"play": "grpo_tui.engine.training.play"}
ONLINE_MODULES = {"engine": "grpo_tui.engine.online.serve.engine", "worker": "grpo_tui.engine.online.learn.worker"}
ENDING_SECONDS = 10.0
"""Resuming waits this long for processes of the run that are about to end."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def start_run(
    config: RunConfig,
    *,
    runs_dir: Path,
    run_id: str | None = None,
    resume: str | None = None,
    num_processes: int = 1,
    accelerate_config: Path | None = None,
    by_hand: bool = False,
    stdin: int | IO[bytes] | None = None,
    stdout: int | IO[bytes] | None = None,
) -> RunInfo:
    """Start the processes of a run and return immediately, with status `starting`.

    resume: a run (id, prefix, path) to resume instead of creating one. num_processes > 1 or an accelerate config start
    training with `accelerate launch`. by_hand: the user plays the tasks; nothing is trained. stdin, stdout: for the
    inference engine in a pipe and for play. Without them, all output goes to the log. An engine that does not read
    requests from `stdin` stops when that pipe closes. Raises RunNotFound, and LaunchError, also if the trainer is not
    installed.
    """
    if config.mode == "online" and os.name != "posix":
        raise LaunchError("grpo-tui online needs Linux or macOS: Windows lacks the file locks that it needs")
    trainer.require("play" if by_hand else "serving" if config.mode == "online" else "training")
    trainer.check_processes(config.mode, accelerate_config)
    mode = "play" if by_hand else config.mode
    run_dir = _made(runs_dir, run_id) if resume is None else Path(find_run(runs_dir, resume).path)
    with _exclusive(run_dir):
        if resume is not None:
            _prepare_resume(run_dir)
        elif config.model.sft_adapters is not None:
            # A resumed run starts from the same adapters, even if other runs have ended since.
            model = config.model.model_copy(update={"sft_adapters": pinned(config.model.sft_adapters)})
            config = config.model_copy(update={"model": model})
        try:
            if resume is not None:
                keep_settings(run_dir)
            secrets = _write_settings(config, run_dir, mode, num_processes, resumed=resume is not None)
            control.clear(run_dir)
            (run_dir / LOGS).mkdir(exist_ok=True)
            for name, module in {"online": ONLINE_MODULES, "play": PLAY_MODULES}.get(mode, MODULES).items():
                command = _command(module, run_dir, num_processes, accelerate_config, resume=resume is not None)
                pipes = {"stdin": stdin, "stdout": stdout} if name in ("engine", "play") else {}
                repeatable = name != "engine"  # its answers depend on other requests anyway
                spawn(run_dir, name, command, environment=secrets, repeatable=repeatable, **pipes)
        except (OSError, LaunchError) as error:
            if resume is None:
                shutil.rmtree(run_dir, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    restore_settings(run_dir)
            if isinstance(error, LaunchError):
                raise
            raise LaunchError(f"the run cannot be started in {run_dir}: {error.strerror or error}") from error
        return look(run_dir)


@contextmanager
def _exclusive(run_dir: Path) -> Iterator[None]:
    """Allow only one command at a time to start or resume this run."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold(run_dir, "start"))
        except Locked:
            raise LaunchError(f"run {run_dir.name} is being started by another command right now") from None
        except OSError as error:
            raise LaunchError(f"the run cannot be started in {run_dir}: {error.strerror or error}") from error
        yield


def _made(runs_dir: Path, run_id: str | None) -> Path:
    if run_id is not None and not _ID.fullmatch(run_id):
        raise LaunchError(f"{run_id!r} is not a valid run id: use letters, digits, `.`, `_` and `-`, at most 64")
    if run_id == "latest":
        raise LaunchError("'latest' means the newest run and cannot be an id: choose another")
    try:
        make_folder(runs_dir)
        run_dir = runs_dir / (run_id or new_run_id(runs_dir))
        run_dir.mkdir()
        sync_folder(runs_dir)
    except FileExistsError:
        if run_id is None:  # another command took this name at the same time
            return _made(runs_dir, None)
        raise LaunchError(
            f"there is already a run {run_id} in {runs_dir}: choose another id, or continue it with --resume {run_id}"
        ) from None
    except OSError as error:
        raise LaunchError(f"no run can be created in {runs_dir}: {error.strerror or error}") from error
    return run_dir


def _prepare_resume(run_dir: Path) -> None:
    """Delete the status files of earlier processes. Raises LaunchError if one is alive or the record is damaged."""
    info = look(run_dir)
    if info.status not in ENDED:
        raise LaunchError(f"run {info.id} is {info.status} (pid {info.pid}): stop it first, or watch it with inspect")
    known = read_json(run_dir / RUN_FILE).get("config_checksums")
    if problem := config_damage(run_dir, known if isinstance(known, list) else ()):
        raise LaunchError(problem)
    if names := wait_until_gone(run_dir, ENDING_SECONDS):
        pid = process_state(run_dir, names[0]).get("pid")
        raise LaunchError(
            f"the process {names[0]!r} (pid {pid}) of run {info.id} is still alive: `grpo-tui stop {info.reference}` "
            "ends it"
        )
    if problem := damage(run_dir):
        raise LaunchError(
            f"{problem}; `grpo-tui repair {info.reference}` saves the readable part into a new record, then resume "
            "the run"
        )
    for name in process_names(run_dir):
        (run_dir / PROCESSES / f"{name}.json").unlink(missing_ok=True)


def _write_settings(
    config: RunConfig, run_dir: Path, mode: str, num_processes: int, *, resumed: bool
) -> dict[str, str]:
    """Write run.json and config.yaml. Returns the environment variables with the secrets.

    run.json is written first and also keeps the checksum of the previous config.yaml, so a run killed between the two
    writes can be resumed.
    """
    text, secrets = rendered(config)
    checksums = {config_checksum(text)}
    with contextlib.suppress(OSError):
        checksums.add(config_checksum((run_dir / CONFIG_FILE).read_bytes()))
    old = read_json(run_dir / RUN_FILE) if resumed else {}
    facts: dict[str, object] = {**gather(), "num_processes": num_processes}
    facts |= {"configuration": configuration_id(config), "seed": config.seed, "subject": config.evaluation.subject}
    if resumed:
        facts["resumed"] = [*old.get("facts", {}).get("resumed", []), time.time()]
    data = {
        "id": run_dir.name,
        "name": old.get("name") or config.name,
        "mode": mode,
        "created": old.get("created") or time.time(),
        "launched": time.time(),
        "environment": mask(_environment(config)),
        "model": mask(config.model.base),
        "schema_version": SCHEMA_VERSION,
        "config_checksums": sorted(checksums),
        "facts": facts,
    }
    replace_file(run_dir / RUN_FILE, json.dumps(data, default=str, indent=1).encode())
    replace_file(run_dir / CONFIG_FILE, text)
    return secrets


def _environment(config: RunConfig) -> str:
    """Return a short name: the environment class, or the file if it holds tasks of several environments."""
    from ...configs.sections.data import holds_tasks

    source = config.data.source
    if source is not None and holds_tasks(source):
        return Path(source).stem
    return re.split(r"[./:]", config.environment.class_path)[-1]


def _command(module: str, run_dir: Path, num_processes: int, accelerate: Path | None, *, resume: bool) -> list[str]:
    program = ["-m", module, str(run_dir), *(["--resume"] if resume else [])]
    if module not in MODULES.values() or (num_processes == 1 and accelerate is None):
        return [sys.executable, *program]
    options = ["--num_processes", str(num_processes)] if num_processes > 1 or accelerate is None else []
    if trainer.accelerate_settings(accelerate).get("main_process_port") is None:  # set if several machines meet
        options += ["--main_process_port", str(_free_port())]
    if accelerate is not None:
        options += ["--config_file", str(accelerate)]
    else:
        options += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        if num_processes > 1:
            options.append("--multi_gpu")  # torchrun, even on CPUs: without MPI, --cpu starts a single process
    return [sys.executable, "-m", "accelerate.commands.launch", *options, *program]


def _free_port() -> int:
    """Return a port on which nothing listens now, so that two runs on one machine do not connect to each other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


PACKAGES = ("grpo-tui", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "numpy")
VARIABLES = (
    "CUDA_", "OMP_", "MKL_", "NCCL_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "WANDB_", "ACCELERATE_", "PYTORCH_",
)  # fmt: skip


def gather() -> dict[str, object]:
    """Return facts about the environment of a run as plain data with masked secrets."""
    return mask(
        {
            "command": mask_command(sys.argv),
            "folder": os.getcwd(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "packages": {name: found for name in PACKAGES if (found := _version(name))},
            "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES)},
        }
    )


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
