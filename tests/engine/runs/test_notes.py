"""Notes of people: the last word counts, damage costs a line, and filters find them."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.readers import open_reader
from grpo_tui.engine.runs.notes import Notes, place_of
from grpo_tui.engine.runs.search.query import Query

PEERS = Path(__file__).parents[1] / "imports" / "peer_dumps"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_the_last_word_counts_and_an_empty_one_takes_back(tmp_path: Path):
    notes = Notes(tmp_path)
    for id_, text in (("a", "first"), ("b", "#bad x"), ("a", "second\n#good  #hack"), ("b", " ")):
        notes.put(id_, text)
    assert {n.id: (n.text, n.labels) for n in notes.read().values()} == {"a": ("second #good #hack", ("good", "hack"))}
    assert Notes(tmp_path).read() == notes.read(), "another reader sees the same"


def test_a_torn_line_costs_only_itself(tmp_path: Path):
    notes = Notes(tmp_path)
    notes.put("a", "kept")
    with notes.path.open("ab") as file:
        file.write(b'{"id": "b", "te\n[1]\n{"id": 3, "text": []}\n')
    notes.put("c", "kept too")
    assert list(notes.read()) == ["a", "c"]
    with notes.path.open("ab") as file:
        file.write(b'{"id": "d", "te')  # the writer was killed
    notes.put("e", "kept, too")
    assert list(notes.read()) == ["a", "c", "e"]


def test_notes_on_a_dump_outlive_its_index_and_are_filtered(tmp_path: Path):
    from grpo_tui.engine.imports import cache

    dump = PEERS / "verl" / "rollout"
    folder = open_dump(dump, whole=True).folder
    with open_reader(folder) as reader:
        ids = [row.id for row in reader.rollouts.page(limit=3)]
        reader.notes.put(ids[0], "#hack copied the answer")
        reader.notes.put(ids[2], "well done")
        assert reader.notes.path.is_relative_to(tmp_path / "data"), "nothing lies beside the user's files"
    cache.forget(folder)
    with open_reader(open_dump(dump, whole=True).folder) as reader:
        for filter_, expected in (
            ("label:hack", ids[:1]),
            ("label:H*", ids[:1]),
            ("note:*", [ids[0], ids[2]]),
            ("note:'the answer' or note:DONE", [ids[0], ids[2]]),
            ("note:* and not label:hack", [ids[2]]),
        ):
            assert [row.id for row in reader.rollouts.page(Query(filter=filter_))] == expected, filter_
        assert reader.rollouts.page(Query(filter="label:nobody")) == []
        assert "label" in reader.rollouts.filter_notes("label:nobody")[0]


def test_a_run_of_our_own_keeps_them_in_its_folder(tmp_path: Path):
    assert place_of(tmp_path) == tmp_path / "notes.jsonl"
