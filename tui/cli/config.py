"""`grpo-tui config show` and `config check`, and `grpo-tui data show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .common import CliError, ExitCode, SetOption, ask, fail, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...configs.schema import RunConfig


app = typer.Typer(help="Show or check a configuration.", rich_markup_mode=None)

ConfigArgument = Annotated[
    str | None,
    typer.Argument(metavar="CONFIG", help="A YAML file or a preset's name. Without it, all defaults apply."),
]


def load(
    config: str | None,
    overrides: list[str] | None,
    mode: str | None = None,
    *,
    options: Mapping[str, tuple[str, object]] | None = None,
    paths: bool = False,
) -> RunConfig:
    """Return a checked `RunConfig`. Ends the command with one line for each problem."""
    from ...configs.errors import ConfigError
    from ...configs.loading import read_source, validate
    from ...engine.runs.masking import mask_text

    try:
        chosen_mode = {} if mode is None else {"mode": (f"--mode {mode}", mode)}
        return validate(read_source(config, overrides or (), {**chosen_mode, **(options or {})}), paths=paths)
    except ConfigError as error:
        fail(mask_text(str(error)), ExitCode.USAGE)


def chosen_lines(
    settings: RunConfig,
    config: str | None,
    overrides: list[str] | None,
    options: Mapping[str, tuple[str, object]] | None = None,
) -> list[str]:
    """Return the values that follow from the model, those of one reason in a line, and a warning for each unusual
    one."""
    from ...configs.loading import read_source
    from ...configs.model_defaults import BUILTIN, chosen, unusual

    if settings.model.base.startswith(BUILTIN):
        return []
    sections = {"rft": ("model", "environment", "training"), "sft": ("model", "sft"), "online": ("model", "online")}
    by_reason: dict[str, list[str]] = {}
    for choice in chosen({**read_source(config, overrides or (), options).data, "mode": settings.mode}):
        section, _, key = choice.key.partition(".")
        if section in sections.get(settings.mode, ()):
            value = "" if choice.value is None else f" {choice.value}"
            by_reason.setdefault(choice.why, []).append(key + value)
    lines = [f"  {', '.join(values)} ({reason})" for reason, values in by_reason.items()]
    head = [f"chosen for {settings.model.base} (your own settings take precedence):"] if lines else []
    return [*head, *lines, *(f"unusual: {warning}" for warning in unusual(settings.model, settings.training))]


@app.command()
def show(config: ConfigArgument = None, set_: SetOption = None) -> None:
    """Print every key with its value, its meaning and its valid values. The output is a valid configuration.

    The first prompt that the policy will read follows, as a comment.
    """
    from ...configs.writing import to_yaml

    loaded = load(config, set_)
    for line in chosen_lines(loaded, config, set_):
        say(f"# {line}")
    print(to_yaml(loaded, comments=True), flush=True)
    say("# The first prompt, as the policy reads it:")
    try:
        prompt = ask("grpo_tui.engine.training.previews", loaded, "prompt")
    except CliError as error:
        prompt = f"cannot be shown: {error}"
    for line in prompt.splitlines():
        say(f"#   {line}".rstrip())


@app.command()
def check(config: ConfigArgument = None, set_: SetOption = None) -> None:
    """Check a configuration. Prints one line per problem, with file, line, key and the correct form."""
    from ...engine.launch.trainer import INSTALL, missing

    loaded = load(config, set_, paths=True)
    unread = f"; the environment was not loaded, which needs {INSTALL}" if missing() else ""
    if not unread:
        try:
            ask("grpo_tui.envs.loading", loaded)
        except CliError as error:
            fail(f"environment.class_path: {error}", ExitCode.USAGE)
    name = config or "the default configuration"
    about = f"mode {loaded.mode}, model {loaded.model.base}, environment {loaded.environment.class_path}"
    say(f"{name}: valid ({about}){unread}")


@app.command()
def presets() -> None:
    """List the presets that come with the package."""
    from ...configs.loading import presets as known

    for name, path in known().items():
        say(f"{name}  {path}")


data_app = typer.Typer(rich_markup_mode=None)


@data_app.callback()
def start_data() -> None:
    """Show a dataset as the policy will read it."""


@data_app.command("show")
def show_data(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A file, a saved dataset, a hub id, or a configuration (.yaml).")
    ],
    model: Annotated[str | None, typer.Option(help="Count tokens and apply the chat template of this model.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Number of rows to print.")] = 3,
    set_: SetOption = None,
) -> None:
    """Print the first rows as the policy will read them, with token counts and the rows over the limit.

    Without --model, only the messages are shown, and no model is loaded. --set changes data options, for example --set
    data.prompt_template='{question} Be brief.'.
    """
    config = source if source.endswith((".yaml", ".yml")) else None
    options: dict[str, tuple[str, object]] = {} if config else {"data.source": ("SOURCE", source)}
    if model is not None:
        options["model.base"] = ("--model", model)
    # Nothing is scored here: that no reward function is named does not matter.
    options |= {} if config else {"mode": ("SOURCE", "sft")}
    loaded = load(config, set_, options=options, paths=True)
    if loaded.data.source is None:
        fail(f"{source} sets no dataset (data.source)", ExitCode.USAGE)
    tokens = ["--tokens"] if model is not None or config is not None else []
    for line in ask("grpo_tui.engine.training.previews", loaded, "rows", str(rows), *tokens).splitlines():
        say(line)
