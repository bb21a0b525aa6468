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

from .compare import Writer, failures
from .scenario import scenarios
from .trainers import TRAINERS

WRITERS = (*TRAINERS,)


@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_the_importer_returns_the_scenario(writer: Writer):
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
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
