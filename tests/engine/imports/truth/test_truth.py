"""Each writer's files give back the training that they were written from, or nothing where the format holds nothing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.readers import open_reader

from .agents import AGENTS
from .compare import ASPECTS, Writer, failures
from .environments import ENVIRONMENTS
from .scenario import scenarios
from .trainers import TRAINERS

WRITERS = (*TRAINERS, *AGENTS, *ENVIRONMENTS)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.parametrize("examples", [4, pytest.param(100, marks=pytest.mark.stress)])
@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_the_importer_returns_the_scenario(writer: Writer, examples: int):
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=SLOW,
        derandomize=True,
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        episodes = data.draw(scenarios(writer.limits))
        folder = Path(tempfile.mkdtemp()) / "dump"
        folder.mkdir()
        try:
            writer.write(episodes, folder)
            opened = open_dump(folder, whole=True)
            with open_reader(opened.folder) as reader:
                assert not failures(writer, episodes, reader), opened.summary
        finally:
            shutil.rmtree(folder.parent)

    check()


def rendered() -> str:
    """Return the table of formats and aspects as docs/importing.md holds it."""
    rows = [f"| writer | followed version | {' | '.join(ASPECTS)} |", f"|---|---|{'---|' * len(ASPECTS)}"]
    for writer in sorted(WRITERS, key=lambda w: w.name.strip("`").lower()):
        marks = ["–" if aspect in writer.lacks else "yes" for aspect in ASPECTS]
        rows.append(f"| {writer.name} | {writer.version} | {' | '.join(marks)} |")
    return "\n".join(rows) + "\n"


def test_the_page_holds_the_table_of_these_tests():
    page = Path(__file__).parents[4] / "docs" / "importing.md"
    assert rendered() in page.read_text(), f"put this into {page}:\n{rendered()}"
