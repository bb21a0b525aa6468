"""Status is found by looking at processes, and requests are answered."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.engine.runs.control import requests as control
from grpo_tui.engine.runs.control import status
from grpo_tui.engine.runs.control.status import identity, is_alive, look
from grpo_tui.engine.runs.durable import read_json, write_json
from grpo_tui.engine.runs.health.headline import POINTS, Summary, of_record, of_status
from grpo_tui.engine.runs.masking import MASKED, is_secret_key, mask, mask_command, mask_text
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import Progress
from grpo_tui.engine.runs.write.writer import RunWriter


def announce(run_dir: Path, **state: object) -> None:
    write_json(run_dir / "run.json", {"id": "r", "mode": "rft", "created": time.time(), "name": "a name"})
    write_json(run_dir / "processes" / "training.json", {"time": time.time(), **state})


def test_running_is_believed_only_while_the_process_lives(run_dir: Path):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    announce(run_dir, status="running", step=7, **identity(sleeper.pid))
    info = look(run_dir)
    assert (info.status, info.step, info.name, info.pid) == ("running", 7, "a name", sleeper.pid)
    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert look(run_dir).status == "crashed"  # though it is a zombie that nobody has waited for
    sleeper.wait()
    info = look(run_dir)
    assert info.status == "crashed" and info.error == "the process is gone" and info.ended is not None


def test_a_process_that_ends_while_it_is_looked_at_has_not_crashed(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    announce(run_dir, status="running", step=7, **identity())

    def ends(*_: object) -> bool:
        announce(run_dir, status="finished", step=8, **identity())
        return False

    monkeypatch.setattr(status, "is_alive", ends)
    info = look(run_dir)
    assert (info.status, info.step, info.error) == ("finished", 8, None)


def test_another_process_with_the_same_pid_is_not_the_run(run_dir: Path):
    mine = identity()
    announce(run_dir, status="running", **mine | {"started": mine["started"] + 3600})  # the clock was set back since
    assert look(run_dir).status == "running"
    announce(run_dir, status="running", **mine | {"born": "another boot 1"})
    assert look(run_dir).status == "crashed"
    announce(run_dir, status="running", pid=mine["pid"], started=mine["started"] - 100)
    assert look(run_dir).status == "crashed"
    announce(run_dir, status="running", **mine)
    assert look(run_dir).status == "running"
    announce(run_dir, status="running", pid=mine["pid"])  # whose pid that is cannot be proved
    assert look(run_dir).status == "crashed"
    assert not is_alive(None, None) and not is_alive(2**22 + 5, time.time())


def test_a_run_on_another_machine_lives_while_it_speaks(run_dir: Path):
    """Folders of runs are shared between the node that trains and the one from which people look."""
    away = {"pid": os.getpid(), "started": 1.0, "where": "node17 pid:[1]"}
    announce(run_dir, status="running", **away)
    assert look(run_dir).status == "running"
    announce(run_dir, status="running", **{**away, "time": time.time() - 1000})
    assert look(run_dir).status == "crashed"


def test_a_silent_process_says_again_that_it_lives(run_dir: Path, monkeypatch):
    monkeypatch.setattr("grpo_tui.engine.runs.write.state.HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr("grpo_tui.engine.runs.write.writer.STATUS_SECONDS", 0.05)
    writer = RunWriter(run_dir)
    first = read_json(run_dir / "processes" / "training.json")["time"]
    deadline = time.monotonic() + 10
    while (now := read_json(run_dir / "processes" / "training.json")["time"]) <= first:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert now > first
    writer.close()


@pytest.mark.parametrize("status", ["finished", "stopped", "crashed"])
def test_an_end_that_was_announced_is_believed(run_dir: Path, status: str):
    announce(run_dir, status=status, exit_code=0, ended=5.0, pid=1, started=1.0)
    info = look(run_dir)
    assert (info.status, info.exit_code, info.ended) == (status, 0, 5.0)


def test_a_run_that_never_got_a_process(run_dir: Path):
    write_json(run_dir / "run.json", {"id": "r", "created": time.time()})
    assert look(run_dir).status == "starting"
    write_json(run_dir / "run.json", {"id": "r", "created": time.time() - 1000})
    info = look(run_dir)
    assert info.status == "crashed" and info.error == "the process never started"


def test_damaged_files_are_no_error(run_dir: Path):
    run_dir.mkdir()
    (run_dir / "run.json").write_bytes(b"\xff{")
    (run_dir / "processes").mkdir()
    (run_dir / "processes" / "training.json").write_text("[1]")
    assert look(run_dir).id == "run"
    assert look(run_dir / "none").status == "crashed"


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
keys = st.sampled_from(
    (
        "id",
        "mode",
        "name",
        "created",
        "facts",
        "status",
        "pid",
        "started",
        "born",
        "where",
        "time",
        "step",
        "exit_code",
        "ended",
    )
)


@pytest.mark.parametrize("examples", [60, pytest.param(600, marks=pytest.mark.stress)])
def test_no_content_of_the_small_files_is_an_error(tmp_path_factory: pytest.TempPathFactory, examples: int):
    @settings(max_examples=examples, deadline=None)
    @given(st.dictionaries(keys, junk), st.dictionaries(keys, junk), st.dictionaries(keys, junk))
    def check(run: dict[str, Any], own: dict[str, Any], launched: dict[str, Any]) -> None:
        run_dir = tmp_path_factory.mktemp("junk")
        (run_dir / "processes").mkdir()
        for name, data in (("run", run), ("processes/training", own), ("processes/training.launch", launched)):
            (run_dir / f"{name}.json").write_text(json.dumps(data))
        info = look(run_dir)
        assert all(isinstance(text, str) for text in (info.id, info.mode, info.name, info.status))
        assert isinstance(info.step, int) and isinstance(info.created, (int, float)) and isinstance(info.facts, dict)

    check()


def test_words_from_before_a_resume_do_not_count(run_dir: Path):
    mine = identity()
    announce(run_dir, status="stopped", pid=1, started=1.0)
    launched = {**mine, "time": time.time() + 1}
    write_json(run_dir / "processes" / "training.launch.json", launched)
    assert look(run_dir).status == "starting"


def test_a_small_file_is_replaced_in_one_instant(tmp_path: Path):
    path = tmp_path / "state.json"
    code = (
        "import sys, itertools; from pathlib import Path; from grpo_tui.engine.runs.control.status import write_json\n"
        "for i in itertools.count(): write_json(Path(sys.argv[1]), {'a': i, 'pad': 'x' * 5000, 'b': i})"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        while not path.exists():
            time.sleep(0.01)
        for _ in range(300):
            data = read_json(path)
            assert data["a"] == data["b"]
    finally:
        process.kill()
        process.wait()


def test_requests_are_handed_out_once_in_order_and_answered(run_dir: Path):
    channel = control.ControlChannel(run_dir)
    assert channel.poll() == []
    first = control.request(run_dir, "pause")
    second = control.request(run_dir, "checkpoint")
    requests = channel.poll()
    assert [(r.id, r.command) for r in requests] == [(first, "pause"), (second, "checkpoint")]
    assert channel.poll() == [] and control.outcome(run_dir, first) is None
    channel.acknowledge(requests[0], "paused at step 4")
    assert control.outcome(run_dir, first) == "paused at step 4"
    assert control.outcome(run_dir, second) is None
    with pytest.raises(ValueError, match="use one of pause"):
        control.request(run_dir, "explode")  # type: ignore[arg-type]


def test_each_process_of_a_run_gets_every_request(run_dir: Path):
    engine, worker = (control.ControlChannel(run_dir, process=p) for p in ("engine", "worker"))
    id_ = control.request(run_dir, "stop")
    (request,) = engine.poll()
    engine.acknowledge(request, "stopping")
    assert [r.id for r in worker.poll()] == [id_]
    assert control.outcome(run_dir, id_, "worker") is None
    # One that has answered is not asked again after a restart; one that has not is.
    assert control.ControlChannel(run_dir, process="engine").poll() == []
    assert [r.id for r in control.ControlChannel(run_dir, process="worker").poll()] == [id_]
    control.clear(run_dir)
    assert control.ControlChannel(run_dir, process="worker").poll() == []


def test_junk_among_the_requests_is_passed_over(run_dir: Path):
    (run_dir / "control").mkdir(parents=True)
    (run_dir / "control" / "x.json").write_text("{")
    (run_dir / "control" / "y.json").write_text('{"command": "rm -rf"}')
    (run_dir / "control" / "z.json").write_text('{"command": ["stop"]}')
    assert control.ControlChannel(run_dir).poll() == []
    (run_dir / "control" / "w.json").write_text('{"command": "pause", "time": "soon"}')
    assert [r.command for r in control.ControlChannel(run_dir).poll()] == ["pause"]


def test_sigterm_is_a_request_to_stop(run_dir: Path):
    before = signal.getsignal(signal.SIGTERM)
    try:
        channel = control.ControlChannel(run_dir, sigterm=True)
        os.kill(os.getpid(), signal.SIGTERM)
        assert [r.command for r in channel.poll()] == ["stop"]
        assert channel.poll() == []
        channel.acknowledge(control.RunRequest("sigterm", "stop"), "stopping")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_a_forked_worker_of_the_users_code(run_dir: Path):
    """A reward function may use a pool, which ends its workers in this way."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        channel = control.ControlChannel(run_dir, sigterm=True)
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        worker.start()
        worker.terminate()
        worker.join(10)
        assert worker.exitcode is not None and channel.poll() == []
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "key", ["WANDB_API_KEY", "hf_token", "HF_TOKEN", "dbPassword", "client_secret", "accessKey", "Authorization"]
)
def test_keys_of_secrets(key: str):
    assert is_secret_key(key)
    assert mask({key: "abc", "deep": [{key: "abc"}]}) == {key: MASKED, "deep": [{key: MASKED}]}


