"""A loop of one's own: what is handed over is what the record holds, and trouble is not the loop's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from dataclasses import make_dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_tui import Message, Recorder, Rollout, Score
from grpo_tui import recorder as recorder_module
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.tui.cli.run_table import facts

QUESTION = "What is 2 + 2?"


def rollout(index: int, value: float) -> Rollout:
    return Rollout(
        prompt=(Message("user", QUESTION),),
        completion=(Message("assistant", f"It is {index}."),),
        group="g1",
        index=index,
        reward=0.5 * value,
        components={"exact": Score(value, 0.5)},
        advantage=value - 0.5,
        extra={"difficulty": index},
    )


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    with Recorder("mine", runs_dir=tmp_path, environment="sums", model="tiny", total_steps=2) as record:
        for step in (1, 2):
            record.rollouts(step, [rollout(i, float(i)) for i in range(2)])
            record.rollouts(step, [{"prompt": QUESTION, "completion": "Four.", "reward": 1.0, "group": "g2"}])
            record.metrics(step, {"train/loss": 0.5 / step, "nested": {"a": 1}})
        record.event("note", "A good step.")
    info = look(tmp_path / "mine")
    assert (info.status, info.step, info.total_steps) == ("finished", 2, 2)
    assert (info.environment, info.model, info.mode) == ("sums", "tiny", "recorded")
    with RunReader(tmp_path / "mine") as reader:
        assert reader.rollouts.total() == 6 and reader.metrics.latest()["nested/a"] == 1.0
        assert reader.rollouts.count(Query(filter="extra.difficulty>0")) == 2
        shown = reader.bodies.trajectory(2)
        assert shown.trajectory.prompt == QUESTION and shown.advantage == 0.5
        assert shown.breakdown is not None and shown.breakdown.total == 0.5
        other = reader.bodies.trajectory(3)
        assert other.advantage is None and "advantage" in other.unknown
        assert [e.message for e in reader.events(["note"])] == ["A good step."]


def test_a_group_that_is_named_again_in_another_step_is_another_group(tmp_path: Path) -> None:
    question = {"prompt": QUESTION, "reward": 1.0}
    with Recorder("mine", runs_dir=tmp_path) as record:
        for step in (1, 2):
            record.rollouts(step, [{**question, "completion": "4", "group": "q"} for _ in range(2)])
            record.rollouts(step, [{**question, "completion": "4", "group": "q", "split": "eval"}])
            record.rollouts(step, [Rollout(prompt=QUESTION, completion="4") for _ in range(2)])  # type: ignore[arg-type]
    with RunReader(tmp_path / "mine") as reader:
        rows = reader.rollouts.page(limit=99)
    assert sorted(Counter(row.group for row in rows).values()) == [1, 1, 2, 2, 2, 2]
    assert [row.rollout for row in rows] == [0, 1, 0, 0, 1] * 2, "rollouts are numbered within their group"


def test_a_run_that_fails_is_crashed_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Recorder("mine", runs_dir=tmp_path) as record:
        record.metrics(1, {"a": 1})
        raise ZeroDivisionError("oops")
    info = look(tmp_path / "mine")
    assert info.status == "crashed" and info.error == "ZeroDivisionError: oops"
    for code, status in ((0, "finished"), (3, "crashed")):
        with pytest.raises(SystemExit), Recorder(f"exit {code}", runs_dir=tmp_path) as record:
            record.metrics(1, {"a": 1})
            sys.exit(code)
        assert look(tmp_path / f"exit {code}").status == status


class Several:
    """A tensor of several elements, for `float`."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


def test_nothing_of_the_record_reaches_the_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with Recorder(tmp_path / "file" / "run") as record:  # cannot be a folder
        record.rollouts(1, [rollout(0, 1.0)])
        record.metrics(1, {"a": float("nan")})
    assert "training continues" in caplog.text
    with Recorder("mine", runs_dir=tmp_path) as record:
        record.rollouts(1, [rollout(1, 1.0)])
        record.metrics(1, {"a": object(), "b": None, "c": Several(), "loss": 0.5})
        record.metrics(2, {"a": object()})
    assert caplog.text.count("the metric a is not recorded, because its value is not a number") == 1
    assert "metric c" in caplog.text and "metric b" not in caplog.text
    with RunReader(tmp_path / "mine") as reader:
        assert reader.rollouts.total() >= 1 and reader.metrics.latest()["loss"] == 0.5
    own: dict[str, object] = {}
    own["own"] = own  # as long as a configuration that raises where it is read
    Recorder("config", runs_dir=tmp_path, config=own, model="m").close()
    assert look(tmp_path / "config").model == "m"
    Recorder("x" * 300, runs_dir=tmp_path).close()  # longer than a name may be
    with pytest.raises(ValueError, match="is not a valid name of a run"):
        Recorder("..")


