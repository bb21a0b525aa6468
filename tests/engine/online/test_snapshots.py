"""Snapshots: only whole states are ever read, versions only grow, and damage costs one version, not the serving."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import xxhash

from grpo_tui.engine.online.store.snapshots import (
    POINTER,
    SnapshotError,
    SnapshotReader,
    SnapshotWriter,
    file_name,
    pointed_version,
    prune,
    published_versions,
)
from tests.forked import ForkedProcess

from .nursery import Nursery


def state(version: int) -> dict[str, torch.Tensor]:
    """Every number of a version's tensors says which version it is."""
    return {f"layer.{i}": torch.full((64, i + 1), float(version)) for i in range(3)}


def is_whole(tensors: dict[str, torch.Tensor], version: int) -> bool:
    expected = state(version)
    return tensors.keys() == expected.keys() and all(torch.equal(tensors[k], expected[k]) for k in expected)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SnapshotWriter]:
    with_lock = SnapshotWriter(tmp_path / "snapshots", base_model="tiny")
    yield with_lock
    with_lock.close()


def publish(writer: SnapshotWriter, count: int = 1) -> None:
    for _ in range(count):
        writer.publish(state(writer.version + 1), update=10 * (writer.version + 1))


def test_names_pointer_and_manifest(writer: SnapshotWriter) -> None:
    publish(writer, 2)
    folder = writer.folder
    assert (folder / "latest_model_version.txt").read_text() == "ema_model_snapshot.v2.safetensors"
    with SnapshotReader(folder).open(2) as snapshot:
        manifest = snapshot.manifest
        assert is_whole(snapshot.tensors(), 2)
    data = (folder / "ema_model_snapshot.v2.safetensors").read_bytes()
    assert (manifest.size, manifest.checksum) == (len(data), xxhash.xxh3_128_hexdigest(data))
    assert manifest.keys == ("layer.0", "layer.1", "layer.2")
    assert (manifest.base_model, manifest.parent_version, manifest.update) == ("tiny", 1, 20)
    assert not list(folder.glob("*.tmp"))


def test_newer_than_never_goes_back(writer: SnapshotWriter) -> None:
    reader = SnapshotReader(writer.folder)
    assert reader.newer_than(0) is None
    publish(writer, 2)
    found = reader.newer_than(0)
    assert found is not None and found.version == 2
    found.close()
    assert reader.newer_than(2) is None
    assert reader.newer_than(7) is None


def test_a_version_is_served_once_the_pointer_points_to_it(writer: SnapshotWriter) -> None:
    publish(writer, 2)
    (writer.folder / POINTER).write_text(file_name(1))  # as a writer leaves it that was killed between name and pointer
    with SnapshotReader(writer.folder).newer_than(0) as found:  # type: ignore[union-attr]
        assert found.version == 1


def test_versions_grow_over_restarts(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        writer = SnapshotWriter(tmp_path, base_model="tiny")
        assert writer.publish(state(expected)).version == expected
        writer.close()
    (tmp_path / POINTER).unlink()  # even without the pointer no number is used again
    writer = SnapshotWriter(tmp_path, base_model="tiny")
    assert writer.publish(state(4)).version == 4
    writer.close()


def test_a_second_writer_is_refused(writer: SnapshotWriter) -> None:
    with pytest.raises(SnapshotError, match="already publishes"):
        SnapshotWriter(writer.folder, base_model="tiny")


def test_publishing_again_is_a_new_version_with_the_old_content(writer: SnapshotWriter) -> None:
    publish(writer, 3)
    with SnapshotReader(writer.folder).open(1) as old:
        manifest = writer.publish(old.tensors(), update=old.manifest.update)
    assert (manifest.version, manifest.update) == (4, 10)
    with SnapshotReader(writer.folder).open(4) as snapshot:
        assert is_whole(snapshot.tensors(), 1)


def test_pruning_keeps_what_is_held_or_protected(writer: SnapshotWriter) -> None:
    publish(writer, 2)
    held = SnapshotReader(writer.folder).open(1)
    publish(writer, 5)
    assert prune(writer.folder, 3, protect=[3]) == [2, 4]
    assert published_versions(writer.folder) == [1, 3, 5, 6, 7]
    assert is_whole(held.tensors(), 1)
    held.close()
    assert prune(writer.folder, 3) == [1, 3]
    assert not (writer.folder / "ema_model_snapshot.v1.json").exists()


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    for name in ("ema_model_snapshot.v9.safetensors.tmp", "ema_model_snapshot.v9.json", f"{POINTER}.tmp", ".tmpAb3xyZ"):
        (tmp_path / name).write_text("half")
    (tmp_path / "mine.txt").write_text("kept")
    SnapshotWriter(tmp_path, base_model="tiny").close()
    assert sorted(os.listdir(tmp_path)) == [".writer.lock", "mine.txt"]


# ----------------------------------------------------------------------------------------------------------- damage


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: flip_byte(f / file_name(3)), "ema_model_snapshot.v3.safetensors does not match its checksum"),
        (lambda f: (f / file_name(3)).write_bytes(b"short"), "has 5 bytes, but its manifest lists"),
        (lambda f: (f / file_name(3)).unlink(), "is missing"),
        (lambda f: (f / "ema_model_snapshot.v3.json").unlink(), "has no readable manifest"),
        (lambda f: (f / "ema_model_snapshot.v3.json").write_text("[]"), "has no readable manifest"),
        (lambda f: (f / "ema_model_snapshot.v3.json").write_text("{}"), "has no readable manifest"),
    ],
)
def test_damaged_newest_version(writer: SnapshotWriter, damage, message: str) -> None:
    publish(writer, 3)
    damage(writer.folder)
    told: list[str] = []
    reader = SnapshotReader(writer.folder, told.append)
    with reader.newer_than(0) as found:  # type: ignore[union-attr]
        assert found.version == 2 and is_whole(found.tensors(), 2)
    assert reader.newer_than(2) is None
    assert len(told) == 1 and message in told[0] and "Serving continues" in told[0]
    publish(writer)  # the next version heals it
    with reader.newer_than(2) as found:  # type: ignore[union-attr]
        assert found.version == 4 and is_whole(found.tensors(), 4)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xfe\x00", b"../../etc/passwd", b"x" * 100_000])
