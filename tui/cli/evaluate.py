"""`grpo-tui eval`: evaluate policies on held-out tasks, and compare them task by task."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...engine.launch.find import find_run
from ...engine.launch.settings import read_config
from ...engine.runs.paths import CONFIG_FILE
from ..format import MINUS
from .common import ExitCode, Home, JsonOption, SetOption, fail, json_line, on_terminal, say, warn
from .config import load
from .train import RewardOption, own

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ...engine.evaluation.results import Comparison, Evaluation
    from ...engine.evaluation.subjects import Subject


def evaluate(
    subjects: Annotated[list[str], typer.Argument(metavar="SUBJECT", help="Policies. The first is the baseline.")],
    model: Annotated[str | None, typer.Option(help="Name of the model, for an endpoint given as a URL.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the endpoint's API key. Default: OPENAI_API_KEY.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="Configuration with tasks and rewards.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Tasks from a dataset, as in train.")] = None,
    reward: RewardOption = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Number of held-out tasks.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Rollouts per task.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Sampling temperature; 0 is greedy. Default: 0, or 1 with --samples > 1.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of tasks and sampling.")] = None,
    set_: SetOption = None,
    json_: JsonOption = False,
    fail_under: Annotated[
        float | None, typer.Option(min=0, help="Exit with 1 if the last success rate (0 to 1) is lower.")
    ] = None,
    regression: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            help="Exit with 1 if the last is worse than the first by more than this many percentage points (95 %).",
        ),
    ] = None,
    *,
    home: Home,
) -> None:
    """Evaluate policies on held-out tasks, with intervals, and compare several task by task.

    A SUBJECT is a run (its final adapters), RUN@STEP (a checkpoint), RUN@base (the policy it started from), a folder of
    adapters or of a model, a hub id, or an endpoint with the OpenAI API (URL@NAME, or URL with --model). Tasks and
    rewards come from the first run, unless --config or --dataset set others. Each evaluation is recorded as a separate
    run. A stopped evaluation continues, and a finished one is not repeated.
    """
    from ...configs.sections.model import ENDPOINT
    from ...engine.evaluation.results import compare, read_evaluation
    from ...engine.evaluation.subjects import find_subject

    found = [find_subject(text, home, model) for text in subjects]
    if (model or api_key_env) and not any(s.name.startswith(ENDPOINT) for s in found):
        fail("--model and --api-key-env need an endpoint, such as http://127.0.0.1:8000/v1", ExitCode.USAGE)
    base = _base_config(found, config, dataset, reward, set_)
    if base is not None and api_key_env is not None:
        base.evaluation.api_key_env = api_key_env
    folders = [evaluated(home, s, base, tasks, samples, temperature, seed, quiet=json_) for s in found]
    results = [read_evaluation(folder) for folder in folders]
    compared = [compare(results[0], other) for other in results[1:]]
    if json_:
        say(json_line({"evaluations": [_plain(r) for r in results], "differences": [_plain_pair(c) for c in compared]}))
    else:
        _show(results, compared)
    _judge(results, compared, fail_under, regression)


def _judge(
    results: Sequence[Evaluation], compared: Sequence[Comparison], fail_under: float | None, regression: float | None
) -> None:
    """End the command with 1 if the last policy is below a limit."""
    last = results[-1].success
    if fail_under is not None and (last is None or last.estimate < fail_under):
        fail(f"the success rate of {results[-1].name} is {'not known' if last is None else f'below {fail_under:g}'}")
    if regression is not None and compared:
        change = compared[-1].success or compared[-1].reward
        if change.interval.high < -regression / 100:
            fail(f"{results[-1].name} is worse than {results[0].name}")


def evaluated(
    home: Path,
    subject: Subject,
    base: RunConfig | None,
    tasks: int | None = None,
    samples: int = 1,
    temperature: float | None = None,
    seed: int | None = None,
    *,
    quiet: bool,
) -> Path:
    """Return the folder of the finished evaluation of a subject. base: the configuration with tasks and rewards."""
    from ...engine.launch.start import start_run
    from .follow import follow_to_end

    if subject.evaluation is not None:
        folder = subject.evaluation
    else:
        assert base is not None
        used_temperature = (1.0 if samples > 1 else 0.0) if temperature is None else temperature
        config = _spec(subject, base, tasks, samples, used_temperature, seed)
        folder = home / _folder_name(config)
        if not folder.exists():
            follow_to_end(start_run(config, runs_dir=home, run_id=folder.name), out=warn if quiet else say)
            return folder
    run = find_run(home, str(folder))
    if run.status != "finished":
        run = run if run.active else start_run(read_config(folder), runs_dir=home, resume=str(folder))
        follow_to_end(run, out=warn if quiet else say)
    return folder


def _base_config(
    found: list[Subject], config: str | None, dataset: str | None, reward: list[str] | None, set_: list[str] | None
) -> RunConfig | None:
    """Return the configuration with tasks and rewards; None if all subjects are existing evaluations."""

    if all(s.evaluation is not None for s in found):
        return None
    first = next((s for s in found if s.folder is not None), None)
    if not (config or dataset):
        if first is None or first.folder is None:
            fail("no tasks: give a run, --config, or --dataset with --reward", ExitCode.USAGE)
        return load(str(first.folder / CONFIG_FILE), set_, options=own(None, None, reward))
    if first is not None and first.run is not None:
        model = first.run.model.base
    else:
        model = next((s.weights for s in found if s.weights and not s.is_adapters), None)
    loaded = load(config, set_, "eval", options=own(model, dataset, reward), paths=True)
    data = loaded.data
    if dataset and data.eval_source is None and data.eval_split is None:  # every row is a task, not a tenth of them
        loaded.data = data.model_copy(update={"eval_source": data.source, "eval_split": data.split})
    return loaded


def _spec(
    subject: Subject, base: RunConfig, tasks: int | None, samples: int, temperature: float, seed: int | None
) -> RunConfig:
    from ...configs.sections import EvaluationConfig, RolloutsConfig

    config = subject.configure(base).model_copy(deep=True)
    config.mode, config.name = "eval", ""
    config.rollouts = RolloutsConfig()  # this process samples, also where the run used servers
    if not config.model.is_endpoint:
        config.evaluation = EvaluationConfig()
    spec = config.evaluation
    spec.subject, spec.step, spec.samples, spec.temperature = subject.name, subject.step, samples, temperature
    if tasks is not None:
        config.environment.eval_tasks = tasks
    if seed is not None:
        config.seed = seed
    return config


def _folder_name(config: RunConfig) -> str:
    """Return the name of the folder of the evaluation with this configuration."""
    from ...configs.writing import to_yaml

    digest = hashlib.sha256(to_yaml(config).encode()).hexdigest()[:8]
    subject = config.evaluation.subject
    subject = subject.partition("@")[2] if config.model.is_endpoint else subject
    name = re.sub(r"[^A-Za-z0-9.]+", "-", Path(subject).name).strip("-.")[-40:]
    return f"eval-{name}-{digest}"


def _plain(result: Evaluation) -> dict[str, object]:
    from ..evaluation_text import powers

    passes = {}
    for k in powers(result.spec.samples):
        if (both := result.pass_k(k)) is not None:
            passes |= {f"pass@{k}": both[0], f"pass^{k}": both[1]}
    return {
        "subject": result.spec.subject,
        "step": result.spec.step,
        "run": str(result.path),
        "tasks": len(result.tasks),
        "samples": result.spec.samples,
        "temperature": result.spec.temperature,
        "success": result.success,
        "reward": result.reward,
        **passes,
        "components": result.components,
        "cost": result.cost,
    }


def _plain_pair(c: Comparison) -> dict[str, object]:
    return {
        "first": c.first.name,
        "second": c.second.name,
        "success": c.success,
        "reward": c.reward,
        "components": c.components,
        "gained": [_pair(c, n) for n in c.gained],
        "lost": [_pair(c, n) for n in c.lost],
    }


def _pair(c: Comparison, task: int) -> dict[str, object]:
    a, b = c.first.tasks[task], c.second.tasks[task]
    return {"task": task, "prompt": a.prompt, "first": a.numbers, "second": b.numbers}


def _show(results: list[Evaluation], compared: list[Comparison]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..evaluation_text import difference, summary
    from ..text import literal

    console = Console(width=None if on_terminal() else 200, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for result in results:
        table.add_column(Text(result.name), justify="right")
    for name, cells in summary(results).items():
        table.add_row(Text(name), *map(Text, cells))
    console.print(table)
    for c in compared:
        console.print()
        for line in difference(c):
            console.print(Text(line))
        for n in [*c.gained, *c.lost][:10]:
            (a, i), (b, j) = c.shown(n)
            places = f"{a.path.name} --at {i} · {b.path.name} --at {j}"
            prompt = literal(" ".join(a.tasks[n].prompt.split())[-50:])
            console.print(Text(f"    {'+' if n in c.gained else MINUS} task {n}: {prompt}  ({places})"))
    console.print(
        Text("\nIntervals are 95 %, over tasks. Open an evaluation: grpo-tui inspect " + results[-1].path.name)
    )
