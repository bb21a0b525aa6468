"""`grpo-tui note`: put a note on a rollout, or list all notes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import ExitCode, Home, RunOrDump, fail, json_line, say
from .dumps import opened, run_or_dump


def note(
    reference: RunOrDump,
    trajectory: Annotated[str | None, typer.Argument(metavar="ID", help="The trajectory: its id or number.")] = None,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="One line. Without it, the note is printed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one note per line, as JSON.")] = False,
    *,
    home: Home,
) -> None:
    """Put a note on a trajectory, or list the notes of a run or a dump.

    Words that begin with # are labels: grpo-tui note RUN ID "#hack it copied the answer". An empty text removes the
    note. Notes are stored in the run's folder (for a dump, in ~/.local/share/grpo-tui/notes) and exported. Find them
    with --filter 'label:hack' or --filter 'note:copied'.
    """

    info = run_or_dump(reference, home)
    with opened(info) as reader:
        row = None
        if trajectory is not None:
            try:
                (row,) = reader.rollouts.rows([reader.bodies.number(trajectory)])
            except (LookupError, ValueError) as error:
                fail(str(error), ExitCode.NOT_FOUND)
        if row is not None and text is not None:
            try:
                reader.notes.put(row.id, text)
            except OSError as error:
                fail(f"the note cannot be written to {Path(reader.notes.path)}: {error.strerror}")
            return
        for found in reader.notes.read().values():
            if row is None or row.id == found.id:
                say(json_line({"id": found.id, **found.to_json()}) if as_json else f"{found.id}  {found.text}")
