"""`grpo-tui train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from .common import ExitCode, Home, SetOption, ask, fail, known_runs, on_terminal, say
from .config import ConfigArgument, chosen_lines, load

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ...engine.runs.types import RunInfo


QUICK_STEPS, QUICK_TASKS = 8, 8
"""How far `--quick` goes at most."""
ModelOption = Annotated[str | None, typer.Option("--model", help="The model: a hub id or a folder (model.base).")]
DatasetOption = Annotated[
    str | None, typer.Option("--dataset", help="The data: a file, a saved dataset or a hub id (data.source).")
]
RewardOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reward",
        metavar="FUNCTION[:WEIGHT]",
        help="A reward function with TRL's signature, such as rewards.py:accuracy or "
        "trl.rewards.think_format_reward:0.2. Can be repeated.",
    ),
]
RunIdOption = Annotated[str | None, typer.Option(help="Id of the new run. Default: a generated id.")]
HeadlessOption = Annotated[bool, typer.Option("--headless", help="Print plain lines, even on a terminal.")]
ResumeOption = Annotated[
    str | None, typer.Option(metavar="RUN", help="Resume a run from its last checkpoint.", autocompletion=known_runs)
]
AccelerateOption = Annotated[
    Path | None,
    typer.Option(help="An accelerate config for several GPUs or machines. FSDP2 works; FSDP 1 and DeepSpeed do not."),
]
Mode = StrEnum("Mode", ["sft", "rft"])


def train(
    config: ConfigArgument = None,
    mode: Annotated[Mode | None, typer.Option(help="sft or rft. Default: the mode of the configuration.")] = None,
    model: ModelOption = None,
    dataset: DatasetOption = None,
    reward: RewardOption = None,
    set_: SetOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Try the configuration on two rollouts and print the result. Nothing is kept."),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help=f"Run a short test: at most {QUICK_STEPS} steps and {QUICK_TASKS} held-out tasks."
        ),
    ] = False,
    run_id: RunIdOption = None,
    headless: HeadlessOption = False,
    resume: ResumeOption = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Train with this many seeds, one run after another, and print the mean.")
    ] = 1,
    num_processes: Annotated[int, typer.Option(min=1, help="Number of training processes (accelerate launch).")] = 1,
    accelerate_config: AccelerateOption = None,
    *,
    home: Home,
) -> None:
    """Train a policy, supervised (--mode sft) or by reinforcement (--mode rft), and watch it live.

    The run continues when you leave the live view or close the terminal. `grpo-tui stop RUN` saves and stops it.
    Without a terminal, or with --headless, progress is printed as lines and Ctrl-C saves and stops the run.
    """
    from ...engine.launch.start import start_run

    if accelerate_config is not None and not accelerate_config.is_file():
        wrong = f"there is no file {accelerate_config}; create one with `accelerate config`"
        fail(f"--accelerate-config: {wrong}", ExitCode.USAGE)
    old = None
    if resume is not None:
        arguments = {"CONFIG": config, "--mode": mode, "--model": model, "--dataset": dataset, "--reward": reward}
        old, settings = _recorded(home, resume, arguments, set_, run_id, seeds)
    else:
        settings = _new(config, mode, own(model, dataset, reward), set_)
    if quick:
        _shorten(settings)
    _try_code(settings, old)
    if dry_run:
        from .dry_run import dry_run as trial

        if old is not None or settings.mode != "rft":
            fail("--dry-run needs a new run of mode rft; leave --resume out and use --mode rft", ExitCode.USAGE)
        raise typer.Exit(trial(settings))
    if old is not None:
        _refuse_or_end(old, settings)
    start = partial(start_run, runs_dir=home, num_processes=num_processes, accelerate_config=accelerate_config)
    if seeds > 1:
        raise typer.Exit(_train_seeds(home, settings, seeds, run_id, start))
    run = start(settings, run_id=run_id, resume=None if old is None else old.path)
    watch(home, run, headless=headless)


def _new(
    config: str | None, mode: Mode | None, options: Mapping[str, tuple[str, object]], set_: list[str] | None
) -> RunConfig:
    """Return the configuration of a new run. Prints the values that follow from the model."""
    settings = load(config, set_, mode and str(mode), options=options, paths=True)
    _refuse_modes(settings, "online", "eval")
    for line in chosen_lines(settings, config, set_, options):
        say(line)
    return settings


def _recorded(
    home: Path, resume: str, arguments: Mapping[str, object], set_: list[str] | None, run_id: str | None, seeds: int
) -> tuple[RunInfo, RunConfig]:
    """Return the run to resume, and its own configuration. `arguments`: options that must be absent."""
    from ...engine.launch.find import find_run

    if run_id is not None:
        fail("--resume keeps the run's id; leave --run-id out", ExitCode.USAGE)
    if seeds > 1:
        fail("--seeds resumes stopped runs itself; leave --resume out", ExitCode.USAGE)
    wrong = next((name for name, value in arguments.items() if value is not None), None)
    if wrong is not None:
        fail(f"--resume uses the run's own configuration; leave {wrong} out (--set can change values)", ExitCode.USAGE)
    old = find_run(home, resume)
    if not old.resume_command:
        fail(f"run {old.id} has mode {old.mode} and cannot be resumed", ExitCode.USAGE)
    settings = load(str(Path(old.path) / "config.yaml"), set_)
    _refuse_modes(settings, "online")
    return old, settings


def _refuse_modes(settings: RunConfig, *modes: str) -> None:
    if settings.mode in modes:
        start_it = f"start it with `grpo-tui {settings.mode}`, or give --mode sft|rft"
        fail(f"this configuration has mode: {settings.mode}; {start_it}", ExitCode.USAGE)


def _try_code(settings: RunConfig, old: RunInfo | None) -> None:
    """Call the user's reward functions and tools once before a new run is made. A fault ends the command."""
    from ...engine.launch.trainer import missing

    code = settings.environment.reward_funcs or settings.environment.tools
    if code and old is None and settings.mode == "rft" and not missing():
        ask("grpo_tui.engine.training.previews", settings, "code", code=ExitCode.USAGE)


