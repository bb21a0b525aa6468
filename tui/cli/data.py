"""`grpo-tui data show`."""

from __future__ import annotations

from typing import Annotated

import typer

from .common import ExitCode, SetOption, ask, fail, say

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def start() -> None:
    """Show a dataset as the policy will read it."""


@app.command()
def show(
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
    from .config import load

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
