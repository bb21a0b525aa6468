"""`grpo-tui merge` and `grpo-tui push`: the result of a run as one model, and on a model hub."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import ExitCode, Home, fail, run_module, say, warn

if TYPE_CHECKING:
    from ...engine.evaluation.subjects import Subject

LEFT_OUT = {"README.md", "checksums.json"}
"""Files of a result that are not pushed. The card is regenerated."""
SubjectArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run, or RUN@STEP for one of its checkpoints.")]


def merge(
    reference: SubjectArgument,
    to: Annotated[Path | None, typer.Option(help="The new folder. Default: next to the adapters.")] = None,
    *,
    home: Home,
) -> None:
    """Merge the adapters of a run into their base model, for plain transformers and inference servers.

    The merged model keeps the number format of the base model's files.
    """
    from ...engine.launch.trainer import require

    subject, run, weights = _found(reference, home)
    if not subject.is_adapters:
        fail(f"{reference} trained all weights, so there is nothing to merge: {weights} is already a full model")
    folder = (to or weights.with_name(f"{weights.name}-merged")).expanduser()
    if folder.exists():
        fail(f"{folder} already exists: choose another folder with --to", ExitCode.USAGE)
    require("merging")
    run_module("grpo_tui.engine.training.merge", str(run), str(weights), str(folder))
    say(f"wrote the merged model to {folder}")


def push(
    reference: SubjectArgument,
    repository: Annotated[
        str, typer.Argument(metavar="ORG/NAME", help="The repository. It is created if it does not exist.")
    ],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    merged: Annotated[Path | None, typer.Option(help="Push this folder, written by `merge`, instead.")] = None,
    *,
    home: Home,
) -> None:
    """Push the adapters (or the model) of a run to a hub, with a model card made from its record.

    The token is read from $HF_TOKEN, and the address from $HF_ENDPOINT. All files are one commit.
    """
    from ...configs.errors import GrpoTuiError
    from ...engine.evaluation.card import model_card

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        fail(f"{repository} is not a repository name: write ORG/NAME", ExitCode.USAGE)
    _, run, weights = _found(reference, home)
    folder = weights if merged is None else merged.expanduser()
    if not any((folder / name).is_file() for name in ("adapter_config.json", "config.json")):
        fail(f"{folder} holds neither adapters nor a model", ExitCode.USAGE)
    token = os.environ.get("HF_TOKEN")
    if not token:
        fail("HF_TOKEN is not set: create a token with write access and store it in this variable", ExitCode.USAGE)
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
    except ImportError:
        fail("push needs huggingface_hub: pip install 'grpo-tui[train]'")
    _warn_of_base(folder)
    try:
        card = model_card(run, weights, merged=merged is not None)
        paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in LEFT_OUT)
        files = [CommitOperationAdd(p.relative_to(folder).as_posix(), str(p)) for p in paths]
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
        api.create_repo(repository, private=private, exist_ok=True)
        done = api.create_commit(
            repository,
            [CommitOperationAdd("README.md", card.encode()), *files],
            commit_message=f"{reference} of grpo-tui",
        )
    except (GrpoTuiError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).replace(token, "***").strip().splitlines() or [type(error).__name__]
        fail(f"{repository} was not pushed: {reason[0]}")
    say(f"pushed {len(files) + 1} files to {done.commit_url}")


def _found(reference: str, home: Path) -> tuple[Subject, Path, Path]:
    """Return a run's result, or one of its checkpoints, with the folders of the run and of the weights."""
    from ...engine.evaluation.subjects import find_subject

    subject = find_subject(reference, home)
    if subject.folder is None or subject.weights is None:
        fail(f"{reference} is not a trained policy: give a training run or RUN@STEP", ExitCode.USAGE)
    return subject, subject.folder, Path(subject.weights)


def _warn_of_base(folder: Path) -> None:
    """Warn where others cannot load the base model of adapters."""
    try:
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError):
        return
    if Path(str(base)).is_dir():
        warn("others cannot load these adapters, because their base model is a local folder: use push --merged")