@pytest.mark.parametrize(
    "key",
    [
        "max_tokens",
        "tokenizer",
        "record_tokens",
        "keyboard",
        "eos_token",
        "pad_token",
        "monkey",
        "tokens",
        "key",
        "api_key_env",
    ],
)
def test_keys_that_only_sound_like_secrets(key: str):
    assert mask({key: "abc"}) == {key: "abc"}


def test_a_command_line_is_kept_without_its_secrets():
    given = ["grpo-tui", "train", "--set", "environment.config.api_key=s3cret", "--set", "a={hf_token: s3cret, b: 1}"]
    given += [
        "--set=x.password=s3cret",
        "--auth-token",
        "s3cret",
        "--set",
        "training.max_tokens=5",
        "--set",
        "b=sk-" + "s" * 20,
    ]
    kept = mask_command(given)
    assert "s3cret" not in " ".join(kept) and "s" * 20 not in " ".join(kept)
    assert kept[3] == f"environment.config.api_key={MASKED}" and "training.max_tokens=5" in kept


def test_values_that_look_like_secrets():
    assert mask_text("see hf_" + "a1" * 12 + " now") == f"see {MASKED} now"
    assert mask_text("https://me:pw123@host/x") == f"https://{MASKED}@host/x"
    assert mask_text("redis://:pw123@host:6379/0, rediss://me:p@w@host/0") == (
        f"redis://{MASKED}@host:6379/0, rediss://{MASKED}@host/0"
    )
    assert mask_text("redis://host/0 git@host:me/x http://host/a@b") == "redis://host/0 git@host:me/x http://host/a@b"
    assert mask({"max_turn_token": 12, "on": True, "api_key": ""}) == {"max_turn_token": 12, "on": True, "api_key": ""}