def test_rollouts_that_cannot_be_read_are_counted_at_the_end(tmp_path: Path, capsys, caplog) -> None:
    torn = Rollout((), (), tokens=lambda: 1 // 0)  # type: ignore[arg-type]
    with Recorder("some", runs_dir=tmp_path) as record:
        record.rollouts(1, [torn])
        record.rollouts(2, [rollout(0, 1.0)])
    reason = "a rollout cannot be read (ZeroDivisionError: integer division or modulo by zero)"
    assert capsys.readouterr().out == f"grpo-tui: 1 rollout recorded, 1 was not: {reason}\n"
    assert caplog.text.count("training continues") == 1, "also at once"
    with RunReader(tmp_path / "some") as reader:
        assert [e.message for e in reader.events(["record"])] == [f"not all of this run is recorded: {reason}"]
    with Recorder("none", runs_dir=tmp_path) as record:
        record.rollouts(1, [torn])
    assert look(tmp_path / "none").error == f"0 rollouts recorded: {reason}"
    assert capsys.readouterr().out == f"grpo-tui: 0 rollouts recorded: {reason}\n"


def test_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--hub-token", "very-secret", "--lr=3"])
    Recorder("mine", runs_dir=tmp_path, config={"api_key": "sk-very-secret", "lr": 1e-3}).close()
    text = (tmp_path / "mine" / "run.json").read_text()
    assert "very-secret" not in text and "0.001" in text and "--lr=3" in text
    for name, config in (
        ("space", Namespace(token="very-secret")),
        ("data", make_dataclass("C", ["token"])("very-secret")),
    ):
        Recorder(name, runs_dir=tmp_path, config=config).close()
        text = (tmp_path / name / "run.json").read_text()
        assert "very-secret" not in text and '"token"' in text


def test_what_comes_after_the_end_is_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = Recorder("mine", runs_dir=tmp_path)
    record.close()
    record.rollouts(1, [rollout(0, 1.0), rollout(1, 1.0)])
    assert record.dropped >= 2 and "the recorder was closed before" in caplog.text


def test_several_processes_write_one_record(tmp_path: Path) -> None:
    code = (
        "import sys; from grpo_tui import Recorder\n"
        "with Recorder('mine', runs_dir=sys.argv[1], process=sys.argv[2]) as r:\n"
        "    for step in range(1, 6): r.rollouts(step, [{'prompt': 'p', 'completion': sys.argv[2], 'reward': step}])\n"
    )
    with Recorder("mine", runs_dir=tmp_path) as record:
        others = [
            subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], env=os.environ)
            for name in ("rank1", "rank2")
        ]
        for step in range(1, 6):
            record.rollouts(step, [{"prompt": "p", "completion": "training", "reward": step}])
            time.sleep(0.02)
        assert [p.wait(60) for p in others] == [0, 0]
    with RunReader(tmp_path / "mine") as reader:
        assert reader.rollouts.total() == 15
        ids = {row.id for row in reader.rollouts.rows(range(1, 16))}
    assert len(ids) == 15


def test_steps_of_any_size_and_their_metrics_are_recorded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(recorder_module, "WAITING_ROWS", 16)
    with Recorder("mine", runs_dir=tmp_path) as record:
        for step in range(4):
            record.rollouts(step, [{"prompt": "p", "completion": str(i), "reward": 1} for i in range(100)])
            record.metrics(step, {"loss": 1.0})
    assert record.dropped == 0
    with RunReader(tmp_path / "mine") as reader:
        assert [row.step for row in reader.rollouts.page(limit=500)] == [s for s in range(4) for _ in range(100)]
        assert len(reader.metrics.points("loss")) == 4


