"""Other files of the same writers: other shapes, optional fields, packings; and samples that were damaged at random."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Callable, Iterator
from functools import cache, reduce
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_tui.engine.imports.containers import container_of
from grpo_tui.engine.imports.convert import identity, listed_of, record_of
from grpo_tui.engine.imports.dump import FORMATS, files_of, format_of
from grpo_tui.engine.imports.errors import DumpError
from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.rollout import Rollout
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.zstd import zstd_compress
from grpo_tui.tui.app.printed import whole_lines
from grpo_tui.tui.plain import Whole, trajectory_data

Open = Callable[[Path | str], RunReader]
PEERS = Path(__file__).parent / "peer_dumps"
VERL = {"input": "user\nq\nassistant\n", "output": "a", "gts": "x", "score": 0.5, "step": 1}
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def whole(reader: RunReader) -> list[TrajectoryRecord]:
    return [reader.bodies.trajectory(row.n) for row in reader.rollouts.page(limit=100)]


def opened_of(path: Path, opened: Open, data: str | bytes) -> RunReader:
    (path / "a").write_bytes(data if isinstance(data, bytes) else data.encode())
    return opened(path / "a")


def opened_text(path: Path, opened: Open, data: str | bytes) -> list[TrajectoryRecord]:
    return whole(opened_of(path, opened, data))


def one(path: Path, opened: Open, document: Any) -> TrajectoryRecord:
    (record,) = opened_text(path, opened, json.dumps(document) + "\n")
    return record


LINE = (json.dumps(VERL) + "\n").encode()
PRETTY = json.dumps(VERL, indent=2) + "\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(gzip.compress(LINE * 2), id="gzip"),
        pytest.param(gzip.compress(LINE) + gzip.compress(LINE), id="gzip, two members"),
        pytest.param(zstd_compress(LINE * 2), id="zstd"),
        pytest.param(gzip.compress(json.dumps([VERL, VERL], indent=1).encode()), id="one document in gzip"),
        pytest.param(b"\xef\xbb\xbf" + LINE + LINE, id="mark"),
        pytest.param((LINE * 2).replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param((LINE * 2).rstrip(b"\n"), id="no newline at the end"),
        pytest.param(json.dumps([VERL, VERL], indent=2), id="pretty list"),
        pytest.param(PRETTY + PRETTY, id="pretty documents"),
        pytest.param(json.dumps([VERL, VERL]) + "\n[]\n", id="a list on a line"),
        pytest.param(json.dumps({"rollouts": [VERL, VERL], "count": 2}), id="a list in a document"),
        pytest.param(
            json.dumps({k: {"0": v, "1": v} for k, v in {"prompt": "q", "completion": "a", "reward": 0.5}.items()}),
            id="DataFrame.to_json",
        ),
    ],
)
def test_however_rollouts_are_packed_they_open(data: str | bytes, tmp_path: Path, opened: Open):
    records = opened_text(tmp_path, opened, data)
    assert [r.trajectory.env_reward for r in records] == [0.5, 0.5]
    assert [r.trajectory.prompt for r in records] == ["q", "q"]
    assert all(not r.trajectory.extra for r in records)


@pytest.mark.parametrize("kind", ["lines", "list"])
def test_a_damaged_gzip_keeps_what_stands_before(kind: str, tmp_path: Path, opened: Open):
    random = Random(0)
    rows = [{**VERL, "output": random.randbytes(50).hex()} for _ in range(400)]
    text = json.dumps(rows) if kind == "list" else "".join(json.dumps(row) + "\n" for row in rows)
    packed = gzip.compress(text.encode())
    (tmp_path / "a").write_bytes(packed[: len(packed) // 2])
    reader = opened(tmp_path / "a")
    assert 150 < reader.rollouts.total() < 250 and "damaged" in reader.info().facts["skipped"][0]["why"]
    assert reader.bodies.trajectory(150).trajectory.steps[0].text == rows[149]["output"]


def test_bodies_in_gzip_are_read_forward_and_back(tmp_path: Path, opened: Open):
    lines = b"".join(json.dumps({**VERL, "gts": str(i)}).encode() + b"\n" for i in range(50))
    (tmp_path / "a").write_bytes(gzip.compress(lines))
    reader = opened(tmp_path / "a")
    for n in (1, 2, 50, 3, 3, 49):
        assert reader.bodies.trajectory(n).trajectory.expected == str(n - 1)


def test_text_in_utf_16_is_said(tmp_path: Path):
    (tmp_path / "a").write_bytes(LINE.decode().encode("utf-16"))
    with pytest.raises(DumpError, match="UTF-8"):
        open_dump(tmp_path / "a", whole=True)


def test_ids_of_more_than_64_bits_keep_their_digits(tmp_path: Path, opened: Open):
    ids = [2**100, 2**100 + 1]
    (tmp_path / "a").write_text("".join(json.dumps({**VERL, "uid": i}) + "\n" for i in ids))
    assert [r.group for r in opened(tmp_path / "a").rollouts.page()] == [f"1:{i}" for i in ids]


def test_what_is_null_is_unknown_and_keeps_its_row(tmp_path: Path, opened: Open):
    skyrl = {"input_prompt": "q", "output_response": None, "score": None}
    plain = {"prompt": "q", "completion": None, "reward": None}
    for document in (skyrl, plain):
        record = one(tmp_path, opened, document)
        assert record.trajectory.steps == () and record.breakdown is None and "advantage" in record.unknown


def test_columns_in_objects_and_short_lists_can_be_filtered(tmp_path: Path, opened: Open):
    from grpo_tui.engine.runs.search.query import Query

    (tmp_path / "a").write_text(json.dumps({**VERL, "judge": {"score": 4, "by": {"name": "x"}}, "tags": ["a"]}) + "\n")
    reader = opened(tmp_path / "a")
    assert len(reader.rollouts.page(Query(filter="extra.judge.score>3"))) == 1
    assert reader.rollouts.page()[0].extra == {"judge.score": 4, "judge.by.name": "x", "tags": '["a"]'}


def test_a_batch_of_columns_with_nan_as_text_and_null(tmp_path: Path, opened: Open):
    batch = {"prompt": ["p", "p", "p"], "completion": ["a", "b", "c"], "acc": [1.0, None, "NaN"], "step": ["2"] * 3}
    records = opened_text(tmp_path, opened, json.dumps(batch) + "\n")
    raw = [r.breakdown.steps[-1].components["acc"].raw for r in records if r.breakdown]
    assert raw[:2] == [1.0, None] and raw[2] != raw[2]


def test_what_cannot_be_read_or_stands_beside_what_counts_is_a_column(tmp_path: Path, opened: Open):
    wordy = one(tmp_path, opened, {"prompt": "q", "completion": "a", "reward": "good", "step": "first", "acc": 0.5})
    assert wordy.trajectory.env_reward is None and wordy.trajectory.correct is None
    assert wordy.trajectory.extra == {"reward": "good", "step": "first", "acc": 0.5}
    two = {
        "prompt": "q",
        "question": "asked",
        "completion": "a",
        "reward": 1,
        "score": 0.5,
        "id": "x",
        "request_id": "y",
    }
    record = one(tmp_path, opened, two)
    assert record.trajectory.env_reward == 1.0
    assert record.trajectory.extra == {"question": "asked", "score": 0.5, "request_id": "y"}
    assert one(tmp_path, opened, {**VERL, "reward": 0.5}).trajectory.extra == {}, "the same number twice is one"
    assert one(tmp_path, opened, {**VERL, "score": None, "reward": 0.25}).trajectory.env_reward == 0.25


def test_a_list_of_rewards_of_one_rollout_is_no_total(tmp_path: Path, opened: Open):
    record = one(tmp_path, opened, {"prompt": "q", "completion": "a", "rewards": [0.5, 0.25]})
    assert record.trajectory.env_reward is None and "reward" in record.unknown
    assert record.trajectory.extra == {"rewards": "[0.5, 0.25]"}


def test_a_csv_file_of_pandas_keeps_verdicts_and_lists_of_messages(tmp_path: Path, opened: Open):
    table = io.StringIO()
    rows = csv.writer(table)
    rows.writerow(["prompt", "completion", "reward", "correct"])
    rows.writerows([CHAT[:1], CHAT[1:], 0.5, correct] for correct in (1, 0.0, True, ""))
    records = opened_text(tmp_path, opened, table.getvalue())
    assert [r.trajectory.correct for r in records] == [True, False, True, None]
    assert {(r.trajectory.prompt, r.trajectory.steps[0].text) for r in records} == {("q", "a")}


@pytest.mark.parametrize("anthropic", [False, True])
def test_tools_keep_their_arguments(tmp_path: Path, opened: Open, anthropic: bool):
    """An export for fine-tuning would otherwise teach tools without any."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": ["integer", "null"]}}}
    schema["required"] = ["city"]
    tool = {"name": "find", "description": "Finds\n a city.", "input_schema" if anthropic else "parameters": schema}
    tools = [
        tool if anthropic else {"type": "function", "function": tool},
        {"name": "odd", "parameters": {"required": 5}},
        {
            "name": "deep",
            "parameters": {"properties": {"x": reduce(lambda inner, _: {"items": inner}, range(400), {})}},
        },
    ]
    found, odd, deep = one(tmp_path, opened, {"messages": CHAT, "tools": tools}).trajectory.tools
    assert (found.signature, odd.signature, deep.signature) == ("find(city, n?)", "odd()", "deep(x?)")
    function = {"name": "find", "description": tool["description"], "parameters": schema}
    assert found.schema == {"type": "function", "function": function}


