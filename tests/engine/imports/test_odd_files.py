"""Files as systems and tools leave them: links, columns without names, cut off archives, odd numbers and texts."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import pickle
import random
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.imports import cache
from grpo_tui.engine.imports.containers import json_file
from grpo_tui.engine.imports.errors import DumpError
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.options import Options
from grpo_tui.engine.imports.values import whole
from grpo_tui.engine.runs.errors import RecordDamaged
from grpo_tui.engine.runs.read.reader import RunReader

Open = Callable[[Path], RunReader]


def row(number: int, **more: Any) -> str:
    return json.dumps({"prompt": f"q{number}", "completion": f"a{number}", "reward": number, "step": 1, **more})


def skipped(reader: RunReader) -> list[tuple[str, str]]:
    return [(each["file"], each["why"]) for each in reader.info().facts["skipped"]]


def test_a_file_or_folder_behind_a_link_counts_once(tmp_path: Path, opened: Open) -> None:
    dump, elsewhere = tmp_path / "dump", tmp_path / "elsewhere"
    for folder in (dump / "step_1", elsewhere):
        folder.mkdir(parents=True)
    (dump / "step_1" / "a.jsonl").write_text("\n".join(map(row, range(4))) + "\n")
    (elsewhere / "b.jsonl").write_text("\n".join(map(row, range(4, 7))) + "\n")
    for name, target in (("latest", "step_1"), ("far", elsewhere), ("again", elsewhere), ("loop", dump)):
        (dump / name).symlink_to(target)
    (dump / "latest.jsonl").symlink_to(dump / "step_1" / "a.jsonl")
    (dump / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    reader = opened(dump)
    assert sorted(r.reward or 0.0 for r in reader.rollouts.page()) == list(range(7))
    assert skipped(reader) == [("gone.jsonl", "the link points to no file (No such file or directory)")]


def test_a_table_of_pandas_has_an_index_without_a_name(tmp_path: Path, opened: Open) -> None:
    file = tmp_path / "a.csv"
    file.write_text(",prompt,completion,reward\n0,q,a,1.5\n1,q,b,0.5\n")
    reader = opened(file)
    assert [r.reward for r in reader.rollouts.page()] == [1.5, 0.5] and reader.rollouts.page()[0].extra == {}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_a_table_of_a_european_spreadsheet_is_read(encoding: str, tmp_path: Path, opened: Open) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes("prompt;completion;reward\r\nGrüße, zwei;3,14;-0,5\r\n€ 3;a;1,25\r\n".encode(encoding))
    reader = opened(file)
    assert [(r.prompt, r.reward) for r in reader.rollouts.page()] == [("Grüße, zwei", -0.5), ("€ 3", 1.25)]
    assert reader.bodies.trajectory(1).trajectory.steps[0].text == "3,14", "a text stays as it was written"


@pytest.mark.parametrize("mark", ["", "\ufeff", "\n", "sep=#\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
def test_a_table_is_read_whatever_ends_its_columns(mark: str, delimiter: str, tmp_path: Path, opened: Open) -> None:
    """Names and texts hold the other delimiters and line ends, as spreadsheets quote them."""
    table, said = io.StringIO(), 'It is\n\n2, "two"; ok|ok\tso'
    names = ["prompt", "completion", "reward", "good, or bad?\n(0-1)"]
    csv.writer(table, delimiter=delimiter).writerows([names, ["q", said, 0.5, 1], ["r", "a", "1", 0]])
    file = tmp_path / "a.txt"
    file.write_text(mark.replace("#", delimiter) + table.getvalue(), newline="")
    reader = opened(file)
    assert [r.reward for r in reader.rollouts.page()] == [0.5, 1]
    first = reader.bodies.trajectory(1).trajectory
    assert (first.steps[0].text, first.extra) == (said, {"good, or bad? (0-1)": 1.0})


def test_lines_with_zeros_of_a_full_disk_leave_the_others(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "q", "completion": "a"}\n\0\0\0\n' + row(2) + "\n")
    reader = opened(tmp_path)
    assert [r.prompt for r in reader.rollouts.page()] == ["q", "q2"] and len(skipped(reader)) == 1


def test_a_table_in_markdown_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("| prompt | completion |\n|---|---|\n| q | a |\n")
    with pytest.raises(DumpError, match="is a rollout"):
        open_dump(tmp_path, whole=True)


def test_a_damaged_character_of_utf_8_leaves_the_others_of_its_line(tmp_path: Path, opened: Open) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes("prompt,completion,reward\nGrüße ".encode() + b"\xe2\x82" + b",a,1\n")
    assert opened(file).rollouts.page()[0].prompt == "Grüße \ufffd"


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("share", [0.5, 0.7, 0.95])
def test_whole_items_of_a_document_without_its_end_are_read(tmp_path: Path, indent: int | None, share: float) -> None:
    rows = [{"prompt": f"{i}?", "completion": f'it\u0020is ["{i}", {{', "reward": i / 5} for i in range(12)]
    text = json.dumps({"config": {"a": [1, 2]}, "rollouts": rows}, indent=indent)
    text = text[: int(len(text) * share)]
    file = tmp_path / "a.json"
    file.write_text(text)
    told = open_dump(file, whole=True).summary
    assert told["rollouts"] == text.count("},") - 1, "all but the last one, and the configuration is none"
    assert "the file ends within an item: the items before it were read" in str(told["skipped"])


def test_whole_lines_before_the_end_of_a_cut_off_archive_are_read(tmp_path: Path, opened: Open) -> None:
    chance = random.Random(0)
    packed = gzip.compress("".join(row(i, pad=chance.random()) + "\n" for i in range(100)).encode())
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(packed[:-60])
    reader = opened(file)
    assert 80 < reader.rollouts.total() < 100
    assert [why.partition(" (")[0] for _, why in skipped(reader)] == ["the compressed text is damaged"]


def test_a_member_of_a_zip_may_have_a_byte_order_mark(tmp_path: Path, opened: Open) -> None:
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.jsonl", f"\ufeff{row(1)}\n{row(2)}\n")
    assert opened(file).rollouts.total() == 2


@pytest.mark.parametrize("packed", [False, True])
def test_one_object_on_a_long_line_is_a_document_and_no_line(
    packed: bool, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_file, "MAX_DOCUMENT", 1 << 18)
    text = json.dumps({"rollouts": [json.loads(row(i, pad="x" * 10_000)) for i in range(40)]})
    file = tmp_path / "a.json"
    file.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    reader = opened(file)
    assert reader.rollouts.total() == 40 and reader.bodies.trajectory(40).trajectory.prompt == "q39"


def test_a_number_of_thousands_of_digits_in_a_large_list_costs_its_item_alone(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    file.write_text(f"[{row(1)},\n{row(2)[:-1]}, {'9' * 5000!r}: {'9' * 5000}}},\n{row(3)}]".replace("'", '"'))
    reader = opened(file)
    assert [r.reward for r in reader.rollouts.page()] == [1, 3] and len(skipped(reader)) == 1


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "lo\\ud800ss": 0.5, "\\uDFFF": 2}',
        '{"trace_id": "a\\ud800", "branches": [], "info": {"advantage": 1, "\\ud800": 2}}',
        row(2, id="\ud800", group="\udfff", answer="\ud800", messages=json.dumps([{"role": "\ud800"}])),
    ],
)
def test_half_a_character_ends_nothing(line: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(f"{line}\n{row(1)}\n")
    assert open_dump(file, whole=True, searchable=True).summary["skipped"] == []


def test_an_answer_and_a_group_that_an_importer_gives_as_numbers_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"reply": "It is 42.", "won": 1}\n')
    importer = tmp_path / "mine.py"
    importer.write_text(
        "from grpo_tui.engine.imports.rollout import Message, Rollout\n"
        "def detect(document, origin):\n    return 'reply' in document\n"
        "def open(document, origin):\n"
        "    yield Rollout(completion=(Message('assistant', document['reply']),), reward=document['won'], answer=42,"
        " group=document['won'])\n"
    )
    found = open_dump(tmp_path / "a.jsonl", Options(importers=(str(importer),)), whole=True, searchable=True)
    assert found.summary["rollouts"] == 1 and found.summary["skipped"] == []


@pytest.mark.parametrize(("given", "found"), [("3", 3), ("3_1", None), ("1e3", 1000), ("0_0", None)])
def test_a_name_with_an_underscore_is_no_number(given: str, found: int | None) -> None:
    assert whole(given) == found


def test_a_document_with_many_rollouts_is_read_once_for_all_of_them(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"rollouts": [json.loads(row(i)) for i in range(40)]}))
    reads: list[Path] = []
    read = json_file.JsonLines.read

    def counted(container: json_file.JsonLines, path: Path, offset: int, length: int) -> Any:
        reads.append(path)
        return read(container, path, offset, length)

    monkeypatch.setattr(json_file.JsonLines, "read", counted)
    open_dump(file, whole=True, searchable=True)
    assert len(reads) == 1
    bodies = opened(file).bodies
    assert [bodies.trajectory(n).trajectory.prompt for n in range(1, 41)] == [f"q{n}" for n in range(40)]
    assert len(reads) == 2
    file.write_text(json.dumps({"rollouts": [json.loads(row(7))]}))
    with pytest.raises(RecordDamaged, match="has changed since it was indexed"):
        bodies.trajectory(2)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("text", "rewards", "problems"),
    [
        pytest.param(f"[\n{row(0)}\n]\n", [0], 0, id="one item on a line of its own"),
        pytest.param(f"[{row(0)},\n{row(1)}\n]", [0, 1], 0, id="the list ends on the third line"),
        pytest.param(f"[{row(0)}, {row(1)}, {row(2)[:-9]}", [0, 1], 1, id="half written"),
        pytest.param(f"[\n{row(0)},\n{{'a'}},\n{row(2)}\n]", [0, 2], 1, id="a damaged item"),
        pytest.param(f"[{row(0)},\n{row(1)}]\n[{row(2)}]\n", [0, 1, 2], 0, id="one list after the other"),
        pytest.param(f"{{\n{row(0)[1:]}\n{{\n'a'}}\n{{\n{row(2)[1:]}\n", [0, 2], 1, id="a damaged document"),
        pytest.param(f"[{row(0)},\n{row(1)}]\nnothing", [0, 1], 1, id="words behind a list"),
    ],
)
def test_a_list_opens_however_it_is_written_and_a_damaged_item_costs_only_itself(
    text: str, rewards: list[float], problems: int, pack: Callable[[bytes], bytes], tmp_path: Path, opened: Open
) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(pack(text.encode()))
    reader = opened(file)
    assert [r.reward for r in reader.rollouts.page()] == rewards
    assert [reader.bodies.trajectory(r.n).trajectory.prompt for r in reader.rollouts.page()] == [
        f"q{reward}" for reward in rewards
    ]
    assert len(skipped(reader)) == problems and all("is not JSON" in why for _, why in skipped(reader))


TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize("packed", ["plain", "gzip", "zip"])
@pytest.mark.parametrize(
    ("document", "count"),
    [
        ([json.loads(row(0)), json.loads(row(1))], 2),
        ({"rollouts": [json.loads(row(0)), json.loads(row(1))]}, 2),
        (TALK, 1),
    ],
)
def test_a_document_opens_however_it_is_packed(
    document: object, count: int, packed: str, tmp_path: Path, opened: Open
) -> None:
    file, text = tmp_path / "a", json.dumps(document)
    if packed == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.json", text)
    else:
        file.write_bytes(gzip.compress(text.encode()) if packed == "gzip" else text.encode())
    reader = opened(file)
    assert reader.rollouts.total() == count
    assert reader.bodies.trajectory(count).trajectory.steps[0].text[0] == "a"


def test_a_session_that_is_half_written_opens(tmp_path: Path, opened: Open) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps([*TALK, *TALK])[:-9])
    reader = opened(file)
    assert [r.turns for r in reader.rollouts.page()] == [1] and len(skipped(reader)) == 1


def test_what_a_trainer_keeps_beside_its_rollouts_is_no_damage_and_no_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from grpo_tui.tui.cli.main import run

    checkpoint = tmp_path / "checkpoint-5"
    checkpoint.mkdir()
    (tmp_path / "a.jsonl").write_text("\n".join(row(i) for i in range(4)) + "\n")
    (checkpoint / "vocab.json").write_text(json.dumps({**{f"w{i}": i for i in range(5000)}, "step": 9662}))
    (checkpoint / "chat_template.jinja").write_text("{%- if tools %}\n{{ tools }}\n{%- endif %}\n")
    (checkpoint / "optimizer.pt").write_bytes(pickle.dumps([1]))
    (checkpoint / "trainer_state.json").write_text('{"log_history": [], "global_step": 5}')
    (tmp_path / "main.log").write_text("[2026-01-01 10:00:00,123][root][INFO] - reading input\n" * 2)
    (tmp_path / "other.log").write_text("2026-01-01 10:00:00,123 - INFO - step 1\n" * 2)
    summary = open_dump(tmp_path, whole=True).summary
    assert (summary["rollouts"], summary["metrics"], summary["skipped"]) == (4, 0, [])
    (tmp_path / "0.pt").write_bytes(pickle.dumps([1]))  # slime writes rollouts as pickles
    assert run(["check", str(tmp_path)]) == 1 and "0.pt: a pickle" in capsys.readouterr().err


@pytest.mark.parametrize(("pack", "name"), [(bz2.compress, "bzip2"), (lzma.compress, "xz")])
def test_another_compression_is_named(pack: Callable[[bytes], bytes], name: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pack(row(0).encode()))
    with pytest.raises(DumpError, match=f"compressed with {name}; unpack it, or use gzip"):
        open_dump(tmp_path / "a", whole=True)


def test_a_database_gets_no_files_beside_it_and_its_log_is_read(tmp_path: Path, opened: Open) -> None:
    file, copied = tmp_path / "a.db", tmp_path / "copied.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE traces (id, run_name, step, messages, metadata)")
        db.execute("INSERT INTO traces VALUES ('t', 'r', 1, ?, '{\"reward\": 0.5}')", (json.dumps(TALK),))
        db.commit()
    reader = opened(file)
    assert reader.bodies.trajectory(1).trajectory.env_reward == 0.5
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("a.db")] == ["a.db"]
    with closing(sqlite3.connect(file)) as db:
        db.execute("INSERT INTO traces SELECT 'u', run_name, step, messages, metadata FROM traces")
        db.commit()
        for end in ("", "-wal", "-shm"):
            Path(f"{copied}{end}").write_bytes(Path(f"{file}{end}").read_bytes())
    assert opened(copied).rollouts.total() == 2


def test_the_folder_above_and_a_path_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text(row(0))
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    folder = open_dump("..", whole=True).folder
    assert folder == cache.folder_of(tmp_path, Options())
    with pytest.raises(DumpError, match=r"there is no file or folder nowhere\.jsonl"):
        open_dump("nowhere.jsonl", Options({"reward": "score"}), whole=True)
    (tmp_path / "runs/one").mkdir(parents=True)
    (tmp_path / "runs/one/run.json").write_text("{}")
    with pytest.raises(DumpError, match=r"no files of other frameworks: .* grpo-tui --runs-dir .*/runs"):
        open_dump(tmp_path / "runs", whole=True)