@pytest.mark.skipif(os.name != "posix", reason="Windows limits no file's size")
def test_a_full_disk_costs_rows_and_never_the_training(tmp_path: Path) -> None:
    """No file may grow beyond 400 kB: SQLite meets the error that a full disk gives, in the middle of the training."""
    code = (
        "import logging, os, resource, signal, sys, time\n"
        "from grpo_tui import Recorder\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "logging.basicConfig()\n"
        "with Recorder('mine', runs_dir=sys.argv[1]) as record:\n"
        "    record.rollouts(0, [{'prompt': 'p', 'completion': 'kept', 'reward': 1}]); time.sleep(0.5)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))\n"
        "    for step in range(1, 30):\n"
        "        texts = [os.urandom(20_000).hex() for _ in range(4)]\n"
        "        record.rollouts(step, [{'prompt': 'p', 'completion': t, 'reward': step} for t in texts])\n"
        "        record.metrics(step, {'loss': 1 / step})\n"
        "print('trained to the end', record.dropped)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said, _, dropped = done.stdout.strip().rpartition(" ")
    assert said == "trained to the end" and int(dropped) > 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    with RunReader(tmp_path / "mine") as reader:
        rows = reader.rollouts.page(limit=200)
        assert rows and reader.bodies.trajectory(1).trajectory.steps[0].text == "kept"
        assert len(rows) + int(dropped) >= 1 + 4 * 29, "what is not there was counted"


def test_rollouts_in_flight_are_seen_while_they_are(tmp_path: Path) -> None:
    from grpo_tui.engine.runs.control.live import in_flight

    def seen() -> tuple[int, tuple[str, ...], int]:
        flying = in_flight(look(tmp_path / "mine").facts)
        return (0, (), 0) if flying is None else (flying.count, tuple(f.id for f in flying.longest), flying.ended)

    def until(wanted: tuple[int, tuple[str, ...], int]) -> None:
        end = time.monotonic() + 20
        while seen() != wanted:
            assert time.monotonic() < end, seen()
            time.sleep(0.02)

    with Recorder("mine", runs_dir=tmp_path) as record:
        with record.in_flight("a", "task 7"):
            record.begin("b")
            until((2, ("a", "b"), 0))
            record.end("b")
            record.end("never begun")
            until((1, ("a",), 1))
        with pytest.raises(KeyError), record.in_flight("c"):
            raise KeyError
        until((0, (), 3))
        flying = in_flight(look(tmp_path / "mine").facts)
        assert flying is not None and flying.p95 is not None and flying.median is not None
        assert 0 <= flying.median <= flying.p95 < 60


class Tensor:
    """What one element of a tensor is to a caller: `float()` takes it."""

    def __float__(self) -> float:
        return 0.5


NUMBERS = [np.float32(0.5), np.float64(0.5), np.array(0.5), Decimal("0.5"), Fraction(1, 2), Tensor(), 0.5]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda v: type(v).__name__)
def test_numbers_of_every_type_are_recorded(tmp_path: Path, value: Any) -> None:
    given = {"prompt": QUESTION, "reward": value, "advantage": value, "rewards": {"exact": value}}
    as_object = Rollout(reward=value, advantage=value, components={"exact": Score(value, value)})
    with Recorder("mine", runs_dir=tmp_path) as record:
        record.rollouts(np.int64(1), [{**given, "reward_style": value}, as_object])  # type: ignore[arg-type]
    with RunReader(tmp_path / "mine") as reader:
        assert [(r.reward, r.advantage, r.step) for r in reader.rollouts.page()] == [(0.5, 0.5, 1)] * 2
        for n in (1, 2):
            breakdown = reader.bodies.trajectory(n).breakdown
            assert breakdown is not None and breakdown.total == 0.5
            assert breakdown.steps[-1].components["exact"].raw == 0.5
        first = reader.bodies.trajectory(1).breakdown
        assert first is not None and first.steps[-1].components["style"].raw == 0.5


