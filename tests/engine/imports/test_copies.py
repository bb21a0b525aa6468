"""Archives, standard input and addresses open like files."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_tui.engine.imports.errors import DumpError
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.readers import open_reader
from grpo_tui.engine.runs.read.reader import RunReader

LINE = json.dumps({"prompt": "q", "completion": "a", "reward": 1.0}).encode() + b"\n"


def rewards(reference: Path | str) -> list[float | None]:
    with open_reader(open_dump(reference, whole=True).folder) as reader:
        return [row.reward for row in reader.rollouts.page()]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_an_archive_of_tar_opens_and_nothing_leaves_its_folder(mode: str, tmp_path: Path):
    path = tmp_path / "run.tar"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload] - a mode is one of four texts
        for name in ("run/step_1/a.jsonl", "run/step_2/b.jsonl", "../outside.jsonl"):
            member = tarfile.TarInfo(name)
            member.size = len(LINE)
            archive.addfile(member, io.BytesIO(LINE))
    assert rewards(path) == [1.0, 1.0]
    assert not (tmp_path / "outside.jsonl").exists()


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE * 3)))
    assert rewards("-") == [1.0] * 3
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(DumpError, match="empty"):
        open_dump("-", whole=True)


def test_an_address_opens_through_fsspec(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(LINE)
    assert rewards(f"file://{tmp_path}/a.jsonl") == [1.0]
    (tmp_path / "a.jsonl").write_bytes(LINE * 2)
    assert rewards(f"file://{tmp_path}/a.jsonl") == [1.0, 1.0], "a source that changed is copied again"


def test_an_address_without_its_packages_names_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(DumpError, match=r"pip install fsspec huggingface_hub"):
        open_dump("hf://datasets/someone/rollouts", whole=True)


def test_a_session_that_grows_keeps_one_row(tmp_path: Path, opened: Callable[[Path], RunReader]):
    def entry(kind: str, n: int, text: str) -> str:
        message = {"role": kind, "content": text, **({"id": f"m{n}"} if kind == "assistant" else {})}
        row = {
            "type": kind,
            "uuid": f"u{n}",
            "parentUuid": f"u{n - 1}" if n else None,
            "sessionId": "s",
            "message": message,
        }
        return json.dumps(row) + "\n"

    path = tmp_path / "s.jsonl"
    path.write_text(entry("user", 0, "q") + entry("assistant", 1, "a"))
    assert [r.turns for r in opened(path).rollouts.page()] == [1]
    with path.open("a") as file:
        file.write(entry("user", 2, "more") + entry("assistant", 3, "b"))
    reader = opened(path)
    assert [(r.id, r.turns) for r in reader.rollouts.page()] == [("s", 2)]
    assert [s.text for s in reader.bodies.trajectory(1).trajectory.steps] == ["a", "b"]
