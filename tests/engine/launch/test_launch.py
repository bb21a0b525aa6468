"""Real processes: started, found, stopped, killed, resumed, and seen for what they are."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.imports.background import is_path_of_dump
from grpo_tui.engine.launch import LaunchError, start
from grpo_tui.engine.launch.find import find_run, list_runs
from grpo_tui.engine.launch.logs import tail_log
from grpo_tui.engine.launch.outcome import run_recorded
from grpo_tui.engine.launch.settings import read_config
from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.launch.stop import delete_run, rename_run, stop_run
from grpo_tui.engine.runs.control import requests as control
from grpo_tui.engine.runs.control.status import identity, look
from grpo_tui.engine.runs.durable import read_json, write_json
from grpo_tui.engine.runs.errors import RunNotFound
from grpo_tui.engine.runs.masking import MASKED
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import RunInfo
from grpo_tui.engine.runs.write.writer import NullWriter
from grpo_tui.tui.cli.follow import crash_reason, tell_end

from .conftest import until


def test_a_run_starts_records_and_stops_after_saving(start_small, runs_dir: Path):
    run = start_small("a run")
    assert run.status == "starting" and run.mode == "rft" and run.environment == "VisualEnv"
    running = until(lambda i: i.status == "running" and i.step > 3, run)
    assert running.total_steps == 100_000 and running.name == "a run"
    assert find_run(runs_dir, "latest").id == run.id
    stopped = stop_run(running, timeout=20)
    assert (stopped.status, stopped.exit_code) == ("stopped", 0)
    with RunReader(run.path) as reader:
        assert [e.message for e in reader.events(["checkpoint"])] == ["saved"]
        assert reader.metrics.last_step() == stopped.step
    assert (Path(run.path) / "config.yaml").is_file()
    assert stop_run(stopped).status == "stopped"  # a second time: nothing to do


def test_a_run_keeps_the_adapters_it_began_with_when_another_run_ends(start_small, tmp_path: Path):
    (tmp_path / "sft_adapters-one").mkdir()
    latest = tmp_path / "sft_adapters"
    latest.symlink_to("sft_adapters-one")
    own = tmp_path / "own"
    own.symlink_to(tmp_path)
    for given, expected in ((latest, tmp_path / "sft_adapters-one"), (own, own)):
        config = RunConfig()
        config.model.sft_adapters = str(given)
        assert read_config(Path(start_small(config=config).path)).model.sft_adapters == str(expected)


def test_runs_that_get_the_same_name_at_the_same_moment_get_other_names(runs_dir: Path, monkeypatch):
    names = iter(["same", "same", "other"])
    monkeypatch.setattr(start, "new_run_id", lambda folder: next(names))
    assert [start._made(runs_dir, None).name for _ in range(2)] == ["same", "other"]


def test_it_has_a_session_of_its_own_and_outlives_the_one_that_started_it(start_small, tmp_path: Path, runs_dir: Path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom grpo_tui.configs.schema import RunConfig\n"
        "from grpo_tui.engine.launch import start\nstart.MODULES = {'training': 'small_training'}\n"
        "print(start.start_run(RunConfig(), runs_dir=Path(sys.argv[1])).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(runs_dir)], capture_output=True, text=True, timeout=60, start_new_session=True
    )
    pid = int(done.stdout)
    assert os.getsid(pid) == pid
    run = until(lambda i: i.status == "running" and i.step > 3, find_run(runs_dir, "latest"))
    assert run.pid == pid and psutil.pid_exists(pid)
    assert stop_run(run, timeout=20).status == "stopped"


def test_requests_are_answered(start_small):
    run = start_small()
    until(lambda i: i.status == "running", run)
    id_ = control.request(run.path, "checkpoint")
    until(lambda i: control.outcome(run.path, id_) is not None, run)
    assert (control.outcome(run.path, id_) or "").startswith("checkpoint at step")
    stop_run(run, timeout=20)


def test_a_crash_is_seen_with_its_last_lines_and_its_log(start_small):
    run = start_small("crashes")
    crashed = until(lambda i: i.status == "crashed", run)
    assert crashed.error is not None and crashed.error.startswith("the process is gone")
    assert tail_log(crashed, 1) == ["RuntimeError: the model fell over"]
    assert crashed.facts["log"] == "logs/training.log"
    with RunReader(run.path) as reader:
        assert reader.metrics.points("success/train") == [(s, 0.5) for s in range(1, 6)]
    # The exit code is known once the last of its threads is gone.
    until(lambda i: find_run(Path(run.path).parent, run.id).error == "the process is gone (exit code 1)", run)


def test_a_line_of_the_log_is_no_reason_for_a_crash(tmp_path: Path):
    run_dir = tmp_path / "run"
    (run_dir / "logs").mkdir(parents=True)
    write_json(run_dir / "processes" / "training.json", {"pid": 1, "started": 1.0, "status": "running"})
    (run_dir / "config.yaml").write_text(f"training: {{output_dir: {tmp_path / 'saved'}}}\n")
    (tmp_path / "saved-run").mkdir()
    handled = (
        "2026-11-23 19:41:24,798 ERROR grpo_tui.engine.training.resumable: saving a checkpoint\n"
        "Traceback (most recent call last):\n  …\nOSError: [Errno 28] No space left on device\n"
    )
    log = run_dir / "logs" / "training.log"
    log.write_text(
        handled + "2026-11-23 19:41:24,799 ERROR x: the checkpoint of step 12 could not be saved: No space\n"
    )
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        tell_end(look(run_dir), out=lambda line: None)
    assert "crashed at step 0: the process is gone" in told.getvalue() and "No space" not in told.getvalue()
    assert f"its adapters are in {tmp_path / 'saved-run'};" in told.getvalue()
    log.write_text(log.read_text() + "Traceback (most recent call last):\n  …\nMemoryError: too much\n")
    assert crash_reason(look(run_dir)) == "MemoryError: too much"


def test_a_killed_process_is_a_crash(start_small):
    run = until(lambda i: i.status == "running", start_small())
    assert run.pid is not None
    os.kill(run.pid, signal.SIGKILL)
    until(lambda i: i.status == "crashed", run)
    until(lambda i: find_run(Path(run.path).parent, run.id).error == "the process is gone (SIGKILL)", run)


def test_one_that_dies_before_it_says_anything(start_small):
    run = until(lambda i: i.status == "crashed", start_small("dies early"))
    assert tail_log(run, 5) == ["loading dies early", "no such thing as a model"]


def test_stopping_while_it_loads_is_no_crash(start_small, monkeypatch):
    monkeypatch.setattr("grpo_tui.engine.launch.stop.ASK_SECONDS", 0.2)
    run = start_small("loads for ever")
    assert stop_run(run, timeout=10).status == "stopped"


def test_one_that_does_not_stop_in_time_is_said_to_go_on_and_can_be_forced(start_small, monkeypatch):
    monkeypatch.setattr("grpo_tui.engine.launch.stop.ASK_SECONDS", 0.2)
    run = until(lambda i: i.status == "running", start_small("is deaf"))
    assert stop_run(run, timeout=0.5).status == "running"
    assert stop_run(run, timeout=0.5, force=True).status == "crashed"
    assert not psutil.pid_exists(run.pid or 0) or psutil.Process(run.pid).status() == psutil.STATUS_ZOMBIE


def test_a_configuration_that_was_damaged_is_not_gone_on_with(start_small):
    run = until(lambda i: i.status == "crashed", start_small("dies early"))
    path = Path(run.path) / "config.yaml"
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole.replace(b"seed: 0", b"seed: 8", 1)):
        assert damaged != whole
        path.write_bytes(damaged)
        with pytest.raises(LaunchError, match=r"config\.yaml differs from the file"):
            start_small("dies early", resume=run.id)
        assert path.read_bytes() == damaged
    path.write_bytes(whole)
    until(lambda i: i.status == "crashed", start_small("dies early", resume=run.id))


def test_going_on_with_a_stopped_run(start_small, runs_dir: Path):
    run = start_small("goes on")
    until(lambda i: i.step > 3, run)
    stopped = stop_run(run, timeout=20)
    again = start_small("goes on", resume=run.id[:6])
    assert again.id == run.id and again.status == "starting" and again.created == run.created
    with pytest.raises(LaunchError, match="stop it first"):
        start_small("goes on", resume=run.id)
    on = until(lambda i: i.status == "running" and i.step > stopped.step + 3, again)
    assert on.name == "goes on" and len(on.facts["resumed"]) == 1
    final = stop_run(on, timeout=20)
    with RunReader(run.path) as reader:
        assert reader.metrics.points("success/train") == [(s, 0.5) for s in range(1, final.step + 1)]


def test_of_two_that_go_on_with_a_run_in_the_same_instant_one_is_refused(start_small):
    run = until(lambda i: i.step > 3, start_small("goes on"))
    stop_run(run, timeout=20)
    barrier = threading.Barrier(2)

    def go() -> RunInfo | LaunchError:
        barrier.wait()
        try:
            return start_small("goes on", resume=run.id)
        except LaunchError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        answers = [f.result() for f in [pool.submit(go), pool.submit(go)]]
    refused = [a for a in answers if isinstance(a, LaunchError)]
    assert len(refused) == 1, answers
    assert "right now" in str(refused[0]) or "stop it first" in str(refused[0])
    stop_run(run, timeout=20)


def _digests(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_a_copy_of_a_run_goes_on_without_its_original(start_small, runs_dir: Path):
    run = until(lambda i: i.step > 3, start_small("goes on"))
    stop_run(run, timeout=20)
    shutil.copytree(run.path, runs_dir / "copy")
    original = _digests(Path(run.path))
    again = start_small("goes on", resume="copy")
    assert (again.id, again.path) == ("copy", str(runs_dir / "copy"))
    on = until(lambda i: i.status == "running", again)
    stop_run(on, timeout=20)
    assert _digests(Path(run.path)) == original
    os.rename(runs_dir / "copy", runs_dir / "renamed")
    assert sorted(r.id for r in list_runs(runs_dir)) == sorted([run.id, "renamed"])
    assert find_run(runs_dir, "renamed").id == "renamed"


def test_a_run_with_a_damaged_record_does_not_go_on_unseen(start_small):
    run = until(lambda i: i.step > 3, start_small("goes on"))
    stop_run(run, timeout=20)
    record = Path(run.path) / "record.sqlite"
    whole = record.read_bytes()
    record.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LaunchError, match=rf"damaged.*`grpo-tui repair {run.path}`"):
        start_small("goes on", resume=run.id)
    assert look(Path(run.path)).status == "stopped"
    record.write_bytes(whole)
    stop_run(until(lambda i: i.status == "running", start_small("goes on", resume=run.id)), timeout=20)


def test_a_process_that_cannot_be_proved_to_be_the_runs_is_not_ended(runs_dir: Path):
    made(runs_dir, "r")
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for state in ({"pid": bystander.pid}, {"pid": bystander.pid, "started": None}, {"pid": -1}, {"pid": 1}):
            write_json(
                runs_dir / "r" / "processes" / "training.json", {"status": "running", "time": time.time(), **state}
            )
            assert stop_run(find_run(runs_dir, "r"), timeout=0.2, force=True).status == "crashed"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_what_lives_on_after_a_crash_is_named_and_ended_by_stop(start_small, monkeypatch):
    monkeypatch.setattr("grpo_tui.engine.launch.stop.ASK_SECONDS", 0.2)
    config = RunConfig(mode="online", name="goes on")
    run = until(lambda i: i.status == "running", start_small(config=config))
    os.kill(run.pid or 0, signal.SIGKILL)
    crashed = until(lambda i: i.status == "crashed", run)
    with pytest.raises(LaunchError, match=r"'worker' \(pid \d+\) of run .* is still alive: `grpo-tui stop .*` ends it"):
        start_small(config=config, resume=run.id)
    stop_run(crashed, timeout=20)
    again = start_small(config=config, resume=run.id)
    stop_run(until(lambda i: i.status == "running", again), timeout=20)


def test_secrets_reach_the_process_and_no_file(start_small, runs_dir: Path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "wandb-secret-value")
    monkeypatch.setattr(
        sys, "argv", ["grpo-tui", "--set", "x=hf_" + "s" * 30, "--set", "environment.config.api_key=open sesame"]
    )
    config = RunConfig()
    config.environment.config = {"api_key": "open sesame", "size": 3}
    config.online.queue, config.online.shared_files = "redis://:queue-secret@127.0.0.1:1/0", "."
    run = start_small(config=config)
    until(lambda i: i.status == "running" and i.step > 2, run)
    stop_run(run, timeout=20)
    with RunReader(run.path) as reader:
        assert reader.events(["phase"])[0].message == "the secret has 11 characters"
    data = b"".join(p.read_bytes() for p in Path(run.path).rglob("*") if p.is_file())
    for secret in (b"open sesame", b"wandb-secret-value", b"s" * 30, b"queue-secret"):
        assert secret not in data
    assert MASKED in (Path(run.path) / "config.yaml").read_text()
    assert find_run(runs_dir, run.id).facts["environment"]["WANDB_API_KEY"] == MASKED
    config.environment.config = {"api_key": MASKED}
    with pytest.raises(LaunchError, match=r"environment\.config\.api_key is a secret.*--set"):
        start_small(config=config, resume=run.id)
    config.environment.config = {}
    config.online.queue = read_config(Path(run.path)).online.queue  # masked, as whoever resumes the run finds it
    with pytest.raises(LaunchError, match=r"online\.queue is a secret.*--set"):
        start_small(config=config, resume=run.id)


@pytest.mark.parametrize("bad", ["../x", "a/b", "", "-x", ".hidden", "a" * 65, "latest", "a b"])
def test_ids_that_cannot_be(start_small, runs_dir: Path, bad: str):
    with pytest.raises(LaunchError, match="id"):
        start_small(run_id=bad)
    assert not runs_dir.exists() or list(runs_dir.iterdir()) == []


def test_an_id_that_is_taken(start_small, runs_dir: Path):
    (runs_dir / "mine").mkdir(parents=True)
    with pytest.raises(LaunchError, match="already a run mine"):
        start_small(run_id="mine")


def test_a_folder_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, start_small):
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="no run can be created"):
        start_run(RunConfig(), runs_dir=tmp_path / "file" / "runs")


def test_several_processes_are_started_by_accelerate(tmp_path: Path):
    alone = start._command(start.MODULES["training"], tmp_path, 1, None, resume=False)
    assert alone == [sys.executable, "-m", "grpo_tui.engine.training", str(tmp_path)]
    two = start._command(start.MODULES["training"], tmp_path, 2, None, resume=True)
    assert two[1:3] == ["-m", "accelerate.commands.launch"]
    assert two[two.index("--num_processes") + 1] == "2"
    assert two[-4:] == ["-m", "grpo_tui.engine.training", str(tmp_path), "--resume"]
    file = tmp_path / "mine.yaml"
    for text, port in (("num_machines: 1\n", True), ("num_machines: 2\nmain_process_port: 29400\n", False)):
        file.write_text(text)
        mine = start._command(start.MODULES["training"], tmp_path, 1, file, resume=False)
        assert mine[mine.index("--config_file") + 1] == str(file) and "--num_processes" not in mine
        assert ("--main_process_port" in mine) == port  # machines must agree on theirs
    worker = start._command(start.ONLINE_MODULES["worker"], tmp_path, 2, None, resume=False)
    assert worker == [sys.executable, "-m", "grpo_tui.engine.online.learn.worker", str(tmp_path)]


def test_both_processes_of_an_online_run(start_small):
    run = start_small(config=RunConfig(mode="online"))

    def both_run(info: RunInfo) -> bool:
        return [s["status"] for s in info.facts.get("processes", {}).values()] == ["running", "running"]

    on = until(both_run, run)
    assert on.status == "running" and on.error is None
    os.kill(on.facts["processes"]["worker"]["pid"], signal.SIGKILL)
    lost = until(lambda i: i.error is not None, run)
    assert lost.status == "running" and lost.error == "the process 'worker' is gone; its log is logs/worker.log"
    assert stop_run(lost, timeout=20).status == "stopped"


def made(runs_dir: Path, *ids: str, **facts: object) -> None:
    for i, id_ in enumerate(ids):
        write_json(runs_dir / id_ / "run.json", {"id": id_, "mode": "rft", "created": 1000.0 + i, **facts})


def test_finding_runs(runs_dir: Path):
    with pytest.raises(RunNotFound, match="there is no run in"):
        find_run(runs_dir, "latest")
    with pytest.raises(RunNotFound, match=r"there is no run in .* yet"):
        find_run(runs_dir, "x")
    made(runs_dir, "1120-0901-abcd", "1120-0902-efgh", "1121-0903-abxy")
    write_json(
        runs_dir / "1121-0903-abxy" / "run.json",
        {**read_json(runs_dir / "1121-0903-abxy" / "run.json"), "name": "best"},
    )
    (runs_dir / "not a run").mkdir()
    (runs_dir / ".deleted-x").mkdir()
    assert [r.id for r in list_runs(runs_dir)] == ["1121-0903-abxy", "1120-0902-efgh", "1120-0901-abcd"]
    for ref, id_ in (
        ("latest", "1121-0903-abxy"),
        ("1120-0901-abcd", "1120-0901-abcd"),
        ("1121", "1121-0903-abxy"),
        ("efgh", "1120-0902-efgh"),
        ("best", "1121-0903-abxy"),
        (str(runs_dir / "1120-0902-efgh"), "1120-0902-efgh"),
        (runs_dir / "1120-0902-efgh", "1120-0902-efgh"),
    ):
        assert find_run(runs_dir, ref).id == id_
    with pytest.raises(RunNotFound, match="2 runs match '1120': 1120-0902-efgh, 1120-0901-abcd; give more"):
        find_run(runs_dir, "1120")
    with pytest.raises(RunNotFound, match="nearest: 1120-0902-efgh"):
        find_run(runs_dir, "1120-0902-efgg")


def test_an_empty_name_is_no_run_and_no_folder(runs_dir: Path):
    """As of a shell variable that is unset: `grpo-tui stop "$RUN"`."""
    made(runs_dir, "only")
    with pytest.raises(RunNotFound, match="no run ''"):
        find_run(runs_dir, "")
    assert not is_path_of_dump("", runs_dir) and is_path_of_dump(".", runs_dir)


def test_a_list_of_hundreds_costs_a_few_small_files_each(runs_dir: Path):
    made(runs_dir, *(f"run{i:03d}" for i in range(300)))
    for i in range(300):
        write_json(
            runs_dir / f"run{i:03d}" / "processes" / "training.json", {"status": "finished", "step": i, "time": 5.0}
        )
    began, used = time.perf_counter(), time.process_time()
    runs = list_runs(runs_dir)
    took = time.process_time() - used
    one = time.process_time()
    look(runs_dir / "run000")
    alone = time.process_time() - one
    assert len(runs) == 300 and {r.status for r in runs} == {"finished"} and runs[0].step == 299
    assert took < 300 * max(alone, 1e-4) * 10, (took, alone, time.perf_counter() - began)


def test_renaming_and_deleting(start_small, runs_dir: Path):
    made(runs_dir, "old")
    renamed = rename_run(find_run(runs_dir, "old"), "  the   good one ")
    assert renamed.name == "the good one" and find_run(runs_dir, "the good one").id == "old"
    for bad in ("x" * 101, "a\x1bb"):
        with pytest.raises(LaunchError, match="printable"):
            rename_run(renamed, bad)
    write_json(runs_dir / "old" / "processes" / "training.json", {"status": "finished", "time": 5.0})
    active = until(lambda i: i.status == "running", start_small())
    with pytest.raises(LaunchError, match="stop it before deleting it"):
        delete_run(active)
    delete_run(renamed)
    assert [r.id for r in list_runs(runs_dir)] == [active.id]
    assert not (runs_dir / ".deleted-old").exists()
    stop_run(active, timeout=20)


def test_a_run_with_a_process_left_is_not_deleted(runs_dir: Path):
    made(runs_dir, "r")
    write_json(runs_dir / "r" / "processes" / "engine.json", {"status": "crashed", "time": 5.0})
    worker = runs_dir / "r" / "processes" / "worker.json"
    write_json(worker, {"status": "running", "time": 5.0, **identity()})
    with pytest.raises(LaunchError, match="the process 'worker' of run r is still alive"):
        delete_run(find_run(runs_dir, "r"))
    write_json(worker, {"status": "stopped", "time": 5.0, **identity()})  # it is about to exit
    delete_run(find_run(runs_dir, "r"))
    assert list_runs(runs_dir) == []


def test_the_tail_of_a_log_is_what_a_terminal_would_show(runs_dir: Path):
    made(runs_dir, "r")
    run = find_run(runs_dir, "r")
    assert tail_log(run) == []
    (runs_dir / "r" / "logs").mkdir()
    log = runs_dir / "r" / "logs" / "training.log"
    log.write_bytes(b"x" * 200_000 + b"\nfirst\n 10%|#\r 50%|##\r100%|###\r\nbad \xff\nlast\n\n\n")
    assert tail_log(run, 3) == ["100%|###", "bad �", "last"]
    assert tail_log(run, 100, "training")[0] == "first"
    assert tail_log(run, 5, "engine") == [] and tail_log(run, 0) == []


def test_code_that_raises_an_interrupt_has_failed_and_a_signal_interrupts(capsys: pytest.CaptureFixture[str]) -> None:
    def leaves() -> None:
        raise KeyboardInterrupt

    async def waits() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(20)

    assert run_recorded(NullWriter(), "training", leaves) == 1
    assert run_recorded(NullWriter(), "training", lambda: signal.raise_signal(signal.SIGINT)) == 130
    assert run_recorded(NullWriter(), "training", lambda: asyncio.run(waits())) == 130
    assert capsys.readouterr().err == "error: KeyboardInterrupt\n"


@pytest.mark.parametrize("kind", ["DEEPSPEED", "FSDP"])
def test_processes_that_training_refuses_are_refused_before_there_is_a_run(tmp_path: Path, kind: str):
    file = tmp_path / "mine.yaml"
    version = "fsdp_config: {fsdp_version: 1}\n" if kind == "FSDP" else ""
    file.write_text(f"distributed_type: {kind}\n{version}")
    with pytest.raises(LaunchError, match=f"{kind} is not supported"):
        start_run(RunConfig(), runs_dir=tmp_path / "runs", accelerate_config=file)
    assert not (tmp_path / "runs").exists()
