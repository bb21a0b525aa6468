"""The runs and dumps that a tool may read: those of one folder, and those that the server was started with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...configs.errors import GrpoTuiError
from ...engine.imports.readers import open_reader
from ...engine.launch.find import find_run, list_runs
from ...engine.runs.read.reader import RunReader
from ...engine.runs.types import RunInfo
from ..cli.dumps import run_or_dump

Run = Annotated[str, Field(description="The id of a run, a unique prefix of it, or `latest`.")]
Rollout = Annotated[str | int, Field(description="The id of a rollout, or its number n.")]
Offset = Annotated[int, Field(ge=0, description="`next_offset` of the previous answer.")]
Limit = Annotated[int, Field(ge=1, le=100)]


class ToolError(GrpoTuiError, ValueError):
    """A tool cannot answer. The message is one sentence without recorded text."""


@dataclass(frozen=True)
class Workspace:
    """home: the folder of runs. dumps: paths of dumps, which are read under exactly these names.

    No other path is opened, and nothing is fetched. So a recorded text cannot make an agent read files or call
    addresses through this server.
    """

    home: Path
    dumps: Sequence[str] = ()

    def list(self) -> list[RunInfo]:
        """Return the dumps, then the runs, newest first."""
        return [*(run_or_dump(dump, self.home) for dump in self.dumps), *list_runs(self.home)]

    def find(self, reference: str) -> RunInfo:
        """Return a run or dump. Raises RunNotFound or ToolError."""
        if reference in self.dumps:
            return run_or_dump(reference, self.home)
        if Path(reference).name != reference or reference == "..":
            raise ToolError("only runs listed by list_runs can be read; give one of their ids")
        return find_run(self.home, reference)

    def open(self, run: str) -> RunReader:
        """Open the record of a run or dump."""
        return open_reader(Path(self.find(run).path))


def number(reader: RunReader, rollout: str | int) -> int:
    """Return the number of a rollout. Raises ToolError."""
    try:
        return reader.bodies.number(rollout)
    except LookupError:
        raise ToolError("this run has no such rollout; query_rollouts lists ids and numbers") from None


def notes(reader: RunReader) -> list[str]:
    """Return the parts of a record that cannot be read, or are not read yet."""
    return [*reader.problems, *filter(None, [reader.pending()])]