def test_ids_and_answers_of_numpy_are_plain_texts(tmp_path: Path) -> None:
    given = {"id": np.int32(5), "group": np.int64(3), "pred": np.int64(7), "answer": np.array(7), "completion": "7"}
    with Recorder("mine", runs_dir=tmp_path) as record:
        record.rollouts(1, [{"prompt": QUESTION, **given}])
    with RunReader(tmp_path / "mine") as reader:
        t = reader.bodies.trajectory(1).trajectory
    assert (t.id, t.group, t.answer, t.expected) == ("5", "1:3", "7", "7")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"reward": "high"}, "reward='high'"),
        ({"advantage": object()}, "advantage="),
        ({"reward": 1, "rewards": {"style": "good"}}, "rewards"),
        ({"reward": {"style": "good"}}, "style"),
        ({"reward": np.array([1.0, 2.0])}, "expected the number of this rollout"),
        ({"components": [0.5, 1.0]}, "has no names"),
        ({"prompt": "q", "completions": ["a", "b"]}, "expected one mapping for each rollout"),
        (Rollout(reward="high"), "reward='high'"),  # type: ignore[arg-type]
        (5, "5 is not a rollout"),
    ],
)
def test_what_is_no_number_raises_where_it_is_given(tmp_path: Path, given: Any, named: str) -> None:
    with Recorder("mine", runs_dir=tmp_path) as record, pytest.raises(TypeError, match=named):
        record.rollouts(1, [given])
    with (
        Recorder("mine", runs_dir=tmp_path) as record,
        pytest.raises(TypeError, match="step=None is not a training step"),
    ):
        record.rollouts(None, [])  # type: ignore[arg-type]


def test_calls_of_another_shape_raise_where_they_are_made(tmp_path: Path) -> None:
    with Recorder("mine", runs_dir=tmp_path) as record:
        with pytest.raises(TypeError, match="is one mapping; expected a list"):
            record.rollouts(1, {"prompt": "q", "completion": "a"})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected a mapping such as"):
            record.metrics(1, None)  # type: ignore[arg-type]
        for step in (-1, 2**70):
            with pytest.raises(TypeError, match="is not a training step"):
                record.rollouts(step, [])


def test_a_reward_that_is_no_number_is_left_out_of_the_mean(tmp_path: Path) -> None:
    with Recorder("r", runs_dir=tmp_path) as record:
        record.rollouts(1, [{"prompt": "q", "completion": "a", "reward": r} for r in (1.0, float("nan"), 2.0)])
    with RunReader(tmp_path / "r") as reader:
        assert list(reader.metrics.points("rewards/total/mean")) == [(1, 1.5)]


def test_late_rollouts_count_in_the_mean_of_their_step_and_its_groups(tmp_path: Path) -> None:
    with Recorder("mine", runs_dir=tmp_path) as record:
        for step, reward in ((1, 0.0), (2, 5.0), (1, 1.0), (3, 5.0), (1, 5.0)):
            record.rollouts(step, [{"prompt": "q", "completion": "a", "reward": reward, "group": "g"}])
    with RunReader(tmp_path / "mine") as reader:
        assert list(reader.metrics.points("rewards/total/mean")) == [(1, 2.0), (2, 5.0), (3, 5.0)]
        assert sorted(row.rollout for row in reader.rollouts.page(limit=9) if row.step == 1) == [0, 1, 2]


def test_token_ids_and_rewards_of_turns_of_a_mapping_are_recorded(tmp_path: Path, caplog) -> None:
    turn = {"role": "assistant", "content": "4", "reward": 0.5}
    given = {"messages": [{"role": "user", "content": QUESTION}, turn], "prompt_ids": np.array([1, 2])}
    with Recorder("mine", runs_dir=tmp_path) as record:
        record.rollouts(1, [{**given, "completion_ids": [3], "logprobs": [-0.5]}])
    assert "did you mean" not in caplog.text
    with RunReader(tmp_path / "mine") as reader:
        tokens, breakdown = reader.bodies.tokens(1), reader.bodies.trajectory(1).breakdown
        assert tokens is not None and (list(tokens.token_ids), list(tokens.logprobs)) == ([1, 2, 3], [0, 0, -0.5])
        assert breakdown is not None and breakdown.steps[0].total == 0.5


