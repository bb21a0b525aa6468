"""A record that is damaged, cut off, of another version or on a read-only disk opens as far as it can."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from grpo_tui.engine.runs.columns import SCHEMA_VERSION
from grpo_tui.engine.runs.errors import QueryInterrupted, RecordDamaged, RecordError
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.read.record import Record
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.write.writer import RunWriter


@pytest.fixture
def copy(recorded, tmp_path: Path) -> Path:
    shutil.copytree(recorded[0], tmp_path / "copy")
    return tmp_path / "copy"


def everything(reader: RunReader) -> int:
    """Ask for all that a viewer asks for; only errors of one sentence may come. Returns the rows that were read."""
    reader.info()
    for ask in (
        reader.metrics.names,
        reader.metrics.latest,
        reader.events,
        reader.rollouts.total,
        lambda: reader.metrics.points("success/train"),
        lambda: reader.rollouts.count(Query("reward<0.2", "circle")),
        lambda: reader.rollouts.histogram(),
        lambda: reader.rollouts.group("g3-1"),
        lambda: reader.rollouts.prompt("p2"),
        lambda: reader.rollouts.page(Query(sort="reward")),
        lambda: reader.rollouts.seek(5, 1, Query("correct")),
    ):
        try:
            ask()
        except RecordError as error:
            assert str(error) and "\n" not in str(error)
    rows = 0
    for n in range(1, 601, 20):
        try:
            rows += len(reader.rollouts.page(offset=n - 1, limit=20))
            reader.bodies.trajectory(n)
            reader.bodies.tokens(n)
        except (RecordError, LookupError) as error:
            assert str(error)
    return rows


def test_garbage_instead_of_a_database(copy: Path):
    (copy / "record.sqlite").write_bytes(os.urandom(100_000))
    with RunReader(copy) as reader:
        assert everything(reader) == 0
        assert "cannot be opened" in reader.problems[0] and "config, logs and checkpoints" in reader.problems[0]


@pytest.mark.parametrize("name", [b"r\xff\xe9n", b"100%25 #1?a"])
def test_a_folder_may_have_any_name(copy: Path, name: bytes):
    moved = copy.rename(copy.with_name(os.fsdecode(name)))
    with RunReader(moved) as reader:
        assert everything(reader) == 600 and reader.problems == []


def test_a_damaged_schema_is_told_in_a_sentence(copy: Path):
    path = copy / "record.sqlite"
    path.write_bytes(
        path.read_bytes().replace(b"tablemeta", b"table\x89eta").replace(b"CREATE TABLE meta", b"\x89" * 17)
    )
    with RunReader(copy) as reader:
        everything(reader)
        assert "cannot be opened" in reader.problems[0]


@pytest.mark.parametrize("seed", range(6))
def test_pages_of_garbage_cost_only_what_is_on_them(copy: Path, seed: int):
    path = copy / "record.sqlite"
    size = path.stat().st_size
    rng = random.Random(seed)
    with path.open("r+b") as file:
        for _ in range(3):
            file.seek(rng.randrange(2, size // 8192) * 8192)
            file.write(rng.randbytes(8192))
    with RunReader(copy) as reader:
        rows = everything(reader)
        assert rows > 0 or reader.problems


def test_a_file_that_was_cut_off(copy: Path):
    path = copy / "record.sqlite"
    os.truncate(path, path.stat().st_size // 2)
    with RunReader(copy) as reader:
        everything(reader)
        assert reader.problems and all("\n" not in p for p in reader.problems)


def test_one_damaged_blob_costs_its_own_trajectories(copy: Path):
    db = sqlite3.connect(copy / "record.sqlite")
    db.execute("UPDATE chunks SET body = zeroblob(100) WHERE first_n = 1")
    db.execute("DELETE FROM chunks WHERE first_n = 17")
    db.commit()
    db.close()
    with RunReader(copy) as reader:
        with pytest.raises(RecordDamaged, match=r"trajectory 3 .* cannot be read"):
            reader.bodies.trajectory(3)
        with pytest.raises(RecordDamaged, match="trajectory 20"):
            reader.bodies.trajectory(20)
        assert reader.bodies.trajectory(40).trajectory.steps
        assert len(reader.rollouts.page(limit=600)) == 600


def test_all_rows_are_read_once_around_damage(copy: Path):
    db = sqlite3.connect(copy / "record.sqlite")
    (page,) = db.execute("SELECT pageno FROM dbstat WHERE name = 'cards' AND pagetype = 'leaf' ORDER BY pageno LIMIT 1")
    (size,) = db.execute("PRAGMA page_size").fetchone()
    db.close()
    with (copy / "record.sqlite").open("r+b") as file:
        file.seek((page[0] - 1) * size)
        file.write(bytes(size))
    with RunReader(copy) as reader:
        for query in (Query(), Query("step>0"), Query(sort="step")):
            numbers = [row.n for row in reader.rollouts.each(query)]
            assert 0 < len(numbers) < 600 and len(set(numbers)) == len(numbers) and 600 in numbers
        assert reader.problems


def test_an_empty_file_is_a_run_that_has_just_begun(run_dir: Path, make_record):
    run_dir.mkdir()
    (run_dir / "record.sqlite").touch()
    with RunReader(run_dir) as reader:
        assert reader.rollouts.total() == 0 and reader.rollouts.page() == [] and reader.problems == []
        writer = RunWriter(run_dir)
        writer.trajectories(1, [make_record(1, 0)])
        assert writer.flush(10)
        assert reader.rollouts.total() == 1  # the same reader sees it begin
        writer.close()


def test_no_file_at_all(run_dir: Path):
    with RunReader(run_dir) as reader:
        assert (
            reader.rollouts.page() == []
            and reader.rollouts.count(Query("correct")) == 0
            and reader.rollouts.histogram() == []
        )
        with pytest.raises(LookupError, match="it has none yet"):
            reader.bodies.trajectory(1)


@pytest.mark.parametrize(("found", "age"), [(SCHEMA_VERSION - 1, "older"), (SCHEMA_VERSION + 4, "newer")])
def test_a_record_of_another_version_is_named_in_one_sentence_and_not_answered_from(copy: Path, found: int, age: str):
    db = sqlite3.connect(copy / "record.sqlite")
    db.execute(f"PRAGMA user_version = {found}")
    db.commit()
    db.close()
    with RunReader(copy) as reader:
        assert reader.rollouts.page(limit=600) == [] and reader.rollouts.total() == 0
        (problem,) = reader.problems
        assert f"{age} grpo-tui (record version {found};" in problem


def test_a_finished_record_on_a_read_only_disk(recorded):
    """Nobody may write there, not even the small file through which readers and writers of SQLite meet."""
    code = (
        "import os, sys\nfrom grpo_tui.engine.runs.search.query import Query\n"
        "from grpo_tui.engine.runs.read.reader import RunReader\n"
        "if os.getuid() == 0: os.setuid(65534)\n"  # root may write anywhere
        "with RunReader(sys.argv[1]) as reader: print(int(reader.rollouts.count(Query('correct'))), reader.problems)"
    )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "run"
        shutil.copytree(recorded[0], copy, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
        with RunReader(copy) as reader:
            expected = int(reader.rollouts.count(Query("correct")))
        for leftover in copy.glob("record.sqlite-*"):
            leftover.unlink()
        for path in (Path(folder), copy, *copy.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            done = subprocess.run([sys.executable, "-c", code, str(copy)], capture_output=True, text=True, timeout=60)
            assert done.stdout.strip() == f"{expected} []", done.stderr
        finally:
            for path in (Path(folder), copy, *copy.rglob("*")):
                path.chmod(0o755)


def test_nothing_is_missing_from_a_run_that_goes_on_while_it_is_opened(run_dir: Path, make_record, monkeypatch):
    writer = RunWriter(run_dir)
    writer.trajectories(1, [make_record(1, i) for i in range(4)])
    assert writer.flush(10)
    extent = Record.extent

    def counted_before_the_next_step(record: Record) -> tuple[int, str | None]:
        found = extent(record)
        writer.trajectories(2, [make_record(2, i) for i in range(4)])
        writer.status("running", step=2)
        assert writer.flush(10)
        return found

    monkeypatch.setattr(Record, "extent", counted_before_the_next_step)
    with RunReader(run_dir) as reader:
        assert reader.problems == []
    writer.close()


def test_two_viewers_and_a_writer_at_once(run_dir: Path, make_record):
    writer = RunWriter(run_dir)
    writer.trajectories(1, [make_record(1, i) for i in range(20)])
    assert writer.flush(10)
    problems: list[str] = []
    stop = threading.Event()

    def view() -> None:
        with RunReader(run_dir) as reader:
            last = 0
            while not stop.is_set():
                count = int(reader.rollouts.count(Query("penalised or not penalised")))
                rows = reader.rollouts.page(Query("penalised or not penalised"), offset=max(0, count - 10), limit=10)
                if count < last or len(rows) < min(10, count):
                    problems.append(f"{count} after {last}, {len(rows)} rows")
                reader.bodies.trajectory(rows[-1].n)
                last = count
            problems.extend(reader.problems)

    viewers = [threading.Thread(target=view) for _ in range(2)]
    for viewer in viewers:
        viewer.start()
    for step in range(2, 60):
        writer.trajectories(step, [make_record(step, i) for i in range(20)])
        if step % 5 == 0:
            assert writer.flush(20)
    stop.set()
    for viewer in viewers:
        viewer.join(20)
    assert writer.flush(20) and writer.dropped == 0 and problems == []
    writer.close()


def test_a_viewer_killed_in_the_middle_of_reading_harms_nothing(run_dir: Path, make_record):
    writer = RunWriter(run_dir)
    writer.trajectories(1, [make_record(1, i) for i in range(200)])
    assert writer.flush(10)
    code = (
        "import sys\nfrom grpo_tui.engine.runs.search.query import Query\n"
        "from grpo_tui.engine.runs.read.reader import RunReader\n"
        "reader = RunReader(sys.argv[1]); print('up', flush=True)\n"
        "while True: reader.rollouts.page(Query(sort='reward'), limit=200); "
        "reader.rollouts.count(Query('correct', 'circle')); reader.rollouts._views.clear()"
    )
    for _ in range(2):
        viewer = subprocess.Popen([sys.executable, "-c", code, str(run_dir)], stdout=subprocess.PIPE, text=True)
        assert viewer.stdout is not None and viewer.stdout.readline() == "up\n"
        time.sleep(0.05)
        viewer.send_signal(signal.SIGKILL)
        viewer.wait()
        writer.trajectories(2, [make_record(2, 0)])
        assert writer.flush(10)
    with RunReader(run_dir) as reader:
        assert reader.rollouts.total() == 202 and reader.problems == []
    writer.close()


def test_closing_a_reader_stops_the_query_of_another_thread(recorded, monkeypatch):
    monkeypatch.setattr("grpo_tui.engine.runs.read.record._OPCODES", 50)
    reader = RunReader(recorded[0])
    connection = reader._record.db
    assert connection is not None
    timer = threading.Timer(0.2, reader.close)
    timer.start()
    with pytest.raises(QueryInterrupted):
        connection.all("SELECT count(*) FROM rows a, rows b, rows c")
    timer.join()
