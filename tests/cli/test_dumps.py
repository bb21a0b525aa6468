"""What other frameworks wrote, through the commands: exported, reported, listed among the runs."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import grpo_tui.tui.cli.inspect  # noqa: F401 - its name in `sys.modules`
from grpo_tui.engine.runs.read import rollouts
from grpo_tui.engine.runs.read.rollouts import Rollouts
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.tui import advantage
from grpo_tui.tui.cli.main import run

PEERS = Path(__file__).parents[1] / "engine" / "imports" / "peer_dumps"
FOLDERS = sorted(p.name for p in PEERS.iterdir() if p.is_dir() and p.name != "slime")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def exported(dump: Path, out: Path) -> list[dict[str, Any]]:
    assert run(["export", str(dump), "--out", str(out)]) == 0
    return [json.loads(text) for text in out.open()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_sample_is_exported_whole(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = exported(PEERS / folder, tmp_path / "out.jsonl")
    assert run(["inspect", str(PEERS / folder), "--filter", "", "--json"]) == 0
    listed = [json.loads(text) for text in capsys.readouterr().out.splitlines() if text.startswith("{")]
    assert [(r["n"], r["trajectory"]["id"], r["trajectory"]["group"]) for r in rows] == [
        (r["n"], r["id"], r["group"]) for r in listed
    ]
    for row in rows:
        if row["recomputed"] is not None:
            assert row["advantage"] is None and "advantage" in row["not_recorded"]


def test_an_advantage_that_nobody_wrote_is_recomputed_and_marked(tmp_path: Path):
    rows = exported(PEERS / "verl" / "rollout", tmp_path / "out.jsonl")
    groups = defaultdict(list)
    for row in rows:
        groups[row["trajectory"]["group"]].append(row)
    for members in groups.values():
        given = [m["breakdown"]["total"] for m in members]
        rewards = [float("nan") if r is None else float(r) for r in given]  # "NaN" is text
        if any(r != r for r in rewards):
            assert all(m["recomputed"] is None for m in members), "an unknown reward leaves the group unknown"
            continue
        mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
        for member, reward in zip(members, rewards, strict=True):
            said = member["recomputed"]
            assert (said["group_mean"], said["group_size"]) == (pytest.approx(mean), 4)
            assert said["advantage"] == pytest.approx((reward - mean) / (std + 1e-4))
    recorded = exported(PEERS / "trl", tmp_path / "trl.jsonl")
    assert all(row["recomputed"] is None and row["advantage"] is not None for row in recorded)


def test_a_group_is_read_once_for_its_rollouts_and_compared_if_it_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read, known = list[str](), Rollouts.group
    monkeypatch.setattr(Rollouts, "group", lambda self, name: read.append(name) or known(self, name))
    dump, limit = tmp_path / "dump.jsonl", 7
    for module in (rollouts, advantage):
        monkeypatch.setattr(module, "MOST_OF_GROUP", limit + 1)
    rows = [{"group": "few", "reward": 2 * i, "completion": "a"} for i in range(2)]
    rows += [{"group": name, "reward": 1, "completion": "a"} for name in ("most", "more") for _ in range(limit)]
    dump.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {**rows[-1], "reward": 9}]))
    found = exported(dump, tmp_path / "out.jsonl")
    assert sorted(read) == ["few", "more", "most"]
    sizes = {r["trajectory"]["group"]: (r["recomputed"] or {}).get("group_size") for r in found}
    assert sizes == {"few": 2, "most": limit, "more": None}


def test_a_report_says_what_was_read_and_found(tmp_path: Path):
    page = tmp_path / "report.html"
    assert run(["inspect", str(PEERS / "verl" / "rollout"), "--report", str(page)]) == 0
    text = page.read_text()
    assert "24 rollouts in 3 files: verl rollouts" in text and "Findings" in text and "an unreadable call" in text


def test_a_dump_says_its_last_step_or_that_it_has_none(capsys: pytest.CaptureFixture[str]):
    from grpo_tui.engine.imports.cache import recent
    from grpo_tui.engine.runs.control.status import look
    from grpo_tui.tui.cli.run_table import facts
    from grpo_tui.tui.format import step_text

    last = [json.loads(text)["score"] for text in (PEERS / "verl/rollout/3.jsonl").open()]
    areal = [json.loads(text)["reward"] for path in PEERS.glob("areal/**/*.jsonl") for text in path.open()]
    finite = [r for r in areal if r is not None and r == r]
    known = (("verl/rollout", "3", statistics.fmean(last)), ("areal", "–", statistics.fmean(finite)))
    for folder, step, reward in (*known, ("mini-swe-agent", "–", None)):
        assert run(["inspect", str(PEERS / folder), "--json"]) == 0
        info = look(recent()[0])
        assert (info.id, step_text(info)) == (Path(folder).name, step)
        assert facts(info)["reward"] == (None if reward is None else pytest.approx(reward))


def test_groups_of_one_name_by_two_writers_are_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    verl = {"input": "user\nq\nassistant\n", "output": "a", "gts": "x", "score": 1.0, "step": 1, "uid": "g"}
    plain = {"prompt": "q", "completion": "a", "reward": 0.0, "step": 1, "group": "g"}
    (tmp_path / "a.jsonl").write_text((json.dumps(verl) + "\n") * 2)
    (tmp_path / "b.jsonl").write_text((json.dumps(plain) + "\n") * 2)
    numbered = [{**plain, "group": 0, "step": step} for step in (1, 2)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(r) + "\n" for r in numbered))
    assert run(["inspect", str(tmp_path), "--filter", "", "--json"]) == 0
    groups = [json.loads(text)["group"] for text in capsys.readouterr().out.splitlines()]
    assert groups[0] == groups[1] == "g" and len(set(groups)) == 4, "a group called 0 is that of its step"


def test_a_rollout_in_which_nobody_spoke_is_shown(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    messages = [{"role": "user", "content": "q"}, {"role": "tool", "content": "t"}]
    file.write_text(json.dumps({"messages": messages, "reward": 0.0, "step": 1}) + "\n")
    (row,) = exported(file, tmp_path / "out.jsonl")
    assert row["trajectory"]["steps"] == []


def test_a_note_is_written_listed_exported_and_filtered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    dump = PEERS / "verl" / "rollout"
    assert run(["note", str(dump), "3", "#hack copied \x1b[31m"]) == 0
    capsys.readouterr()
    assert run(["note", str(dump), "--json"]) == 0
    (said,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert (said["text"], said["labels"]) == ("#hack copied \x1b[31m", ["hack"])
    assert run(["note", str(dump)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    notes = {row["n"]: row["note"] for row in exported(dump, tmp_path / "out.jsonl") if row["note"] is not None}
    assert notes.keys() == {3} and notes[3]["labels"] == ["hack"]
    capsys.readouterr()
    assert run(["inspect", str(dump), "--filter", "label:hack", "--json"]) == 0
    assert [json.loads(text)["n"] for text in capsys.readouterr().out.splitlines()] == [3]
    assert run(["note", str(dump), "3", ""]) == 0
    assert run(["note", str(dump), "999", "x"]) == 3
    capsys.readouterr()
    assert run(["note", str(dump)]) == 0 and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--filter", "reward>0"], {"query": Query("reward>0")}),
        (["--search", "cat"], {"query": Query(search="cat")}),
        (["--at", "2/1"], {"n": 2, "step": 0}),
        (["--live"], {}),
        ([], {"query": Query()}),
    ],
)
def test_a_dump_opens_on_a_terminal_where_the_options_name(
    options: list[str], shown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dump = tmp_path / "two.jsonl"
    dump.write_text("".join(json.dumps({"prompt": "p", "completion": "c", "reward": i}) + "\n" for i in range(2)))
    opened: list[Any] = []
    monkeypatch.setattr(sys.modules["grpo_tui.tui.cli.inspect"], "on_terminal", lambda: True)
    monkeypatch.setattr("grpo_tui.tui.app.app.run_app", lambda runs, start, greeting="": opened.append(start))
    assert run(["inspect", str(dump), *options]) == 0
    (start,) = opened
    assert type(start).__name__ == ("Stepper" if "step" in shown else "Trajectories" if shown else "Live")
    assert {name: getattr(start, name) for name in shown} == shown


def test_an_id_may_look_like_a_rollout_and_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [{"id": f"HumanEval/{i}", "prompt": "p", "completion": f"answer {i}"} for i in range(3)]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["inspect", str(tmp_path / "some.jsonl"), "--at", "HumanEval/2", "--text"]) == 0
    assert "answer 2" in capsys.readouterr().out
    assert run(["inspect", str(tmp_path / "some.jsonl"), "--at", "HumanEval/2/1", "--text"]) == 0
    assert "answer 2" in capsys.readouterr().out
    assert run(["inspect", str(tmp_path / "some.jsonl"), "--limit", "2"]) == 0
    assert capsys.readouterr().out.count("HumanEval/") == 2


@pytest.mark.parametrize("options", [["--filter", "reward>"], ["--at", "9"], ["--at", "1/3"]])
def test_options_that_cannot_be_met_end_the_command(options: list[str], tmp_path: Path, monkeypatch):
    (tmp_path / "one.jsonl").write_text('{"prompt": "p", "completion": "c", "reward": 1}\n')
    monkeypatch.setattr(sys.modules["grpo_tui.tui.cli.inspect"], "on_terminal", lambda: True)
    assert run(["inspect", str(tmp_path / "one.jsonl"), *options]) != 0