@pytest.mark.parametrize("label", [True, False, "True"])
def test_a_label_that_is_a_verdict_is_no_expected_answer(tmp_path: Path, opened: Open, label: object):
    """Datasets for KTO label each answer. Beside a score or the model's answer, `label` is the right answer."""
    for row in ({"prompt": CHAT[:1], "completion": CHAT[1:]}, {"messages": CHAT}):
        t = one(tmp_path, opened, {**row, "label": label}).trajectory
        assert (t.correct, t.expected, t.extra) == (label is not False, None, {})
        for judged in ({"score": 1.0}, {"prediction": "yes"}, {"reward_format": 0.5}):
            t = one(tmp_path, opened, {**row, **judged, "label": label}).trajectory
            assert (t.correct, t.expected) == (None, str(label))
    pairs = opened_text(tmp_path, opened, json.dumps({"prompt": "q", "chosen": "a", "rejected": "b", "label": label}))
    assert {record.trajectory.correct for record in pairs} == {None}


def test_a_group_gives_no_rollout_what_is_not_its_own(tmp_path: Path, opened: Open):
    group = {"prompt": "q", "completions": ["a", "b"], "rewards": [1.0], "advantages": [0.5, -0.5]}
    records = opened_text(tmp_path, opened, json.dumps(group) + "\n")
    assert [(r.trajectory.env_reward, r.advantage) for r in records] == [(None, 0.5), (None, -0.5)]
    assert all(r.trajectory.extra == {"group.rewards": "[1.0]"} for r in records)


