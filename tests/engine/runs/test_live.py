"""What a process writes at this moment, as a viewer beside it reads it."""

import json
import os
import time
from pathlib import Path

from grpo_tui.engine.runs.control.live import ROWS, TEXT, BatchState, LiveTexts, live_file, read_live
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.durable import read_json
from grpo_tui.engine.runs.write.writer import RunWriter


def written(run_dir, live):
    """A running run whose process has told what it writes."""
    writer = RunWriter(run_dir)
    writer._state.live = live
    writer.status("running")
    writer.progress("rollouts", 0, 4)
    written_since(writer, live)
    return writer


def written_since(writer, live):
    """Wait until the newest of `live` is on disk."""
    assert writer.flush(10)
    file, deadline = live_file(writer.run_dir, writer.process), time.monotonic() + 20
    while [b["time"] for b in read_json(file).get("batches", [])] != [b._time for b in live._batches]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def first_batch(run: Path) -> BatchState:
    seen = read_live(look(run))
    assert seen is not None
    return seen.batches[0]


def test_a_viewer_sees_texts_counts_and_rewards_of_rollouts_under_way(tmp_path):
    live = LiveTexts()
    live.purpose("held-out tasks", 3, 1, 4)
    batch = live.begin(["2 + 2?", "3 + 3?"], 2, 40)
    batch.turn()
    with batch.look(5, 10):
        batch.writes(0, 5, "It is ")
        batch.writes(3, 2, "6", over=True)
    writer = written(tmp_path / "run", live)
    seen = first_batch(tmp_path / "run")
    assert (seen.purpose.name, seen.purpose.step, seen.rollouts, seen.finished, seen.tokens, seen.limit) == (
        "held-out tasks", 3, 4, 1, 7, 40,
    )  # fmt: skip
    assert [(t.prompt, t.text, t.tokens, t.finished) for t in seen.texts] == [
        ("2 + 2?", "It is ", 5, False), ("2 + 2?", "", 0, False), ("3 + 3?", "", 0, False), ("3 + 3?", "6", 2, True),
    ]  # fmt: skip
    batch.close()
    batch.judged([1.0, None, 0.5, 0.0], [True, None, None, False])
    written_since(writer, live)
    seen = first_batch(tmp_path / "run")
    assert seen.finished == 4
    assert seen.ended
    assert [t.reward for t in seen.texts] == [1.0, None, 0.5, 0.0]
    assert seen.rewards == (1.0, 0.5, 0.0)
    writer.close()


def test_the_text_of_a_process_that_is_gone_is_not_live(tmp_path):
    live = LiveTexts()
    live.begin(["a"], 1, 8).wrote(0, 3, "abc")
    writer = written(tmp_path / "run", live)
    file = live_file(tmp_path / "run", "training")
    said = json.loads(file.read_text())
    assert said["pid"] == os.getpid()
    file.write_text(json.dumps({**said, "started": said["started"] - 100, "born": "another"}))  # before a resume
    assert read_live(look(tmp_path / "run")) is None
    file.write_text(json.dumps(said))
    assert read_live(look(tmp_path / "run")) is not None
    writer.status("stopped")
    assert read_live(look(tmp_path / "run")) is None
    writer.close()
    assert not file.exists()


def test_a_damaged_or_foreign_file_shows_nothing(tmp_path):
    live = LiveTexts()
    live.begin(["a"], 1, 8).wrote(0, 3, "abc")
    writer = written(tmp_path / "run", live)
    file = live_file(tmp_path / "run", "training")
    said = json.loads(file.read_text())
    for nonsense in ("", "[", "[]", json.dumps({**said, "batches": 7}), json.dumps({**said, "batches": [{}]})):
        file.write_text(nonsense)
        assert read_live(look(tmp_path / "run")) is None
    writer.close()


def test_a_large_batch_of_long_texts_stays_small(tmp_path):
    live = LiveTexts()
    batch = live.begin(["p" * 100_000] * 400, 1, 1)
    for row in range(400):
        batch.wrote(row, 9, "x" * 100_000)
    state = live.news()
    assert state is not None
    assert state["batches"][0]["tokens"] == 9 * 400
    assert len(state["batches"][0]["texts"]) == ROWS
    assert len(json.dumps(state)) < ROWS * (2 * TEXT + 500)
    assert live.news() is None


def test_a_look_that_is_slow_is_rare():
    batch = LiveTexts().begin(["a"], 1, 8)
    batch.turn()
    assert batch.due()
    with batch.look(1, 8):
        pass
    assert not batch.due()


def test_turns_are_told_apart_and_their_tokens_added():
    live = LiveTexts()
    live.purpose("", 1, 2, 1)
    batch = live.begin(["a"], 1, 8)
    batch.goes_on(0)
    batch.wrote(0, 3, "one")
    assert batch.state()["finished"] == 0
    batch.goes_on(0)
    batch.writes(0, 2, "tw")
    state = batch.state()
    assert (state["texts"][0]["turn"], state["texts"][0]["text"], state["tokens"]) == (2, "tw", 5)
    batch.wrote(0, 3, "two")
    assert batch.state()["finished"] == 1