def test_the_summary_keeps_the_shape_of_a_long_curve():
    summary = Summary()
    for step in range(10_000):
        summary.add(step, {"success/train": step / 10_000, "other": 1.0})
    made = summary.to_json()
    assert list(made) == ["success/train"]
    curve = made["success/train"]["curve"]
    assert isinstance(curve, list) and POINTS // 2 <= len(curve) <= POINTS
    assert curve == sorted(curve) and curve[0] < 0.05 and curve[-1] > 0.9
    steps = made["success/train"]["steps"]
    assert isinstance(steps, list) and len(steps) == len(curve)
    middle = [step / 10_000 for step in steps]
    assert all(abs(mean - at) < 0.1 for mean, at in zip(curve, middle, strict=True)), "each mean stands at its steps"


def test_an_evaluation_stands_at_the_step_at_which_it_was_made(run_dir: Path):
    writer = RunWriter(run_dir)
    for step in range(1, 41):
        writer.metrics(step, {"rewards/total/mean": 0.5} | ({"success/eval_greedy": 0.9} if step == 10 else {}))
    writer.close()
    made = of_status(look(run_dir))
    assert made is not None and made.curves["success/eval_greedy"] == [(10, 0.9)]
    with RunReader(run_dir) as reader:
        record = of_record(reader)
    assert record.values == made.values and record.curves["success/eval_greedy"] == [(10, 0.9)]


