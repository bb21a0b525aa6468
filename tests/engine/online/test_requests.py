"""Requests are checked, and wait in the order in which they are answered."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import cast

import pytest

from grpo_tui.engine.online.serve.assembly import _Pipe
from grpo_tui.engine.online.serve.requests import Request, RequestSource, parse_request, read_requests
from grpo_tui.engine.rollouts.runner import DataError, Row

from .answering import ENV, requests
from .tiny import run_config


def test_requests_are_checked(tmp_path: Path) -> None:
    defaults = run_config(tmp_path).environment
    assert parse_request({"task_data": {"a": 1}, "id": "x"}, defaults).fields == {"id": "x"}
    for raw, reason in [
        ([], "must be a JSON object"),
        ({"task": 1}, "unknown field 'task'"),
        ({"id": 1}, "task_data is missing"),
        ({"task_data": 3}, "task_data must be a mapping"),
        ({"task_data": {"a": [{"b": -1e999}]}}, "task_data contains -inf, which is no number of JSON"),
        ({"task_data": '{"a": 1e999}'}, "task_data contains inf"),
        ({"task_data": "[" * 100_000}, "task_data is nested too deeply"),
        ({"task_data": {}, "id": []}, "id must be"),
    ]:
        with pytest.raises(DataError, match=reason):
            parse_request(raw, defaults)
    missing = {"a": float("nan"), "b": [float("nan"), 1.0]}
    assert parse_request({"task_data": missing}, defaults).row.task_data == {"b": [None, 1.0]}
    file = tmp_path / "requests.jsonl"
    file.write_text('{"task_data": {}}\n\n{"task_data": {}')
    with pytest.raises(DataError, match="line 3: not JSON"):
        read_requests(file, defaults)
    text = json.dumps({"task_data": {"question": "one\u2028two\x85"}}, ensure_ascii=False)
    file.write_text(f"\ufeff{text}\r\n{text}\n", encoding="utf-8", newline="")
    assert [r.row.task_data["question"] for r in read_requests(file, defaults)] == ["one\u2028two\x85"] * 2


@pytest.mark.parametrize("line", [b'{"task_data": {"question": "caf\xe9"}}', b"[" * 100_000])
def test_a_line_of_a_pipe_that_cannot_be_read_is_answered_with_its_error(tmp_path: Path, line: bytes) -> None:
    pipe = _Pipe(io.BytesIO(line + b'\n{"task_data": {"question": "what?"}}\n'), io.StringIO())
    source = RequestSource(open_ended=True)
    pipe.read(source, run_config(tmp_path))
    assert json.loads(cast(io.StringIO, pipe.output).getvalue())["error"].startswith("line 1: not JSON")
    assert source.waiting == 1 and not source.open_ended


def test_callers_come_before_rows_and_rows_can_be_skipped() -> None:
    source = RequestSource(requests(4), open_ended=True, max_waiting=1)
    source.skip(2)
    source.submit(Request(Row(ENV, {}, {}), source="caller"))
    assert [r.source or r.number for r in source.take(3, 0.01)] == ["caller", 3, 4]
    assert source.rows_taken == 4 and not source.ended
    source.close()
    assert source.take(1, 0.01) == [] and source.ended
