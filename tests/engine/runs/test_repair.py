"""The one file is the whole record; what is missing from it is said; what can be read of it is saved."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from grpo_tui.engine.runs.errors import RecordDamaged, RecordError
from grpo_tui.engine.runs.health.repair import repair
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.read.record import damage
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.write.writer import RunWriter


@pytest.fixture
def copy(recorded, tmp_path: Path) -> Path:
    shutil.copytree(recorded[0], tmp_path / "copy")
    return tmp_path / "copy"


def readable(run_dir: Path) -> dict[str, str]:
    """Every trajectory that can be read, by id."""
    found = {}
    with RunReader(run_dir) as reader:
        for n in range(1, 601):
            try:
                record = reader.bodies.trajectory(n)
            except (RecordError, LookupError):
                continue
            found[record.trajectory.id] = repr(record)
    return found


def test_after_a_clean_end_the_one_file_is_the_whole_record_though_a_viewer_has_it_open(
    run_dir: Path, tmp_path: Path, make_record
):
    writer = RunWriter(run_dir)
    writer.trajectories(1, [make_record(1, i) for i in range(40)])
    assert writer.flush(30)
    with RunReader(run_dir) as viewer:
        assert viewer.rollouts.total() == 40
        writer.status("finished", exit_code=0)
        writer.close()
        (tmp_path / "alone").mkdir()
        shutil.copy(run_dir / "record.sqlite", tmp_path / "alone")
    with RunReader(tmp_path / "alone") as reader:
        assert reader.rollouts.total() == 40 and reader.problems == []


def test_the_log_is_folded_in_while_the_run_goes_on(run_dir: Path, tmp_path: Path, make_record, monkeypatch):
    monkeypatch.setattr("grpo_tui.engine.runs.write.sink.FOLD_SECONDS", 0.0)
    writer = RunWriter(run_dir)
    for step in (1, 2):
        writer.trajectories(step, [make_record(step, i) for i in range(20)])
        assert writer.flush(30)
    (tmp_path / "alone").mkdir()
    shutil.copy(run_dir / "record.sqlite", tmp_path / "alone")
    writer.close()
    with RunReader(tmp_path / "alone") as reader:
        assert reader.rollouts.total() == 40


def killed_with_a_damaged_log(run_dir: Path, to: Path, make_record) -> Path:
    """A copy of a run in the middle of being written, of whose log the second half is lost."""
    writer = RunWriter(run_dir)
    for step in range(1, 8):
        writer.trajectories(step, [make_record(step, i) for i in range(16)])
        assert writer.flush(30)
    shutil.copytree(run_dir, to)
    writer.close()
    log = to / "record.sqlite-wal"
    with log.open("r+b") as file:
        file.seek(log.stat().st_size // 2)
        file.write(os.urandom(4096))
    (to / "record.sqlite-shm").unlink()
    return to


def test_rows_that_a_damaged_log_has_lost_are_told_and_what_is_left_goes_on(run_dir: Path, tmp_path: Path, make_record):
    copy = killed_with_a_damaged_log(run_dir, tmp_path / "copy", make_record)
    with RunReader(copy) as reader:
        left = reader.rollouts.total()
        assert 0 < left < 112
        assert reader.problems and f"{112 - left} of 112 trajectories" in reader.problems[0]
        assert f"grpo-tui repair {copy}" in reader.problems[0]
    assert f"{112 - left} of 112" in (damage(copy) or "")
    done = repair(copy)
    assert (done.saved, done.expected) == (left, 112)
    assert damage(copy) is None
    with RunReader(copy) as reader:
        assert reader.rollouts.total() == left and reader.problems == []
    writer = RunWriter(copy, resume_from_step=1)
    writer.trajectories(2, [make_record(9, 0)])
    assert writer.flush(30)
    writer.close()
    with RunReader(copy) as reader:
        assert reader.rollouts.total() == 17 and reader.bodies.trajectory(17).trajectory.id == "t9-0"


def test_a_record_that_is_whole_comes_out_equal(copy: Path):
    def seen(run_dir: Path) -> tuple[object, ...]:
        with RunReader(run_dir) as reader:
            metrics = {name: reader.metrics.points(name) for name in reader.metrics.names()}
            filtered = [r.n for r in reader.rollouts.page(Query("reward<0.2 penalty:out_of_bounds"), limit=600)]
            tokens = [
                np.asarray(t.logprobs).tobytes()
                for n in range(1, 601, 50)
                if (t := reader.bodies.tokens(n)) is not None
            ]
            return (
                reader.rollouts.page(limit=600),
                filtered,
                reader.rollouts.count(Query("", "circle")),
                metrics,
                tokens,
                readable(run_dir),
            )

    before = seen(copy)
    done = repair(copy)
    assert (done.saved, done.expected) == (600, 600) and done.kept is not None and done.kept.is_file()
    assert seen(copy) == before


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(3, 20))])
def test_everything_that_could_be_read_is_saved(copy: Path, seed: int):
    path = copy / "record.sqlite"
    pages = path.stat().st_size // 8192
    rng = random.Random(seed)
    with path.open("r+b") as file:
        for page in rng.sample(range(3, pages), 4):
            file.seek(page * 8192)
            file.write(rng.randbytes(8192))
    before = readable(copy)
    done = repair(copy)
    after = readable(copy)
    assert {id_: after.get(id_) for id_ in before} == before
    assert done.saved == len(after) and done.expected == 600
    assert damage(copy) is None
    with RunReader(copy) as reader:
        assert reader.rollouts.total() == done.saved and reader.problems == []
        assert [r.n for r in reader.rollouts.page(limit=600)] == list(range(1, done.saved + 1))


def test_what_is_no_database_is_left_as_it_is(copy: Path):
    (copy / "record.sqlite").write_bytes(b"x" * 50_000)
    files = sorted(p.name for p in copy.iterdir())
    with pytest.raises(RecordDamaged):
        repair(copy)
    assert sorted(p.name for p in copy.iterdir()) == files and (copy / "record.sqlite").stat().st_size == 50_000


@pytest.mark.parametrize("spoilt", [16, 100])
def test_a_record_whose_head_is_damaged_is_saved_whole(copy: Path, spoilt: int):
    before = readable(copy)
    with (copy / "record.sqlite").open("r+b") as file:
        file.write(b"\xa5" * spoilt)
    assert damage(copy) is not None
    done = repair(copy)
    assert (done.saved, done.expected) == (600, 600) and done.kept is not None and done.kept.is_file()
    assert damage(copy) is None and readable(copy) == before


def test_of_a_record_that_is_gone_a_new_one_is_begun(copy: Path):
    (copy / "record.sqlite").unlink()
    assert damage(copy) is not None
    assert repair(copy).saved == 0
    assert damage(copy) is None and readable(copy) == {}


@pytest.mark.parametrize("emptied", [False, True])
def test_a_record_that_was_removed_is_told(copy: Path, emptied: bool):
    (copy / "record.sqlite").write_bytes(b"") if emptied else (copy / "record.sqlite").unlink()
    with RunReader(copy) as reader:
        assert "600 of 600 trajectories that were recorded are missing" in reader.problems[0]


def test_checking_a_large_record_takes_no_longer_than_it_may(copy: Path):
    assert damage(copy, seconds=0.0) is None
    db = sqlite3.connect(copy / "record.sqlite")
    db.execute("DELETE FROM rows WHERE n > 590")
    db.commit()
    db.close()
    assert "10 of 600" in (damage(copy) or "")