def test_an_empty_group_is_a_group_without_rollouts(tmp_path: Path):
    empty = {"prompt": "q", "completions": [], "rewards": []}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(d) + "\n" for d in (VERL, empty)))
    summary = open_dump(tmp_path / "a.jsonl", whole=True).summary
    assert summary["rollouts"] == 1 and summary["skipped"] == []


def test_nemo_batches_keep_all_their_columns_and_need_no_index(tmp_path: Path, opened: Open):
    row = {"content": [["q", "a", "seen", "b"]], "rewards": [None], "truncated": [True], "advantages": [[0, 0.5, 0.5]]}
    record = one(tmp_path, opened, row)
    assert [s.text for s in record.trajectory.steps] == ["a", "b"]
    assert record.trajectory.env_reward is None and record.advantage == 0.5
    assert record.trajectory.extra == {"truncated": True}


def test_several_agents_of_an_episode_are_rollouts_of_their_own(tmp_path: Path, opened: Open):
    nodes = [{"parent": None if not i else i - 1, "message": m, "sampled": i == 1} for i, m in enumerate(CHAT)]
    traces = [{"id": n, "agent": {"name": n}, "nodes": nodes, "rewards": {}} for n in ("planner", "solver")]
    records = opened_text(tmp_path, opened, json.dumps({"id": "e", "env": {"id": "x"}, "traces": traces}) + "\n")
    assert [r.trajectory.agent for r in records] == ["planner", "solver"]
    assert all("reward" in r.unknown for r in records), "no component has a score"