def test_damaged_pointer(writer: SnapshotWriter, content: bytes) -> None:
    publish(writer, 2)
    (writer.folder / POINTER).write_bytes(content)
    told: list[str] = []
    with SnapshotReader(writer.folder, told.append).newer_than(0) as found:  # type: ignore[union-attr]
        assert found.version == 2
    assert "does not name a snapshot" in told[0]
    publish(writer)
    assert pointed_version(writer.folder) == 3


def test_disk_full_while_writing_tensors(writer: SnapshotWriter) -> None:
    publish(writer)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # a disk on which no larger file fits
    try:
        with pytest.raises(SnapshotError, match=r"Version 2 could not be published .*File too large.* Version 1 stays"):
            publish(writer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [n for n in os.listdir(writer.folder) if "tmp" in n]
    with SnapshotReader(writer.folder).newer_than(0) as found:  # type: ignore[union-attr]
        assert found.version == 1
    publish(writer)
    assert pointed_version(writer.folder) == 2


def test_disk_full_while_writing_the_pointer(writer: SnapshotWriter) -> None:
    publish(writer)
    (writer.folder / f"{POINTER}.tmp").symlink_to("/dev/full")
    with pytest.raises(SnapshotError, match="Version 1 stays"):
        publish(writer)
    with SnapshotReader(writer.folder).newer_than(0) as found:  # type: ignore[union-attr]
        assert found.version == 1
    assert published_versions(writer.folder) == [1]  # the pointer is on the disk before version 2 gets its name
    assert not [n for n in os.listdir(writer.folder) if "tmp" in n]
    publish(writer)
    assert pointed_version(writer.folder) == 2


def test_folder_made_read_only() -> None:
    """In a process that may not write everywhere, as root may."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        folder = Path(name) / "snapshots"
        writer = SnapshotWriter(folder, base_model="tiny")
        publish(writer)
        writer.close()
        os.chmod(folder, 0o555)
        code = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from grpo_tui.engine.online.store.snapshots import SnapshotError, SnapshotReader, SnapshotWriter\n"
            "if os.getuid() == 0: os.setuid(65534)\n"
            "try: SnapshotWriter(Path(sys.argv[1]), base_model='tiny')\n"
            "except SnapshotError as error: print(error)\n"
            "found = SnapshotReader(Path(sys.argv[1])).newer_than(0)\n"
            "print(found.version, len(found.tensors()))\n"
        )
        command = [sys.executable, "-c", code, str(folder)]
        said, trouble = ForkedProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).communicate()
        os.chmod(folder, 0o755)
    assert said.splitlines() == [
        f"The snapshot folder {folder} cannot be written: Permission denied.",
        "1 3",
    ], trouble


# --------------------------------------------------------------------------------------------- readers and writers


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    started = Nursery()
    yield started
    started.close()


def read_while_publishing(nursery: Nursery, folder: Path, seconds: float, *, kill: bool = False) -> tuple[int, int]:
    """Read as fast as possible while a process publishes as fast as it can (and is killed at random instants): for so
    many seconds, and longer where those are not enough for some versions and kills.

    Every version read must be whole and later than the one before, and none may be reported as damaged. Returns how
    many versions were read, and how often the writer was killed.
    """
    rng = random.Random(0)
    reader, version, read, kills = SnapshotReader(folder, pytest.fail), 0, 0, 0
    pid, until = nursery.start("publish", folder), time.monotonic() + seconds
    dies = time.monotonic() + rng.uniform(0, 0.4) if kill else until
    while (now := time.monotonic()) < until or ((read < 4 or (kill and kills < 2)) and now < until + 60):
        found = reader.newer_than(version)
        if found is not None:
            with found:
                assert found.version > version
                assert is_whole(found.tensors(), found.version)
            version, read = found.version, read + 1
        if time.monotonic() > dies:
            assert nursery.kill(pid), "the writer ended by itself"
            kills += 1
            pid, dies = nursery.start("publish", folder), time.monotonic() + rng.uniform(0, 0.4)
    nursery.kill(pid)
    return read, kills


def test_a_reader_never_sees_a_torn_or_mixed_state(nursery: Nursery, tmp_path: Path) -> None:
    read, _ = read_while_publishing(nursery, tmp_path, 0.5)
    assert read > 3


def test_nor_when_the_writer_is_killed_again_and_again(nursery: Nursery, tmp_path: Path) -> None:
    read, kills = read_while_publishing(nursery, tmp_path, 0.8, kill=True)
    assert read > 3 and kills > 1


@pytest.mark.stress
@pytest.mark.parametrize("kill", [False, True])
def test_a_reader_never_sees_a_torn_or_mixed_state_for_a_minute(nursery: Nursery, tmp_path: Path, kill: bool) -> None:
    read, kills = read_while_publishing(nursery, tmp_path, 60.0, kill=kill)
    assert read > 100 and (kills > 50) == kill
