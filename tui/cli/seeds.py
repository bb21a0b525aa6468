"""`grpo-tui train --seeds N`: one configuration with several seeds, and the mean over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...configs.schema import RunConfig
from ...engine.launch.find import find_run, list_runs
from ...engine.launch.settings import configuration_id
from ...engine.runs.health.checkpoints import checkpoint_folder, checkpoints
from ...engine.runs.types import RunInfo
from ..seeds import seeds_line
from .common import ExitCode, fail, say
from .follow import follow
from .run_table import headline


def train_seeds(
    home: Path,
    settings: RunConfig,
    seeds: int,
    run_id: str | None,
    start: Callable[[RunConfig, str | None, str | None], RunInfo],
) -> int:
    """Train with `seeds` seeds from `seed` on and return the exit code. A seed that has finished is not repeated.

    start: starts a run with a configuration and an id, or resumes the run that its third argument names.
    """
    done: list[RunInfo] = []
    for number in range(seeds):
        config = settings.model_copy(update={"seed": settings.seed + number})
        run = _made(home, config)
        title = f"seed {config.seed}, {number + 1} of {seeds}"
        if run is not None and run.active:
            fail(f"{title}: run {run.id} is {run.status} already; wait for it, or stop it", ExitCode.USAGE)
        if run is not None and run.status == "finished":
            say(f"{title}: run {run.id} has finished")
        else:
            resumed = run.id if run is not None and checkpoints(checkpoint_folder(Path(run.path))) else None
            run = start(config, run_id and f"{run_id}-{config.seed}", resumed)
            say(f"{title}: run {run.id} {'resumes' if resumed else 'started'}; its record is in {run.path}")
            code = follow(run)
            run = find_run(home, run.path)
            if code or run.status != "finished":
                say(f"{title}: ended early; the same command continues from here")
                return code or ExitCode.FAILED
        done.append(run)
    say(seeds_line([headline(run) for run in done]))
    return ExitCode.OK


def _made(home: Path, config: RunConfig) -> RunInfo | None:
    """Return the newest run with this configuration and seed."""
    wanted = configuration_id(config), config.seed
    found = [run for run in list_runs(home) if (run.facts.get("configuration"), run.facts.get("seed")) == wanted]
    return max(found, key=lambda run: run.created, default=None)
