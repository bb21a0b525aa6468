"""What files say of themselves is used: seek tables, parquet columns that hold the same again, writers' own indexes."""

from __future__ import annotations

import json
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.imports.containers.packed_lines import SEEKABLE, SKIPPABLE, ZstdLines
from grpo_tui.engine.imports.containers.parquet import Parquet
from grpo_tui.engine.imports.coverage import SHARE_INDEXED
from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.options import Options
from grpo_tui.engine.imports.readers import DumpReader, open_reader
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.zstd import zstd_compress

from .conftest import PEERS

Open = Callable[[Path | str], RunReader]
TEXTS = [json.dumps({"n": n, "text": "x" * 200}).encode() + b"\n" for n in range(30)]


def seekable(path: Path, frames: int) -> tuple[Path, list[int]]:
    """The texts in frames, with a table of them at the end; and where each frame begins."""
    size = len(TEXTS) // frames
    parts = [b"".join(TEXTS[i : i + size]) for i in range(0, len(TEXTS), size)]
    packed = [zstd_compress(part) for part in parts]
    entries = b"".join(struct.pack("<II", len(p), len(t)) for p, t in zip(packed, parts, strict=True))
    table = entries + struct.pack("<IBI", len(parts), 0, SEEKABLE)
    path.write_bytes(b"".join(packed) + struct.pack("<II", SKIPPABLE, len(table)) + table)
    return path, [sum(map(len, packed[:i])) for i in range(len(packed))]


def test_a_document_behind_a_seek_table_is_read_without_the_frames_before_it(tmp_path: Path):
    path, starts = seekable(tmp_path / "a.zst", frames=3)
    places = [(found.offset, found.length) for found in ZstdLines().open(path)]
    assert len(places) == len(TEXTS)
    data = bytearray(path.read_bytes())
    data[starts[0] + 6 : starts[1]] = b"\xff" * (starts[1] - starts[0] - 6)  # only what is unpacked can fail
    path.write_bytes(data)
    lines = ZstdLines()
    for n in (29, 25, 10):
        assert lines.read(path, *places[n])["n"] == n


def test_prime_rls_sealed_chunks_have_such_a_table(tmp_path: Path):
    chunks = sorted(PEERS.glob("prime-rl/since-2026-09/**/*.zst"))
    for chunk in chunks:
        assert ZstdLines().end(chunk) == sum(found.length + 1 for found in ZstdLines().open(chunk))
    assert chunks


def test_rollouts_that_a_writers_index_names_and_no_file_holds_are_said(tmp_path: Path):
    for name in ("prime-rl/since-2026-09", "inspect-ai"):
        assert open_dump(PEERS / name, whole=True).summary["skipped"] == []
    shutil.copytree(PEERS / "prime-rl/since-2026-09", tmp_path / "run")
    chunk = next((tmp_path / "run").rglob("00001.jsonl.zst"))
    lost = sum(1 for _ in ZstdLines().open(chunk))
    chunk.parent.chmod(0o755)
    chunk.unlink()
    opened = open_dump(tmp_path / "run", whole=True)
    (said,) = opened.summary["skipped"]  # type: ignore[misc]
    assert said["file"].endswith("stream.index.jsonl")
    assert said["why"] == f"it names {lost} rollouts that no readable file contains"
    assert open_dump(tmp_path / "run").summary["skipped"] == [said], "also when it is opened again"


def test_samples_of_which_a_log_holds_the_summary_alone_are_said(tmp_path: Path):
    log = zipfile.ZipFile(tmp_path / "a.eval", "w")
    sample = {"id": 1, "epoch": 1, "uuid": "u1", "messages": [], "scores": {}}
    for name, document in (("samples/1_epoch_1.json", sample), ("summaries.json", [{"uuid": "u1"}, {"uuid": "u2"}])):
        log.writestr(name, json.dumps(document))
    log.close()
    summary = open_dump(tmp_path / "a.eval", whole=True).summary
    assert summary["rollouts"] == 1
    assert [s["why"] for s in summary["skipped"]] == ["it names 1 rollout that no readable file contains"]  # type: ignore[attr-defined, index, union-attr]


def log_of(path: Path, samples: int, *, lost: int | None = None, summaries: str = "summaries.json") -> Path:
    """A packed log of inspect-ai; the member of one sample is damaged; the first sample was written a second time."""

    def sample(n: int) -> dict[str, Any]:
        return {"id": n, "epoch": 1, "uuid": f"u{n}", "input": f"q{n}", "target": "a", "scores": {"s": {"value": n}}}

    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    with zipfile.ZipFile(path, "w") as log, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (0, *range(samples)):
            text = "{torn" if n == lost else json.dumps({**sample(n), "messages": talk * 2})
            log.writestr(f"samples/{n}_epoch_1.json", text)
        log.writestr(summaries, json.dumps([sample(n) for n in range(samples)]))
        log.writestr("header.json", json.dumps({"eval": {"task": "t", "model": "m"}}))
    return path