@pytest.mark.parametrize(
    ("total", "end", "status", "error"),
    [
        (None, "", "finished", None),
        (9, "", "crashed", "the program ended at step 3 of 9"),
        (3, "raise ValueError('oops')", "crashed", "ValueError: oops"),
    ],
)
def test_a_program_that_ends_without_closing_its_record_loses_nothing(
    total: int | None, end: str, status: str, error: str | None, tmp_path: Path
) -> None:
    code = (
        f"import sys; from grpo_tui import Recorder; r = Recorder('mine', runs_dir=sys.argv[1], total_steps={total})\n"
        f"for step in range(1, 4): r.rollouts(step, [{{'prompt': 'p', 'reward': 1}}] * 50)\n{end}"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ, capture_output=True, check=not end)
    info = look(tmp_path / "mine")
    assert (info.status, info.error) == (status, error)
    with RunReader(tmp_path / "mine") as reader:
        assert reader.rollouts.total() == 150


def test_a_forked_process_is_told_to_open_the_run(tmp_path: Path) -> None:
    with Recorder("mine", runs_dir=tmp_path) as record:
        read, write = os.pipe()
        if os.fork() == 0:
            record.rollouts(1, [rollout(0, 1.0)])
            os.write(write, record._reason.encode())
            os._exit(0)
        os.wait()
        assert "open the run with process=" in os.read(read, 1000).decode()


def test_a_misspelt_key_is_named_once_and_stop_is_a_stop_reason(tmp_path: Path, caplog) -> None:
    with Recorder("mine", runs_dir=tmp_path) as record:
        given = {"prompt": QUESTION, "completion": "4", "rewrad": 1.0, "difficulty": 3, "stop": "length"}
        record.rollouts(1, [given, given])
    assert caplog.text.count("did you mean 'reward'?") == 1 and "difficulty" not in caplog.text
    with RunReader(tmp_path / "mine") as reader:
        assert reader.bodies.trajectory(1).trajectory.stop_reason == "length"


def test_the_list_of_runs_shows_the_reward(tmp_path: Path) -> None:
    with Recorder("mine", runs_dir=tmp_path) as record:
        for step in (1, 2):
            for half in (0.0, 1.0):
                record.rollouts(step, [{"prompt": "p", "completion": "c", "reward": half + step}])
            record.rollouts(step, [{"prompt": "p", "completion": "c", "reward": 99, "split": "eval"}])
    with Recorder("own", runs_dir=tmp_path) as record:
        record.rollouts(1, [{"prompt": "p", "completion": "c", "reward": 5}])
        record.metrics(1, {"rewards/total/mean": 7.0})
    assert facts(look(tmp_path / "mine"))["reward"] == 2.5
    assert facts(look(tmp_path / "own"))["reward"] == 7.0


def test_a_name_used_again_is_a_new_run_unless_it_is_resumed(tmp_path: Path) -> None:
    def record_once(process: str = "training", **options: Any) -> str:
        with Recorder("mine", runs_dir=tmp_path, process=process, **options) as record:
            record.rollouts(1, [{"id": "a", "prompt": "p", "completion": "c", "reward": 1}])
        return record.run_dir.name

    assert [record_once(), record_once(), record_once()] == ["mine", "mine-2", "mine-3"]
    assert record_once(resume=True) == "mine-3" and record_once(resume_from_step=1) == "mine-3"
    assert record_once(process="rank1") == "mine-4", "the newest has ended: this rank is the first of the next"
    assert record_once() == "mine-4"
    with Recorder("mine", runs_dir=tmp_path):
        assert record_once(process="rank1") == "mine-5"


def test_prompt_and_completion_of_a_rollout_may_be_texts(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTION}]
    with Recorder("mine", runs_dir=tmp_path) as record:
        record.rollouts(1, [Rollout(prompt=QUESTION, completion="Four."), Rollout(prompt=chat)])  # type: ignore[arg-type]
    assert record.dropped == 0
    with RunReader(tmp_path / "mine") as reader:
        shown = reader.bodies.trajectory(1).trajectory
        assert [(m.role, m.text) for m in shown.messages] == [("user", QUESTION)] and shown.steps[0].text == "Four."
        assert [m.role for m in reader.bodies.trajectory(2).trajectory.messages] == ["system", "user"]