def test_agents_of_one_task_are_no_group_where_the_writer_names_none(tmp_path: Path, opened: Open):
    nodes = [{"parent": None if not i else i - 1, "message": m, "sampled": i == 1} for i, m in enumerate(CHAT)]
    traces = [{"id": n, "agent": {"name": n}, "nodes": nodes, "rewards": {}} for n in ("planner", "solver")]
    episode = {"id": "e", "env": {"id": "x"}, "task": {"data": {"name": "sum"}}, "traces": traces}
    records = opened_text(tmp_path, opened, json.dumps(episode) + "\n")
    assert len({r.trajectory.group for r in records}) == 2 and len({r.trajectory.prompt_id for r in records}) == 1


def test_solvers_of_one_name_are_told_apart_and_steps_with_talks_of_their_own_are_all_shown(
    tmp_path: Path, opened: Open
):
    def talk(asked: str, said: str, reward: float) -> dict[str, Any]:
        chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        return {"chat_completions": chat, "reward": reward}

    solvers = [{"name": "solver", "steps": [talk("q", "a", 0.0), talk("seen", "b", 1.0)], "reward": r} for r in (0, 1)]
    episode = {"episode_id": "t:0", "task": {}, "metadata": {"seed": 7}, "trajectories": solvers}
    records = opened_text(tmp_path, opened, json.dumps(episode))
    assert len({r.trajectory.id for r in records}) == 2
    assert [r.trajectory.env_reward for r in records] == [0.0, 1.0]
    for record in records:
        assert [(s.text, s.observation, s.reward) for s in record.trajectory.steps] == [
            ("a", "seen", 0.0),
            ("b", "", 1.0),
        ]
        assert record.trajectory.extra["seed"] == 7


def test_spans_of_a_trace_on_several_lines_and_evaluations_as_events(tmp_path: Path, opened: Open):
    def line(trace: str, attributes: dict[str, Any], parent: str = "", events: dict[str, Any] | None = None) -> str:
        def typed(values: dict[str, Any]) -> list[dict[str, Any]]:
            kinds = {str: "stringValue", float: "doubleValue", int: "intValue"}
            return [{"key": k, "value": {kinds[type(v)]: v}} for k, v in values.items()]

        span = {"traceId": trace, "spanId": "s", "parentSpanId": parent, "attributes": typed(attributes)}
        span["events"] = [{"name": "gen_ai.evaluation.result", "attributes": typed(events)}] if events else []
        return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}) + "\n"

    talk = {f"gen_ai.{k}.messages": json.dumps([m]) for k, m in zip(("input", "output"), CHAT, strict=True)}
    score = {"gen_ai.evaluation.name": "relevance", "gen_ai.evaluation.score.value": 0.75}
    root = {"gen_ai.evaluation.score.value": 0.5, "training.step": 3}
    text = (
        line("t1", talk, parent="r") + line("t1", root) + line("t2", talk, events=score) + line("t3", {"http": "GET"})
    )
    reader = opened_of(tmp_path, opened, text)
    assert [(r.step, r.reward) for r in reader.rollouts.page()] == [(3, 0.5), (None, None)]
    first, second = whole(reader)
    assert first.trajectory.env_reward == 0.5 and first.trajectory.steps[0].text == "a"
    assert second.breakdown is not None and second.breakdown.steps[-1].components["relevance"].raw == 0.75