@pytest.mark.parametrize("summaries", ["summaries.json", "_journal/summaries/1.json"])
def test_a_log_with_summaries_is_listed_before_its_samples_are_read(
    tmp_path: Path, summaries: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("grpo_tui.engine.imports.part.PART_ROLLOUTS", 256)
    monkeypatch.setattr("grpo_tui.engine.imports.part.PART_SECONDS", 600.0)
    log = log_of(tmp_path / "a.eval", 600, lost=7, summaries=summaries)
    with Indexer(log, tmp_path / "index") as indexer, RunReader(tmp_path / "index") as reader:
        for _ in range(2):  # each goes on where the last one ended
            next(indexer._read(1, log))
        early = reader.rollouts.page(limit=600)
        assert [r.extra["component.s"] for r in early] == list(range(512))
        assert {r.turns for r in early} == {None}, "nobody has looked"
        assert reader.rollouts.count(Query(filter="component.s>=500")) == 12
        assert not indexer.advance()
        late = reader.rollouts.page(limit=600)
        assert [r.id for r in late] == [f"u{n}" for n in range(600)]
        assert [n for n, r in enumerate(late) if r.turns != 2] == [7] and late[7].turns is None
        assert ["samples/7_epoch_1.json" in s["why"] for s in indexer.summary()["skipped"]] == [True]  # type: ignore[attr-defined, index, union-attr]


def test_prime_rls_index_lists_its_rollouts_before_the_chunks_are_read(tmp_path: Path, opened: Open):
    whole = opened("prime-rl/since-2026-09")
    known = {row.id: row for row in whole.rollouts.page(limit=99)}
    dump = PEERS / "prime-rl/since-2026-09"
    with Indexer(dump, tmp_path / "index") as indexer:
        ((id_, path),) = indexer.db.execute("SELECT id, path FROM sources WHERE path LIKE '%/stream.index.jsonl'")
        list(indexer._read(id_, Path(path)))
        with DumpReader(tmp_path / "index", dump, Options()) as early:
            for row in early.rollouts.page(limit=99):
                last = known.pop(row.id)
                assert (row.group, row.env, row.split, row.tokens) == (last.group, last.env, last.split, last.tokens)
                assert row.reward in (None, pytest.approx(last.reward)) and row.turns is None
                assert len(early.bodies.trajectory(row.n).trajectory.steps) == last.turns
        assert not known
        assert not indexer.advance()
        assert indexer.summary()["formats"] == whole.info().facts["formats"]
    with DumpReader(tmp_path / "index", dump, Options()) as late:
        names = ("id", "turns", "reward", "advantage", "step", "rollout", "actions", "extra", "prompt")
        told = [[[getattr(r, n) for n in names] for r in each.rollouts.page(limit=99)] for each in (whole, late)]
        assert told[0] == told[1]


def test_lines_of_a_member_are_gone_on_with(tmp_path: Path):
    texts = [json.dumps({"prompt": "q", "completion": "a", "reward": n}) + "\n" for n in range(700)]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.jsonl", "".join(texts[:650]))
        archive.writestr("b.jsonl", "".join(texts[650:]))
    with Indexer(tmp_path / "a.zip", tmp_path / "index") as indexer, RunReader(tmp_path / "index") as reader:
        for _ in range(3):
            next(indexer._read(1, tmp_path / "a.zip"), None)
        assert not indexer.advance()
        assert [r.reward for r in reader.rollouts.page(limit=999)] == list(range(700))


def test_a_sample_before_its_turn_is_read_from_its_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_tui.engine.imports.opening.FIRST_SECONDS", 0.0)
    opened = open_dump(log_of(tmp_path / "a.eval", 2000))
    assert opened.more
    reader = open_reader(opened.folder)
    last = reader.rollouts.total()
    assert reader.rollouts.page(limit=1, offset=last - 1)[0].turns is None
    assert len(reader.bodies.trajectory(last).trajectory.steps) == 2


def test_how_far_the_index_is_counts_the_text_that_a_seek_table_tells(tmp_path: Path):
    path, _ = seekable(tmp_path / "a.zst", frames=3)
    half = sum(map(len, TEXTS)) // 2
    with Indexer(path, tmp_path / "index") as indexer:
        indexer.db.execute("UPDATE sources SET position = ?, ends = ?", (half, ZstdLines().end(path)))
        share = indexer.tables.one(SHARE_INDEXED)
    assert share == pytest.approx(0.5, abs=0.01), "bytes of the text, of which there are many more"


def test_columns_that_hold_the_same_again_are_no_values_unless_they_are_all_there_is(tmp_path: Path):
    import pyarrow as pa
    from pyarrow import parquet

    trajectory = json.dumps({"messages_and_choices": [], "reward": 1.0})
    for told, made in (([trajectory] * 2, [None, None]), ([trajectory, None], [["m"], ["m"]])):
        table = {"trajectory_json": pa.array(told, pa.string()), "messages": [["m"], ["m"]], "image": [b"\0", b"\1"]}
        parquet.write_table(pa.table(table), tmp_path / "a")
        rows = [found.document for found in Parquet().open(tmp_path / "a")]
        assert [row["messages"] for row in rows] == made
        assert [row["image"] for row in rows] == [None, None], "bytes are no text of a rollout"
