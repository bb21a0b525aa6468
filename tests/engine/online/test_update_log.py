"""The two logs: each journal row once, whole lines only, whatever was left behind."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.engine.online.store.update_log import UpdateLogs, audit_line
from grpo_tui.engine.online.store.update_queue import JournalRow


def rows(count: int) -> list[JournalRow]:
    kinds = ["update", "update", "beta", "refused"]
    return [JournalRow(n, {"kind": kinds[n % 4], "time": 1.0 * n, "experience": f"e{n}"}) for n in range(1, count + 1)]


def numbers(logs: UpdateLogs) -> tuple[list[int], list[int]]:
    audit = [int(line.split("#")[1].split()[0]) for line in logs.audit.read_text().splitlines()]
    contribution = [json.loads(line)["n"] for line in logs.contribution.read_text().splitlines()]
    return audit, contribution


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 400), st.integers(0, 400))
def test_appending_after_a_cut_at_any_byte(tmp_path_factory, count: int, again_from: int, cut: int, other: int) -> None:
    logs = UpdateLogs(tmp_path_factory.mktemp("logs"))
    everything = rows(count)
    logs.append(everything)
    for path, length in ((logs.audit, cut), (logs.contribution, other)):
        path.write_bytes(path.read_bytes()[:length]) if path.exists() else None
    logs.append(everything)  # what a restart does
    logs.append(everything[again_from:])
    audit, contribution = numbers(logs) if logs.contribution.exists() else (numbers_of_audit(logs), [])
    assert audit == [r.n for r in everything]
    assert contribution == [r.n for r in everything if r.row["kind"] == "update"]


def numbers_of_audit(logs: UpdateLogs) -> list[int]:
    return [int(line.split("#")[1].split()[0]) for line in logs.audit.read_text().splitlines()]


def test_nothing_that_was_there_is_changed(tmp_path: Path) -> None:
    logs = UpdateLogs(tmp_path)
    logs.append(rows(3))
    before = logs.audit.read_bytes()
    logs.append(rows(6))
    assert logs.audit.read_bytes().startswith(before)


def test_one_line_whatever_a_message_holds() -> None:
    row = JournalRow(
        7, {"kind": "refused", "time": 0.0, "message": 'two\nlines \x1b[31m "quoted" = ü', "kl": 0.0123456789}
    )
    line = audit_line(row)
    assert "\n" not in line and "\x1b" not in line
    assert line.startswith("1970-01-01T00:00:00Z #7 refused kl=0.0123457 ")


def test_a_contribution_line_has_everything(tmp_path: Path) -> None:
    values = {"kind": "update", "experience": "e", "reward_tensor": [[[0.5, -0.1]]], "kl": 0.01, "time": 2.0}
    UpdateLogs(tmp_path).append([JournalRow(3, values)])
    assert json.loads((tmp_path / "update_contribution.jsonl").read_text()) == {"n": 3, **values}