def test_a_reward_function_of_verifiers_that_gave_nan_is_known_to_have(tmp_path: Path, opened: Open):
    row = {"example_id": 1, "prompt": CHAT[:1], "completion": CHAT[1:], "reward": 1.0, "acc": "NaN"}
    record = one(tmp_path, opened, row)
    assert record.breakdown is not None and math.isnan(record.breakdown.steps[-1].components["acc"].raw or 0)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"trajectory_format": "mini-swe-agent-1", "messages": CHAT, "info": {}}, id="mini-swe-agent"),
        pytest.param({"schema_version": "ATIF-v1.8", "steps": [], "session_id": "s", "agent": {}}, id="ATIF"),
        pytest.param({"episode_id": "e", "messages": CHAT}, id="OpenEnv"),
        pytest.param({"messages_and_choices": CHAT, "reward": 1.0}, id="ART"),
        pytest.param({"content": [["q", "a"]], "rewards": [1.0], "idx": 0}, id="NeMo-RL"),
        pytest.param({"example_id": 1, "prompt": CHAT[:1], "completion": CHAT[1:]}, id="verifiers"),
        pytest.param({"input_prompt": "q", "output_response": "a", "score": 1}, id="SkyRL"),
        pytest.param({"rollout_id": "r", "reward": 1, "prompt": "q", "response": "a"}, id="agentlightning"),
        pytest.param(VERL, id="verl"),
    ],
)
def test_a_key_of_a_writers_own_is_a_column(tmp_path: Path, opened: Open, document: dict[str, Any]):
    record = one(tmp_path, opened, {**document, "difficulty": "hard"})
    assert record.trajectory.extra["difficulty"] == "hard"


def test_a_log_without_samples_is_known_and_said_to_hold_none(tmp_path: Path):
    (tmp_path / "log.json").write_text(json.dumps({"version": 2, "status": "started", "eval": {"task": "t"}}))
    with pytest.raises(DumpError, match="was recognised as inspect-ai samples, but contains no rollout"):
        open_dump(tmp_path / "log.json", whole=True)


def test_scores_of_inspect_that_are_no_numbers_are_columns(tmp_path: Path, opened: Open):
    scores = {"m": {"value": "C"}, "d": {"value": {"p": 0.5, "r": "I"}}, "words": {"value": "well done"}}
    sample = {"id": 1, "epoch": 1, "input": "q", "target": "a", "messages": CHAT, "scores": scores}
    log = {"version": 2, "status": "success", "eval": {"task": "t", "model": "m"}, "samples": [sample]}
    record = one(tmp_path, opened, log)
    assert record.breakdown is not None
    assert {k: v.raw for k, v in record.breakdown.steps[-1].components.items()} == {"m": 1.0, "d.p": 0.5, "d.r": 0.0}
    assert record.trajectory.extra["words"] == "well done" and record.trajectory.correct is True


def test_choices_and_groups_with_objects(tmp_path: Path, opened: Open):
    art = {"messages_and_choices": [CHAT[0], {"finish_reason": "stop", "index": 0, "message": CHAT[1]}], "reward": 1.0}
    assert one(tmp_path, opened, art).trajectory.steps[0].text == "a"
    group = {"prompt": "q", "step": 3, "completions": [{"text": "a", "reward": 1}, {"text": "b", "reward": 0}]}
    records = opened_text(tmp_path, opened, json.dumps(group) + "\n")
    assert [(r.trajectory.steps[0].text, r.trajectory.env_reward) for r in records] == [("a", 1.0), ("b", 0.0)]


@cache
def samples() -> list[tuple[str, Any, Origin]]:
    """One document of each shape of each sample."""
    found = {}
    for folder in sorted(p for p in PEERS.iterdir() if p.is_dir() and p.name != "slime"):
        for file in files_of(folder):
            container = container_of(file)
            for each in container.open(file) if container is not None else ():
                origin = Origin(file, folder)
                reader = format_of(each.document, origin, FORMATS)
                if reader is not None and len(json.dumps(each.document, default=str)) < 40_000:
                    found.setdefault((folder.name, reader.name), (reader.name, each.document, origin))
    return list(found.values())


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*before, key)
        yield from paths(value[key], (*before, key))


