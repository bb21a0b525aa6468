"""`grpo-tui online`: serve answers and learn from them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .common import ExitCode, Home, SetOption, fail, say, warn
from .config import ConfigArgument, chosen_lines, load
from .train import DatasetOption, HeadlessOption, ModelOption, RewardOption, RunIdOption, given_options, own, watch


def online(
    config: ConfigArgument = None,
    model: ModelOption = None,
    dataset: DatasetOption = None,
    reward: RewardOption = None,
    set_: SetOption = None,
    requests: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="JSON lines with requests. - reads standard input and answers on standard output."
        ),
    ] = None,
    serve: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve the OpenAI API (/v1/chat/completions) over HTTP.")
    ] = None,
    run_id: RunIdOption = None,
    headless: HeadlessOption = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Resume a run.")] = None,
    *,
    home: Home,
) -> None:
    """Serve answers and learn from them at the same time, with an inference engine and an update worker.

    Requests come from the configuration's environment, from a JSONL file or standard input (--requests FILE or -), or
    over HTTP (--serve HOST:PORT).
    """
    from ...engine.launch.find import find_run
    from ...engine.launch.start import start_run

    if requests is not None and serve is not None:
        fail("--requests and --serve exclude each other; give one", ExitCode.USAGE)
    options = own(model, dataset, reward)
    if resume is not None and (run_id is not None or config is not None or options):
        fail(
            "--resume keeps the run's id and configuration; leave --run-id, CONFIG, --model, --dataset and --reward "
            "out",
            ExitCode.USAGE,
        )
    old = find_run(home, resume) if resume is not None else None
    if requests is not None and requests != "-" and not Path(requests).is_file():
        fail(f"--requests: there is no file {requests}; give a JSONL file, or - for standard input", ExitCode.USAGE)
    if model and not (config or dataset):
        options |= _conversations(model, set_ or ())
    options |= given_options({"online.requests": ("--requests", requests), "online.serve": ("--serve", serve)})
    source = str(Path(old.path) / "config.yaml") if old is not None else config
    settings = load(source, set_, "online", options=options, paths=old is None)
    piped = settings.online.requests == "-"
    # in a pipe standard output carries the answers, so what is told goes to standard error
    out = warn if piped else say
    for line in chosen_lines(settings, config, set_, options) if old is None else ():
        out(line)
    run = start_run(
        settings,
        runs_dir=home,
        run_id=run_id,
        resume=old.path if old is not None else None,
        stdin=sys.stdin.fileno() if piped else None,
        stdout=sys.stdout.fileno() if piped else None,
    )
    watch(home, run, headless=headless or piped, out=out)


def _conversations(model: str, overrides: Sequence[str]) -> dict[str, tuple[str, object]]:
    """Return the options for a model of the user's own, which holds conversations."""
    from ...configs.model_defaults import BUILTIN
    from ...configs.schema import CHAT_ENV

    if model.startswith(BUILTIN) or any(o.startswith(("environment.", "data.")) for o in overrides):
        return {}
    return {"environment.class_path": ("--model", CHAT_ENV), "environment.eval_tasks": ("--model", 0)}
