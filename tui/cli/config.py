"""`grpo-tui config show` and `config check`."""

from __future__ import annotations

from typing import Annotated

import typer

from .common import ExitCode, SetOption, fail, say

HELP = "Show or check a configuration."

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

ConfigArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONFIG]", help="A YAML file or a preset's name; without it, the default.", show_default=False
    ),
]


def load(config: str | None, overrides: list[str] | None, mode: str | None = None, *, paths: bool = False):
    """A checked `RunConfig`; ends the command with all that is wrong, a line each."""
    from ...configs import ConfigError, load_config

    try:
        return load_config(config, overrides or (), mode=mode, paths=paths)
    except ConfigError as error:
        fail(str(error), ExitCode.USAGE)


@app.command()
def show(config: ConfigArgument = None, set_: SetOption = None) -> None:
    """Print every key with its value, its meaning and what it accepts; the output is a valid configuration."""
    from ...configs import to_yaml

    say(to_yaml(load(config, set_), comments=True).rstrip("\n"))


@app.command()
def check(config: ConfigArgument = None, set_: SetOption = None) -> None:
    """Check a configuration; every problem is one line with file, line, key and what would be right."""
    loaded = load(config, set_, paths=True)
    name = config or "the default configuration"
    say(f"{name}: good (mode {loaded.mode}, model {loaded.model.base}, environment {loaded.environment.class_path})")


@app.command()
def presets() -> None:
    """List the presets that come with the package."""
    from ...configs import presets as known

    for name, path in known().items():
        say(f"{name}  {path}")
