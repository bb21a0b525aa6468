"""What the first paint of a dump waits for, and what goes on behind it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from grpo_tui.engine.imports import cache, copies
from grpo_tui.engine.imports.background import OpenedDump, Opening
from grpo_tui.engine.imports.errors import DumpError
from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.options import Options
from grpo_tui.engine.imports.readers import open_reader, start_following
from grpo_tui.engine.runs.durable import try_lock
from grpo_tui.engine.runs.paths import DATABASE
from grpo_tui.tui.cli.app import PLAIN
from grpo_tui.tui.cli.dumps import dump_notes

ROW = '{"prompt": "a", "completion": "b", "reward": 1.0}\n'


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "dump.jsonl"
    path.write_text(ROW)
    return path


def test_opening_loads_nothing_that_only_the_diagnosis_needs():
    code = (
        "import sys, grpo_tui.engine.imports.opening; print(sorted({'pydantic', 'numpy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_process_that_opens_is_begun_before_anything_is_loaded():
    code = "import sys; before = set(sys.modules); import grpo_tui.tui.cli.app; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {name.partition(".")[0] for name in loaded} & {"textual", "rich", "typer", "sqlite3", "orjson"}
    assert Options().to_json() == PLAIN


def rollouts(opened: OpenedDump) -> int:
    with open_reader(opened.folder) as reader:
        return reader.rollouts.total()


def test_a_process_opens_a_dump_says_so_and_follows_it_as_long_as_it_is_wanted(dump: Path):
    with Opening(dump, PLAIN) as opening:
        opened = opening.opened()
        assert isinstance(opened, OpenedDump) and rollouts(opened) == 1 and opened.summary["rollouts"] == 1
        assert start_following(opened.folder) is None, "one process is enough"
        with dump.open("a") as out:
            out.write(ROW)
        until = time.monotonic() + 30
        while rollouts(opened) < 2:
            assert time.monotonic() < until, "what grows is followed"
            time.sleep(0.05)
    assert opening._process.poll() is not None
    with Opening(dump, PLAIN) as again:
        opened = again.opened()
        assert isinstance(opened, OpenedDump) and rollouts(opened) == 2


def test_why_a_dump_cannot_be_opened_is_one_sentence_and_a_killed_process_is_noticed(dump: Path):
    dump.write_text("nothing\n")
    with Opening(dump, PLAIN) as opening:
        said = opening.opened()
        assert isinstance(said, str) and said.startswith(f"nothing in {dump} is a rollout") and "\n" not in said
    with Opening(dump, PLAIN) as opening:
        os.kill(opening._process.pid, signal.SIGKILL)
        assert opening.opened() is None


def test_a_cache_that_cannot_be_written_is_one_sentence(dump: Path, monkeypatch: pytest.MonkeyPatch):
    nowhere = dump.parent / "file"
    nowhere.write_text("")
    (dump.parent / f"grpo-tui-{os.getuid()}").write_text("the place for temporary files is taken")
    monkeypatch.setenv("TMPDIR", str(dump.parent))
    monkeypatch.setattr(tempfile, "tempdir", str(dump.parent))
    for home in (nowhere, Path("/proc/nowhere")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(home))
        with Opening(dump, PLAIN) as opening:
            said = opening.opened()
        assert isinstance(said, str) and "cannot be written" in said and "XDG_CACHE_HOME" in said
        with pytest.raises(DumpError, match="XDG_CACHE_HOME"):
            open_dump(dump, whole=True)


@pytest.mark.parametrize("place", ["file", "/proc/nowhere"])
def test_a_home_that_cannot_be_written_leads_to_the_temporary_folder(
    dump: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    home = dump.parent / place
    if place == "file":
        home.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    temporary = dump.parent / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with Opening(dump, PLAIN) as opening:
        opened = opening.opened()
        assert isinstance(opened, OpenedDump) and rollouts(opened) == 1
    assert opened.folder.is_relative_to(temporary)
    (line,) = [line for line in dump_notes(opened.summary) if "will not be kept" in line]
    assert str(home) in line and str(temporary) in line
    for own in temporary.iterdir():
        assert own.stat().st_mode & 0o077 == 0


def test_a_full_cache_is_named_when_standard_input_does_not_fit_in_it(dump: Path, monkeypatch: pytest.MonkeyPatch):
    def full() -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(copies, "_stdin", full)
    with pytest.raises(DumpError, match=r"No space left on device\): make room there, .* XDG_CACHE_HOME"):
        open_dump("-")


def test_an_index_that_is_damaged_is_made_anew(dump: Path):
    database = open_dump(dump, whole=True).folder / DATABASE
    for end in ("-wal", "-shm"):
        database.with_name(database.name + end).unlink(missing_ok=True)
    database.write_bytes(b"no database" * 1000)
    with Opening(dump, PLAIN) as opening:
        opened = opening.opened()
        assert isinstance(opened, OpenedDump) and rollouts(opened) == 1


def test_nothing_of_the_folder_one_stands_in_is_run(dump: Path, monkeypatch: pytest.MonkeyPatch):
    here = dump.parent / "here"
    here.mkdir()
    for name in ("json", "sqlite3", "grpo_tui"):
        (here / f"{name}.py").write_text("open('was run', 'w').close()")
    monkeypatch.chdir(here)
    with Opening(dump, PLAIN) as opening:
        assert isinstance(opening.opened(), OpenedDump)
    assert not (here / "was run").exists()


def test_indexing_does_not_begin_when_the_app_was_gone_before(dump: Path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-m", "grpo_tui.engine.imports", str(open_dump(dump).folder), str(gone.pid)]
    assert subprocess.run(command, timeout=60).returncode == 0


def test_an_index_that_another_process_still_makes_is_not_tidied_away(dump: Path):
    other = dump.with_name("other.jsonl")
    other.write_text(ROW)
    folder = cache.folder_of(other, Options())
    with try_lock(folder / ".lock"), Indexer(other, folder):
        open_dump(dump, whole=True)
        assert (folder / DATABASE).exists()
    open_dump(dump, whole=True)
    assert not folder.exists()