def test_the_success_of_serving_is_a_rate_over_the_last_requests(run_dir: Path):
    writer = RunWriter(run_dir)
    for step in range(1, 301):
        writer.metrics(step, {"online/success": float(step % 4 == 0)})
    writer.close()
    made = of_status(look(run_dir))
    with RunReader(run_dir) as reader:
        record = of_record(reader)
    assert made is not None and made.success == record.success == 0.25, "not that of the last request"


@pytest.mark.parametrize("damage", ["delete", "empty", "rubbish"])
def test_where_the_status_file_is_lost_the_record_knows_the_step(run_dir: Path, damage: str):
    writer = RunWriter(run_dir)
    for step in (1, 2, 3):
        writer.metrics(step, {"loss": 1.0})
    writer.close()
    file = run_dir / "processes" / "training.json"
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "empty" else b"\xa5" * 40)
    write_json(run_dir / "run.json", {"mode": "rft", "created": time.time() - 3600})
    assert (look(run_dir).status, look(run_dir).step) == ("crashed", 3)


def test_progress_inside_a_step_and_the_last_sign_of_life(run_dir: Path):
    writer = RunWriter(run_dir)
    writer.status("running", step=3)
    before = time.time()
    writer.progress("rollouts", 5, 16)
    assert writer.flush(5)
    info = look(run_dir)
    assert info.progress == Progress("rollouts", 5, 16)
    assert info.heard is not None and before <= info.heard <= time.time()
    writer.status("finished")
    writer.close()
    assert look(run_dir).progress is None, "an ended run is inside no step"


def test_a_request_can_be_taken_back_until_a_process_has_answered(run_dir: Path):
    channel = control.ControlChannel(run_dir)
    first, second = control.request(run_dir, "pause"), control.request(run_dir, "checkpoint")
    assert [(r.id, r.answers) for r in control.asked(run_dir)] == [(first, {}), (second, {})]
    assert control.withdraw(run_dir, first)
    assert not control.withdraw(run_dir, first), "only once"
    heard = channel.poll()
    assert [r.command for r in heard] == ["checkpoint"]
    channel.acknowledge(heard[0], "saved as checkpoint-7")
    assert not control.withdraw(run_dir, second), "it is too late"
    assert control.asked(run_dir)[0].answers == {"training": "saved as checkpoint-7"}