def _shorten(settings: RunConfig) -> None:
    settings.training.max_steps = min(settings.training.max_steps or QUICK_STEPS, QUICK_STEPS)
    settings.environment.eval_tasks = min(settings.environment.eval_tasks, QUICK_TASKS)
    settings.training.eval_every = 0
    settings.training.trl.pop("num_train_epochs", None)
    sft = settings.sft
    sft.max_steps = min(sft.max_steps or QUICK_STEPS, QUICK_STEPS)
    if sft.eval_tasks is not None or sft.data is None:
        sft.eval_tasks = QUICK_TASKS if sft.eval_tasks is None else min(sft.eval_tasks, QUICK_TASKS)


def own(model: str | None, dataset: str | None, reward: list[str] | None) -> dict[str, tuple[str, object]]:
    """Return the values of `--model`, `--dataset` and `--reward`, by key of the configuration."""
    return given_options(
        {
            "model.base": ("--model", model),
            "data.source": ("--dataset", dataset),
            "environment.reward_funcs": ("--reward", reward),
        }
    )


def given_options(options: Mapping[str, tuple[str, object]]) -> dict[str, tuple[str, object]]:
    """Return the options that have a value, by key of the configuration."""
    return {key: option for key, option in options.items() if option[1] is not None}


def _refuse_or_end(run: RunInfo, settings: RunConfig) -> None:
    """End the command when there is nothing to go on with: all steps are made, or no checkpoint is there.

    Whether a checkpoint is whole is for the training process to see.
    """
    from ...engine.runs.health.checkpoints import checkpoint_folder, checkpoints
    from ...engine.runs.paths import adapters_dir

    section = settings.sft if settings.mode == "sft" else settings.training
    total = section.max_steps or run.total_steps
    if run.status == "finished" and total is not None and run.step >= total:
        key = "sft" if settings.mode == "sft" else "training"
        folder = adapters_dir(section.output_dir, Path(run.path).name)
        if folder.is_dir():
            say(
                f"run {run.id} has finished {'its step' if total == 1 else f'all {total} steps'}. "
                f"Its adapters are in {folder}. "
                f"For more steps: grpo-tui train --resume {run.reference} --set {key}.max_steps={2 * total}"
            )
            raise typer.Exit(ExitCode.OK)
    elif run.step > 0 and not run.active and not checkpoints(checkpoint_folder(Path(run.path))):
        fail(
            f"run {run.id} has no checkpoint to resume from. Its record stays unchanged. For a new run with the same "
            f"configuration: grpo-tui train {quote(f'{run.path}/config.yaml')}"
        )


def _train_seeds(home: Path, settings: RunConfig, seeds: int, run_id: str | None, start: Callable[..., RunInfo]) -> int:
    """Train with `seeds` seeds from `seed` on and return the exit code. A seed that has finished is not repeated.

    start: `start_run` for this command.
    """
    from ...engine.launch.find import find_run
    from ...engine.runs.health.checkpoints import checkpoint_folder, checkpoints
    from ..app.run_list import seeds_line
    from .follow import follow
    from .run_table import headline

    done: list[RunInfo] = []
    for number in range(seeds):
        config = settings.model_copy(update={"seed": settings.seed + number})
        run = _run_of(home, config)
        title = f"seed {config.seed}, {number + 1} of {seeds}"
        if run is not None and run.active:
            fail(f"{title}: run {run.id} is {run.status} already; wait for it, or stop it", ExitCode.USAGE)
        if run is not None and run.status == "finished":
            say(f"{title}: run {run.id} has finished")
        else:
            resumed = run.id if run is not None and checkpoints(checkpoint_folder(Path(run.path))) else None
            run = start(config, run_id=run_id and f"{run_id}-{config.seed}", resume=resumed)
            say(f"{title}: run {run.id} {'resumes' if resumed else 'started'}; its record is in {run.path}")
            code = follow(run)
            run = find_run(home, run.path)
            if code or run.status != "finished":
                say(f"{title}: ended early; the same command continues from here")
                return code or ExitCode.FAILED
        done.append(run)
    say(seeds_line([headline(run) for run in done]))
    return ExitCode.OK


def _run_of(home: Path, config: RunConfig) -> RunInfo | None:
    """Return the newest run with this configuration and seed."""
    from ...engine.launch.find import list_runs
    from ...engine.launch.settings import configuration_id

    configuration = configuration_id(config), config.seed
    found = [run for run in list_runs(home) if (run.facts.get("configuration"), run.facts.get("seed")) == configuration]
    return max(found, key=lambda run: run.created, default=None)


def watch(home: Path, run: RunInfo, *, headless: bool, out: Callable[[str], None] = say) -> None:
    """Show the live view on a terminal, or print lines. Ends the command with the run's exit code."""
    if headless or not on_terminal():
        from .follow import follow

        out(f"run {run.id} ({run.mode}, {run.environment}, {run.model}) started; its record is in {run.path}")
        raise typer.Exit(follow(run, out=out))

    from ...engine.launch.find import find_run
    from ..app.destinations import Live
    from .app import open_run
    from .follow import tell_end

    open_run(home, run, Live(Path(run.path)))
    after = find_run(home, run.id)
    if not after.active:
        tell_end(after, out)
        raise typer.Exit(ExitCode.FAILED if after.status == "crashed" else ExitCode.OK)
