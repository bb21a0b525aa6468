"""`grpo-tui check DUMP`: findings with evidence, for people, for scripts, and as an exit code for CI."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.tui.cli.main import run


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path: Path, reward: Any, completion: Any = lambda step, i: f"answer {step} {i}") -> Path:
    rows = [
        {
            "prompt": f"{step}?",
            "completion": completion(step, i),
            "reward": reward(step, i),
            "step": step,
            "uid": f"g{step}",
        }
        for step in range(1, 9)
        for i in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def found(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    code = run(["check", str(path), "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_sound_dump_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "sound.jsonl", lambda step, i: i / 8)
    code, findings = found(file, capsys)
    assert code == 0 and not [f for f in findings if f["severity"] in ("warning", "failure")]
    assert run(["check", str(file)]) == 0


def test_groups_without_signal_fail_with_the_rollouts_that_show_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "flat.jsonl", lambda step, i: 1.0)
    code, findings = found(file, capsys)
    assert code == 1
    ids = [id_ for f in findings for id_ in f["trajectories"]]
    assert ids and all(f["message"] and f["detector"] for f in findings)
    assert run(["inspect", str(file), "--trajectory", ids[0], "--json"]) == 0, "evidence can be opened"
    shown = json.loads(capsys.readouterr().out)
    assert shown["reward"] == 1.0 if "reward" in shown else shown["breakdown"]["total"] == 1.0


def test_a_reward_that_is_no_number_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "nan.jsonl", lambda step, i: float("nan") if i == 3 else i / 8)
    code, findings = found(file, capsys)
    assert code == 1 and any("nan" in (f["detector"] + f["message"]).lower() for f in findings)


def test_an_advantage_that_is_no_number_and_an_error_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "nan.jsonl", lambda step, i: i / 8)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for i, row in enumerate(rows):
        row |= {
            "advantage": float("nan") if i == 3 else row["reward"] - 0.4375,
            "error": "lost" if i % 4 == 0 else None,
        }
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, findings = found(file, capsys)
    messages = {(f["detector"], f["message"]) for f in findings if f["severity"] in ("warning", "failure")}
    assert messages == {
        ("not_finite", "NaN or infinity in the advantage of 1 trajectory."),
        ("errors", "16 of 64 rollouts ended in an error."),
    }


def test_calls_that_cannot_be_read_are_told_with_what_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = "<tool_call>{look</tool_call>"
    file = write(tmp_path / "calls.jsonl", lambda step, i: i / 8, lambda step, i: broken if i < 2 else f"{step} {i}")
    code, findings = found(file, capsys)
    told = next(f for f in findings if f["detector"] == "unreadable_calls")
    assert code == 1 and told["value"] == 0.25 and told["trajectories"] and "Constrain" in told["suggestion"]


def test_rollouts_that_a_limit_cut_are_found_by_the_stop_reason_of_any_writer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for stop, cut in (("length", True), ("FinishReason.MAX_TOKENS", True), ("stop", False)):
        file = write(tmp_path / f"{stop}.jsonl", lambda step, i: i / 8)
        file.write_text(file.read_text().replace('"uid"', f'"finish_reason": "{stop}", "uid"'))
        code, findings = found(file, capsys)
        assert (code, [f["value"] for f in findings if f["detector"] == "truncation"]) == (cut, [1.0] * cut)


def test_what_is_not_recorded_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "unknown.jsonl", lambda step, i: None)
    _, findings = found(file, capsys)
    lacking = {f["detector"]: f["message"] for f in findings if f["severity"] == "not checked"}
    assert lacking["groups_without_variance"] == "not checked: groups_without_variance needs rewards"
    assert not any("reward" in f["detector"] for f in findings if f["severity"] != "not checked")


def test_nothing_to_open_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.bin").write_bytes(b"\x00\x01")
    assert run(["check", str(tmp_path / "empty.bin")]) not in (0, None)
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1 and "Traceback" not in said


def test_a_part_that_cannot_be_read_fails_and_a_file_of_something_else_does_not(tmp_path: Path) -> None:
    file = write(tmp_path / "sound.jsonl", lambda step, i: i / 8)
    (tmp_path / "other.jsonl").write_text('{"lr": 1}\n{"lr": 2}\n')
    assert run(["check", str(tmp_path), "--json"]) == 0
    with file.open("a") as out:
        out.write("{broken\n")
    assert run(["check", str(tmp_path), "--json"]) == 1


def test_a_pipe_is_told_to_be_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "pipe"), "pipe"):
        assert run(["check", name]) == 2
        assert "pipe its text into" in capsys.readouterr().err
