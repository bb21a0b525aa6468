"""Archives, standard input and addresses open like files."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from grpo_tui.engine.imports import cache
from grpo_tui.engine.imports.copies import tidy
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


def test_a_rollout_with_several_calls_in_a_turn_grows_within_a_file(
    tmp_path: Path, opened: Callable[[Path], RunReader]
):
    asked = [{"role": "user", "content": "q"}]
    calls = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b", "c")]
    first = [{"role": "assistant", "content": "", "tool_calls": calls}]
    talk = [*asked, *first, {"role": "tool", "content": "found"}]
    rows = [
        {"input": asked, "output": first, "score": 0.0, "uid": "g_0_0", "step": 1},
        {"input": talk, "output": [{"role": "assistant", "content": "done"}], "score": 1.0, "uid": "g_0_1", "step": 1},
    ]
    path = tmp_path / "1.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(row.turns, row.reward) for row in opened(path).rollouts.page()] == [(2, 1.0)]


@pytest.mark.parametrize("kind", ["gz", "xz"])
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_archive_opens_up_to_the_damage_and_says_so(kind: str, cut: bool, seed: int, tmp_path: Path):
    random = Random(seed)
    path = tmp_path / f"run.tar.{kind}"
    quickly: dict[str, Any] = {"gz": {"compresslevel": 1}, "xz": {"preset": 0}}[kind]
    with tarfile.open(path, f"w:{kind}", **quickly) as archive:  # type: ignore[call-overload] - a mode is one of four
        for i in range(4):
            data = LINE + json.dumps({"noise": random.randbytes(100_000).hex()}).encode() + b"\n"
            member = tarfile.TarInfo(f"{i}.jsonl")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = path.read_bytes()
    at = random.randrange(len(data) // 3, len(data) * 2 // 3)  # in a member, or in the header of one
    path.write_bytes(data[:at] if cut else data[:at] + b"\xff" * 2000 + data[at + 2000 :])
    opened = open_dump(path, whole=True)
    said = [s["why"] for s in opened.summary["skipped"]]  # type: ignore[attr-defined]
    assert opened.summary["rollouts"] and any("run.tar" in why and "is damaged" in why for why in said)


def test_an_archive_with_a_wrong_checksum_is_damaged(tmp_path: Path):
    path = tmp_path / "run.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("a.jsonl")
        member.size = len(LINE)
        archive.addfile(member, io.BytesIO(LINE))
    data = path.read_bytes()
    path.write_bytes(data[:-8] + bytes(b ^ 1 for b in data[-8:-4]) + data[-4:])
    opened = open_dump(path, whole=True)
    (skipped,) = opened.summary["skipped"]  # type: ignore[attr-defined]
    assert opened.summary["rollouts"] == 1 and "run.tar.gz is damaged" in skipped["why"]


def test_an_archive_that_a_full_disk_cuts_off_is_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a.jsonl", "b.jsonl"):
            member = tarfile.TarInfo(name)
            member.size = len(LINE)
            archive.addfile(member, io.BytesIO(LINE))
    extract = tarfile.TarFile.extract

    def full(archive: tarfile.TarFile, member: tarfile.TarInfo, *rest: object, **more: object) -> None:
        if member.name == "b.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        extract(archive, member, *rest, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extract", full)
        with pytest.raises(DumpError, match=r"cannot be unpacked.*No space left"):
            open_dump(path, whole=True)
    assert rewards(path) == [1.0, 1.0]


def test_a_download_that_breaks_off_is_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from fsspec.implementations.local import LocalFileSystem

    (tmp_path / "a.jsonl").write_bytes(LINE * 2)

    def broken(files: object, source: str, target: str, **more: object) -> None:
        Path(target).write_bytes(LINE)
        raise ConnectionError("the line is dead")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "get", broken)
        with pytest.raises(DumpError, match="the line is dead"):
            open_dump(f"file://{tmp_path}/a.jsonl", whole=True)
    assert rewards(f"file://{tmp_path}/a.jsonl") == [1.0, 1.0]


def test_texts_of_standard_input_are_deleted_with_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folders = []
    for lines in (1, 2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE * lines)))
        folders.append(open_dump("-", whole=True).folder)
    cache.forget(folders[0])
    for copy in (tmp_path / "cache/grpo-tui/copies").iterdir():
        os.utime(copy, (0, 0))
    tidy()
    assert [len(p.read_bytes()) // len(LINE) for p in (tmp_path / "cache").rglob("stdin-*") if p.is_file()] == [2]
