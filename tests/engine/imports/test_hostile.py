"""Damaged, truncated, mixed and hostile files: one clear message, nothing executed, nothing lost of the rest."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_tui.engine.imports.dump import FORMATS, format_of
from grpo_tui.engine.imports.errors import DumpError
from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.options import Options
from grpo_tui.engine.imports.part import FilePart
from grpo_tui.engine.runs.errors import RecordDamaged
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query

GOOD = {"input": "user\nq\nassistant\n", "output": "a", "gts": "x", "score": 1.0, "step": 1}
Open = Callable[[Path | str], RunReader]


def line(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes}) + "\n"


def test_a_damaged_line_is_named_and_costs_only_itself(tmp_path: Path, opened: Open):
    file = tmp_path / "a.jsonl"
    file.write_text(line() + "{broken\n" + line(score=0.5) + '\x00\xff"\n' + line(score=float("nan")))
    reader = opened(file)
    assert reader.rollouts.total() == 3
    skipped = reader.info().facts["skipped"]
    assert [(s["file"], s["line"]) for s in skipped] == [("a.jsonl", 2), ("a.jsonl", 4)]


def test_a_torn_last_line_waits_and_growth_is_followed(tmp_path: Path, opened: Open):
    file = tmp_path / "a.jsonl"
    whole = line(score=2.0)
    file.write_text(line() + whole[:20])
    reader = opened(file)
    assert reader.rollouts.total() == 1 and reader.info().facts["skipped"] == []
    with Indexer(file, reader.run_dir) as indexer, file.open("a") as out:
        out.write(whole[20:] + line(score=3.0))
        out.flush()
        assert indexer.look_again() and not indexer.advance()
    assert [r.reward for r in reader.rollouts.page()] == [1.0, 2.0, 3.0]


def test_a_file_written_anew_is_indexed_anew(tmp_path: Path, opened: Open):
    file = tmp_path / "a.jsonl"
    file.write_text(line(score=1.0) * 3)
    assert opened(file).rollouts.total() == 3
    file.write_text(line(score=7.5))
    assert [r.reward for r in opened(file).rollouts.page()] == [7.5]


def test_a_file_that_is_gone_is_said_when_a_body_is_opened(tmp_path: Path, opened: Open):
    file = tmp_path / "a.jsonl"
    file.write_text(line())
    reader = opened(file)
    file.unlink()
    with pytest.raises(RecordDamaged, match=r"a\.jsonl cannot be read: No such file or directory$"):
        reader.bodies.trajectory(1)


def test_a_line_of_many_megabytes_is_passed_over(tmp_path: Path, opened: Open):
    file = tmp_path / "a.jsonl"
    with file.open("wb") as out:
        out.write(line().encode() + b'{"input": "')
        for _ in range(70):
            out.write(b"x" * (1 << 20))
        out.write(b'"}\n' + line(score=0.5).encode())
    reader = opened(file)
    assert [r.reward for r in reader.rollouts.page()] == [1.0, 0.5]
    assert "64 MiB" in reader.info().facts["skipped"][0]["why"]


def test_deep_nesting_is_no_end(tmp_path: Path, opened: Open):
    file = tmp_path / "a.jsonl"
    file.write_text(line() + '{"a":' * 100_000 + "1" + "}" * 100_000 + "\n" + "[" * 5000 + "NaN" + "]" * 5000 + "\n")
    assert opened(file).rollouts.total() == 1


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("/tmp/grpo-tui-was-fooled"),)


def test_a_pickle_in_disguise_is_never_opened(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(pickle.dumps(_Bomb()))
    with zipfile.ZipFile(tmp_path / "b.parquet", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(_Bomb()))
    for name in ("a.jsonl", "b.parquet"):
        with pytest.raises(DumpError, match="pickle"):
            open_dump(tmp_path / name, whole=True)
    assert not Path("/tmp/grpo-tui-was-fooled").exists()


def test_a_large_member_is_read_a_line_at_a_time(tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_tui.engine.imports.containers.zip_file.MAX_WHOLE", 1000)
    monkeypatch.setattr("grpo_tui.engine.imports.containers.json_file.MAX_DOCUMENT", 5000)
    bomb = '{"a":"' + "0" * (4 << 20) + '"}\n'
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
            archive.writestr("good.jsonl", line() + bomb + line(score=0.5))
            archive.writestr("bomb.json", "[" * (4 << 20))
        reader = opened(tmp_path / "a.zip")
        assert [reader.bodies.trajectory(n).trajectory.env_reward for n in (1, 2)] == [1.0, 0.5]
        assert [s["why"] for s in reader.info().facts["skipped"]] == [
            "good.jsonl, line 2: the line has 4 MiB; up to 0 MiB are read",
            "bomb.json, line 1: the line has 4 MiB; up to 0 MiB are read",
        ]


def test_a_member_called_as_a_path_out_of_its_zip_stays_in_it(tmp_path: Path, opened: Open):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/metadata.json").write_text(json.dumps({"env_id": "private"}))
    (tmp_path / "dump").mkdir()
    with zipfile.ZipFile(tmp_path / "dump/a.zip", "w") as archive:
        result = {"example_id": 1, "prompt": "q", "completion": "a", "reward": 1.0}
        archive.writestr("../../secret/results.jsonl", json.dumps(result))
    row = opened(tmp_path / "dump").rollouts.page()[0]
    assert row.env == "" and row.reward == 1.0


def test_strange_documents_are_told_three_times_a_file_and_by_their_own_keys(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for n in range(2000):
            archive.writestr(f"{n}.json", json.dumps({"odd": n}) if n else line())
    skipped = open_dump(tmp_path / "a.zip", whole=True).summary["skipped"]
    why = "no known format (its keys: odd); see --map"
    assert [s["why"] for s in skipped] == [f"{n}.json: {why}" for n in (1, 2, 3)]  # type: ignore[attr-defined]


def test_a_number_that_is_too_large_is_infinite(tmp_path: Path, opened: Open):
    file = tmp_path / "a.jsonl"
    file.write_text(line().replace("1.0", "1e999"))
    assert opened(file).bodies.trajectory(1).trajectory.env_reward == float("inf")


def test_infinite_rewards_do_not_stretch_the_histogram(tmp_path: Path, opened: Open):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(line(score=s) for s in (0.0, 1.0, float("inf"), float("-inf"), float("nan"))))
    reader = opened(file)
    bars = [(0.0, 0.5, 1), (0.5, 1.0, 1)]
    for query in (Query(), Query(filter="turns>0"), Query(filter="reward>-1e9 or reward<0")):
        assert reader.rollouts.histogram(query, bins=2) == bars


def test_a_lone_line_that_is_torn_is_said(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(line()[:20])
    with pytest.raises(DumpError, match=r"the last line of .*a\.jsonl is not JSON, or is still being written"):
        open_dump(tmp_path / "a.jsonl", whole=True)


def test_pipes_and_devices_in_a_folder_are_not_waited_for(tmp_path: Path, opened: Open):
    import os

    (tmp_path / "a.jsonl").write_text(json.dumps({"example_id": 1, "prompt": "q", "completion": "a"}) + "\n")
    os.mkfifo(tmp_path / "metadata.json")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    assert opened(tmp_path).rollouts.total() == 1


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path):
    bomb = tmp_path / "a.eval"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/a.json", b'{"a":"' + b"0" * (40 << 20) + b'"}')
    data = bytearray(bomb.read_bytes())
    at = data.rfind(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 1000)  # it says that it is small
    bomb.write_bytes(bytes(data))
    with pytest.raises(DumpError, match="damaged"):
        open_dump(bomb, whole=True)


@pytest.mark.parametrize(
    "data", [b"PAR1garbagePAR1", b"PK\x03\x04garbage", b"SQLite format 3\0garbage" * 9, b"\x28\xb5\x2f\xfdxx"]
)
def test_a_damaged_container_is_one_sentence(tmp_path: Path, data: bytes):
    file = tmp_path / "dump"
    file.write_bytes(data)
    with pytest.raises(DumpError) as caught:
        open_dump(file, whole=True)
    assert str(file.name) in str(caught.value) and "\n" not in str(caught.value)


def test_a_truncated_parquet_among_good_files_costs_only_itself(tmp_path: Path, opened: Open):
    peers = Path(__file__).parent / "peer_dumps/trl/completions"
    for path in peers.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    torn = tmp_path / "completions_00002.parquet"
    torn.write_bytes(torn.read_bytes()[:4000])
    reader = opened(tmp_path)
    assert reader.rollouts.total() == 16
    assert reader.info().facts["skipped"][0]["file"] == torn.name


def test_what_a_model_wrote_reaches_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from grpo_tui.tui.cli.main import run

    file = tmp_path / "a.jsonl"
    file.write_text(line(output="\x1b]0;owned\x07[bold]x[/bold]\x1b[2J", gts="\x1b[31m"))
    for arguments in ([], ["--filter", ""], ["--trajectory", "1"], ["--trajectory", "1", "--json"]):
        assert run(["inspect", str(file), *arguments]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "\x07" not in said.out


def test_names_given_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from grpo_tui.tui.cli.main import run

    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"q": "2+2?", "a": "4", "points": 0.25, "who": "g7", "difficulty": 4}) + "\n")
    maps = [f"--map={m}" for m in ("prompt=q", "completion=a", "reward=points", "group=who")]
    assert run(["inspect", str(file), *maps, "--filter", "extra.difficulty>3", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["reward"], row["group"], row["prompt"]) == (0.25, "g7", "2+2?")
    assert run(["inspect", str(file), "--map", "nonsense=q"]) != 0


def test_a_format_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from grpo_tui.tui.cli.main import run

    (tmp_path / "mine.py").write_text(
        "from grpo_tui.engine.imports.rollout import Message, Rollout\n"
        "name = 'my log'\nunknown = {'advantage': 'I never kept it'}\n"
        "def detect(document, origin):\n    return 'said' in document\n"
        "def open(document, origin):\n"
        "    yield Rollout(completion=(Message('assistant', document['said']),), reward=document['won'], step=3)\n"
    )
    (tmp_path / "log.jsonl").write_text('{"said": "hello", "won": 1}\n')
    command = ["inspect", str(tmp_path / "log.jsonl"), "--importer", str(tmp_path / "mine.py")]
    assert run([*command, "--trajectory", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["breakdown"]["total"] == 1 and record["not_recorded"]["advantage"] == "I never kept it"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
KEYS = (
    "input", "output", "score", "prompt", "completion", "messages", "role", "content", "tool_calls", "function",
    "arguments", "traces", "nodes", "env", "rewards", "episode_id", "steps", "agent", "schema_version",
    "trajectory", "history", "info", "row", "table", "samples", "eval", "member", "document", "columns", "data",
    "completions", "advantage", "step", "group_idx", "traj_idx", "resourceSpans", "content", "idx", "example_id",
    "reward", "trajectories", "task", "group_index", "trajectory_json", "from", "value", "conversations", "task_id",
    "seqlen", "head_version", "log_history", "global_step",
)  # fmt: skip
documents = st.dictionaries(st.sampled_from(KEYS), json_values, min_size=1, max_size=8)


@pytest.mark.parametrize("examples", [25, pytest.param(500, marks=pytest.mark.stress)])
def test_any_json_is_opened_or_passed_over(tmp_path_factory: pytest.TempPathFactory, examples: int):
    @settings(max_examples=examples, deadline=None)
    @given(st.lists(documents, min_size=1, max_size=6))
    def check(made: list[dict[str, Any]]) -> None:
        folder = tmp_path_factory.mktemp("fuzz")
        file = folder / "a.jsonl"
        file.write_text(line() + "".join(json.dumps(d) + "\n" for d in made))
        with Indexer(file, folder / "index", Options()) as indexer:
            assert not indexer.advance()
            assert indexer.store.last_n() >= 1
            indexer.make_searchable()

    check()


@pytest.mark.parametrize("examples", [60, pytest.param(1500, marks=pytest.mark.stress)])
def test_detecting_never_fails(examples: int):
    @settings(max_examples=examples, deadline=None)
    @given(documents)
    def check(document: dict[str, Any]) -> None:
        format_of(document, Origin(Path("/x/a.jsonl"), Path("/x")), FORMATS)

    check()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_sample_with_bytes_changed_never_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    peers = Path(__file__).parent / "peer_dumps"
    parquet = ("trl/completions/completions_00001.parquet", "art/models/tiny/trajectories/train/0001.parquet")
    names = ("verl/rollout/1.jsonl", "trackio/visual.db", *parquet)
    source = (peers / data.draw(st.sampled_from(names))).read_bytes()
    cut = data.draw(st.integers(1, len(source)))
    changed = bytearray(source[:cut])
    for _ in range(data.draw(st.integers(0, 6))):
        changed[data.draw(st.integers(0, cut - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("changed") / "dump"
    file.write_bytes(bytes(changed))
    try:
        with Indexer(file, file.parent / "index", Options()) as indexer:
            indexer.advance()
    except DumpError:
        pass


def test_a_trace_that_failed_while_it_was_read_is_not_gone_on_with(tmp_path: Path, opened: Open):
    (tmp_path / "mine.py").write_text(
        "from grpo_tui.engine.imports.rollout import Message, Rollout\n"
        "def detect(document, origin):\n    return 'said' in document\n"
        "def open(document, origin):\n"
        "    yield Rollout(completion=(Message('assistant', document['said']),), id=document['id'], grows=True)\n"
        "    yield Rollout(completion=document['more'])\n"
    )
    text = "".join(json.dumps({"said": "x", "id": "t", "more": more}) + "\n" for more in (5, [], []))
    (tmp_path / "log.jsonl").write_text(text)
    folder = tmp_path / "index"
    with Indexer(tmp_path / "log.jsonl", folder, Options.of(importers=[str(tmp_path / "mine.py")])) as indexer:
        assert not indexer.advance()
        assert [s["line"] for s in indexer.summary()["skipped"]] == [1]  # type: ignore[attr-defined, index, union-attr]
    with RunReader(folder) as reader:
        assert [r.turns for r in reader.rollouts.page()] == [1, 0, 0]


def test_a_file_that_grows_while_it_is_committed_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a.jsonl"
    file.write_text(line())
    commit = FilePart.commit

    def late(part: FilePart, done: bool) -> None:
        if done and file.read_text() == line():
            file.write_text(line() * 2)
        commit(part, done)

    monkeypatch.setattr(FilePart, "commit", late)
    with Indexer(file, tmp_path / "index") as indexer:
        indexer.advance()
        assert indexer.look_again() and not indexer.advance()
        assert indexer.store.last_n() == 2


def test_a_problem_of_a_file_that_is_read_again_is_told_once(tmp_path: Path):
    session, other = tmp_path / "s.jsonl", tmp_path / "b.txt"
    entry = json.dumps({"type": "user", "sessionId": "s", "uuid": "u", "message": {"role": "user", "content": "q"}})
    session.write_text(f"{entry}\n{{broken\n")
    other.write_bytes(b"\xff\xfea\0")
    with Indexer(tmp_path, tmp_path / ".index") as indexer:
        indexer.advance()
        with session.open("a") as file:
            file.write(f"{entry}\n")
        other.write_bytes(b"\xff\xfea\0b\0")
        assert indexer.look_again() and not indexer.advance()
        summary = indexer.summary()
    assert sorted(s["file"] for s in summary["skipped"]) == ["b.txt", "s.jsonl"] and summary["skipped_in_all"] == 2


def test_a_file_whose_name_is_no_utf_8_is_told_and_costs_only_itself(tmp_path: Path, opened: Open):
    (tmp_path / "a.jsonl").write_text(line())
    try:
        (tmp_path / "caf\udce9.jsonl").write_text(line())
    except OSError:
        pytest.skip("this file system takes no such names")
    reader = opened(tmp_path)
    assert reader.rollouts.total() == 1
    (skipped,) = reader.info().facts["skipped"]
    assert "is not UTF-8; rename it" in skipped["why"]


def test_a_line_that_is_too_long_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_tui.engine.imports.containers.json_file.MAX_DOCUMENT", 5000)
    (tmp_path / "a.json").write_text(json.dumps({"rollouts": [{**GOOD, "output": "a " * 5000}]}) + "\n{}\n")
    with pytest.raises(DumpError, match=r"a\.json, line 1: the line has 0 MiB; up to 0 MiB are read"):
        open_dump(tmp_path / "a.json", whole=True)