DROPPED = object()
VALUES = (
    DROPPED, None, 5, -1.5, "x", "NaN", "", [], {}, [1, 2], {"a": 1}, True, [None], [{}], {"a": None}, 10**30, [["x"]],
    '{"a": 1}', "[1]", float("nan"), float("inf"), "\ud800", "\x1b[31m",
)  # fmt: skip


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and new is DROPPED:
        copy.pop(path[0])
    else:
        copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_order_of_keys_decides_no_format(data: st.DataObject):
    for name, document, origin in samples():
        if isinstance(document, dict):
            shuffled = {key: document[key] for key in data.draw(st.permutations(sorted(document, key=str)))}
            found = format_of(shuffled, origin, FORMATS)
            assert found is not None and found.name == name


@pytest.mark.parametrize("examples", [80, pytest.param(2500, marks=pytest.mark.stress)])
def test_a_sample_with_fields_changed_is_still_read(examples: int):
    """Keys dropped, types changed: what is left is read, and nothing is raised on the way to the screen."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def check(data: st.DataObject) -> None:
        _, document, origin = data.draw(st.sampled_from(samples()))
        for _ in range(data.draw(st.integers(1, 3))):
            places = list(paths(document)) if isinstance(document, (dict, list)) else []
            if not places:
                break
            document = changed(document, data.draw(st.sampled_from(places)), data.draw(st.sampled_from(VALUES)))
        reader = format_of(document, origin, FORMATS)
        for item in reader.open(document, origin) if reader is not None else ():
            if isinstance(item, Rollout):
                row = listed_of(item, identity(item), fallback_id="f", index=0)
                record = record_of(item, fallback_id="f", index=0, unknown=reader.unknown if reader else {})
                assert (row.values["reward"] is None) == (record.breakdown is None or record.breakdown.total is None)
                assert row.values["turns"] == len(record.trajectory.steps)
                if item.tokens is not None:
                    item.tokens()
                assert "\x1b" not in "".join(whole_lines(Whole(1, record)))
                json.dumps(trajectory_data(Whole(1, record)), default=str)

    check()


@pytest.mark.parametrize("with_arro3", [True, False])
def test_values_of_parquet_that_json_does_not_have(
    with_arro3: bool, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    import sys
    from datetime import datetime, timedelta
    from decimal import Decimal

    import pyarrow as pa
    from pyarrow import parquet

    if not with_arro3:
        monkeypatch.setitem(sys.modules, "arro3.io", None)
    kinds = pa.map_(pa.string(), pa.decimal128(5, 2))
    columns = {"prompt": ["q"], "completion": ["a"], "reward": [Decimal("0.25")], "took": [timedelta(seconds=2)]}
    columns |= {"at": [datetime(2026, 1, 2)], "scores": pa.array([[("format", Decimal("0.5"))]], kinds)}
    parquet.write_table(pa.table(columns), tmp_path / "a")
    row = opened(tmp_path / "a").rollouts.page()[0]
    assert row.reward == 0.25
    assert row.extra == {"took": 2, "at": "2026-01-02T00:00:00", "component.format": 0.5}


@pytest.mark.parametrize("with_arro3", [True, False])
def test_bytes_in_a_column_of_parquet_cost_only_themselves(
    with_arro3: bool, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    import sys

    import pyarrow as pa
    from pyarrow import parquet

    if not with_arro3:
        monkeypatch.setitem(sys.modules, "arro3.io", None)
    picture = {"type": "image", "image": {"bytes": b"\x89PNG"}}
    asked = {"role": "user", "content": [{"type": "text", "text": "q"}, picture]}
    columns = {"messages": [[asked, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]]}
    columns |= {"rewards": [{"binary": 1.0, "format": 0.5}], "raw": [b"x"]}
    parquet.write_table(pa.table(columns), tmp_path / "a")
    reader = opened(tmp_path / "a")
    assert reader.rollouts.page()[0].extra == {"component.binary": 1.0, "component.format": 0.5}
    trajectory = reader.bodies.trajectory(1).trajectory
    assert (trajectory.prompt, [s.text for s in trajectory.steps]) == ("q\n[image]", ["a"])


def test_samples_of_a_question_share_it_and_rewards_by_name_are_each_rollouts_own(tmp_path: Path, opened: Open):
    samples = {"question": "q", "samples": [{"text": "a", "score": 0}, {"text": "b", "score": 1}]}
    assert [r.trajectory.prompt for r in opened_text(tmp_path, opened, json.dumps(samples) + "\n")] == ["q", "q"]
    group = {"prompt": "q", "completions": ["a", "b"], "rewards": {"right": [1, 0], "short": [0.5, 0.25]}}
    second = opened_text(tmp_path, opened, json.dumps(group) + "\n")[1]
    assert second.breakdown is not None
    assert {name: c.raw for name, c in second.breakdown.steps[-1].components.items()} == {"right": 0, "short": 0.25}


@pytest.mark.parametrize("with_arro3", [True, False])
def test_a_parquet_of_many_batches_is_read_in_any_order(
    with_arro3: bool, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    import sys

    import pyarrow as pa
    from pyarrow import parquet

    if not with_arro3:
        monkeypatch.setitem(sys.modules, "arro3.io", None)
    size = 2500
    columns = {
        "step": [i // 100 for i in range(size)],
        "prompt": ["q"] * size,
        "reward": [float(i) for i in range(size)],
    }
    columns |= {"completion": [str(i) for i in range(size)], "image": [b"\x00" * 9] * size}
    parquet.write_table(pa.table(columns), tmp_path / "a", row_group_size=700)
    reader = opened(tmp_path / "a")
    assert reader.rollouts.total() == size
    for n in (1, size, 1200, 1201, 2, 2400):
        record = reader.bodies.trajectory(n)
        assert (record.trajectory.steps[0].text, record.trajectory.env_reward) == (str(n - 1), float(n - 1))


@pytest.mark.parametrize("indent", [None, 2])
def test_a_large_list_is_read_item_by_item(
    indent: int | None, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("grpo_tui.engine.imports.containers.json_file._BLOCK", 100)
    made = [{**VERL, "score": n, "output": "\u00e4 ]},{[ \\" * n, "list": [{"a": [n]}]} for n in range(40)]
    text = json.dumps(made, ensure_ascii=False, indent=indent)
    reader = opened_of(tmp_path, opened, text)
    assert [r.reward for r in reader.rollouts.page(limit=40)] == list(range(40))
    for n in (40, 1, 25):
        assert reader.bodies.trajectory(n).trajectory.steps[0].text == made[n - 1]["output"]
    cut = opened_of(tmp_path, opened, text[: len(text) // 2])
    assert 0 < cut.rollouts.total() < 40
    (skipped,) = cut.info().facts["skipped"]
    assert "is not JSON" in skipped["why"] and skipped["line"] == cut.rollouts.total() + 1
    damaged = text.replace('"score": 20', '"score": twenty')
    kept = opened_of(tmp_path, opened, damaged)
    assert [r.reward for r in kept.rollouts.page(limit=40)] == [n for n in range(40) if n != 20]
    assert [s["line"] for s in kept.info().facts["skipped"]] == [21]
    assert kept.bodies.trajectory(39).trajectory.steps[0].text == made[39]["output"]
    with monkeypatch.context() as small:  # an index that is continued
        small.setattr("grpo_tui.engine.imports.part.PART_ROLLOUTS", 7)
        (tmp_path / "b").write_text(text)
        with Indexer(tmp_path / "b", tmp_path / "index") as indexer:
            next(indexer._read(1, tmp_path / "b"))
        with Indexer(tmp_path / "b", tmp_path / "index") as indexer:
            assert indexer.store.last_n() == 7 and not indexer.advance()
            assert indexer.store.last_n() == 40
