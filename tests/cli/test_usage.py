"""What a person is told who uses a command wrongly: one line on standard error, and the documented exit code."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from grpo_tui.configs.loading import load_config
from grpo_tui.engine.training.previews import first_prompt
from grpo_tui.tui.cli import rollouts
from grpo_tui.tui.cli.init import Hardware, _hardware
from tests.forked import forked_processes

from .conftest import Cli

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "No such command 'trian'"),
        (["config"], "Missing command; see `grpo-tui config --help`"),
        (["bisect", "latest", "--filter", " "], "--filter is empty"),
        (["train", "--mode", "rl"], "'sft', 'rft'"),
        (["train", "--num-processes", "0"], "--num-processes"),
        (["train", "--set", "training.max_stps=3"], "training.max_steps"),
        (["train", "nope.yaml"], "no such file or preset"),
        (["train", "--resume", "x", "--run-id", "y"], "leave --run-id out"),
        (["train", "--resume", "x", "qwen3_0.6b"], "leave CONFIG out"),
        (["train", "--set", "mode=online"], "grpo-tui online"),
        (["train", "--accelerate-config", "gone.yaml"], "accelerate config"),
        (["online", "--requests", "a", "--serve", "b"], "exclude each other"),
        ([], "needs a terminal"),
        (["inspect"], "RUN"),
        (["inspect", "~nobody-at-all/run"], "an unknown user name"),
        (["doctor", "--queue", "NO_QUEUE"], "--queue: NO_QUEUE is neither a URL nor an environment variable"),
        (["online", "--serve", "8000"], "--serve: online.serve: '8000' is not HOST:PORT"),
        (["online", "--serve", "127.0.0.1:80000"], "'127.0.0.1:80000' is not HOST:PORT with a port up to 65535"),
        (["online", "--serve", "http://127.0.0.1:8000"], "'http://127.0.0.1:8000' is not HOST:PORT"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(cli: Cli, arguments: list[str], said: str):
    answer = cli(*arguments)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert answer.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "gone"],
        ["stop", "gone"],
        ["export", "gone", "--out", "x"],
        ["train", "--resume", "gone"],
        ["inspect", "latest"],
    ],
)
def test_a_run_that_is_not_there_is_exit_code_3(cli: Cli, arguments: list[str]):
    answer = cli(*arguments)
    assert answer.returncode == 3
    assert answer.stderr.count("\n") == 1


def test_every_problem_of_a_configuration_is_told_with_its_line(cli: Cli, tmp_path: Path):
    (tmp_path / "my.yaml").write_text("mode: rfl\ntraining:\n  max_steps: x\n")
    answer = cli("config", "check", "my.yaml")
    assert answer.returncode == 2
    assert [line.split(": ")[0] for line in answer.stderr.splitlines()] == ["my.yaml:1", "my.yaml:3"]


def test_config_show_prints_a_configuration_that_checks_and_the_first_prompt(cli: Cli, tmp_path: Path):
    shown = cli("config", "show", "qwen3_0.6b", "--set", "seed=4")
    assert "# Rank." in shown.stdout and "seed: 4" in shown.stdout
    prompt = shown.stdout.split("# The first prompt, as the policy reads it:\n")[1].splitlines()
    assert '#   {"name": "SEGMENT_OBJECT_AT", "arguments": {"x": 1, "y": 1}}' in prompt
    assert "#   - ANSWER(text: string, the answer): Ends the task with the answer." in prompt
    (tmp_path / "my.yaml").write_text(shown.stdout)
    assert cli("config", "check", "my.yaml").returncode == 0


def test_repair_saves_what_is_whole_and_says_how_much(cli: Cli, tmp_path: Path):
    made = "import pathlib, record; record.record(pathlib.Path('runs'), 'broken', 400)"  # whose process is gone then
    subprocess.run([sys.executable, "-c", made], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(HERE)}, check=True)
    path = tmp_path / "runs" / "broken" / "record.sqlite"
    data = bytearray(path.read_bytes())
    half = len(data) // 2 // 8192 * 8192
    data[half : half + 4 * 8192] = b"\xaa" * (4 * 8192)
    path.write_bytes(data)
    answer = cli("repair", "broken")
    assert answer.returncode == 0, answer.stderr
    assert "damaged" in answer.stdout and " of 400 trajectories" in answer.stdout
    again = cli("inspect", "broken", "--filter", "reward>-9", "--json")
    assert again.returncode == 0 and again.stderr == ""
    assert f"saved {len(again.stdout.splitlines())} of 400" in answer.stdout


def test_doctor_names_versions_devices_and_disk(cli: Cli, tmp_path: Path):
    answer = cli("doctor")
    assert answer.returncode == 0, answer.stdout
    for expected in ("Python 3.", "torch 2.", "CPU cores", f"runs in {tmp_path}", "no terminal"):
        assert expected in answer.stdout


@pytest.mark.parametrize("command", ["config show | head -1", "--help | true", "runs | true"])
def test_a_reader_that_goes_away_is_no_error(command: str, tmp_path: Path):
    """One that has read a line, and one that reads nothing and ends at once."""
    command = f"{sys.executable} -m grpo_tui.tui.cli {command}"
    answer = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("module", ["grpo_tui.tui.cli", "grpo_tui.tui.entry"])
@pytest.mark.parametrize("command", ["runs", "--help", "config show"])
def test_a_disk_that_takes_no_output_is_one_line(module: str, command: str, tmp_path: Path):
    with Path("/dev/full").open("w") as full, forked_processes():
        words = [sys.executable, "-m", module, *command.split()]
        answer = subprocess.run(words, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert answer.returncode == 1
    assert answer.stderr == "the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("module", ["grpo_tui.tui.cli", "grpo_tui.tui.entry"])
def test_an_encoding_without_a_character_shows_a_question_mark(module: str, tmp_path: Path):
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"id": "one", "mode": "rft"}')
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    words = [sys.executable, "-m", module, "runs", "--runs-dir", str(run.parent)]
    answer = subprocess.run(words, env=environment, capture_output=True)
    assert answer.returncode == 0 and answer.stderr == b""
    assert b"one" in answer.stdout and b"?" in answer.stdout


def test_the_hardware_question_of_init_takes_capitals():
    assert _hardware(" CPU ") is Hardware.cpu
    with pytest.raises(typer.BadParameter, match="'tpu' is neither cpu nor gpu"):
        _hardware("tpu")


def test_bytes_of_standard_input_that_are_no_text_are_replaced():
    """A surrogate would end `play` in the tokenizer."""
    code = "from grpo_tui.tui.cli.output import prepare_streams; prepare_streams(); print(ascii(input()))"
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, input=b"a\xffb\n", capture_output=True)
    assert answer.stdout == b"'a\\ufffdb'\n"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ([], "image 96 104. colour at 60 40?<|end|><|assistant|>"),
        (
            ["environment.class_path=grpo_tui.envs.CalculatorEnv"],
            '{"name": "CALCULATE", "arguments": {"operation": "add", "a": 1, "b": 1}}',
        ),
    ],
)
def test_the_first_prompt_says_what_the_policy_does_not_know(settings: list[str], line: str):
    assert line in first_prompt(load_config(None, settings)).replace("<|user|>", "")


def test_the_folder_of_runs_may_stand_before_the_command(cli: Cli, tmp_path: Path) -> None:
    before, after = cli("--runs-dir", "elsewhere", "runs"), cli("runs", "--runs-dir", "elsewhere")
    assert before.returncode == after.returncode == 0
    assert before.stdout == after.stdout and "no runs in" in before.stdout and "elsewhere" in before.stdout


def test_where_the_app_opens_needs_a_terminal(cli: Cli) -> None:
    said = cli("inspect", "nothing", "--at", "3/2")
    assert said.returncode == 2 and "--at and --live open the app: they need a terminal" in said.stderr


def test_checking_a_configuration_loads_the_environment(cli: Cli, tmp_path: Path) -> None:
    good = cli("config", "check")
    assert good.returncode == 0 and ": valid (mode" in good.stdout
    missing = cli("config", "check", "--set", "environment.class_path=grpo_tui.engine.demonstration.visual.VisualEnw")
    assert missing.returncode == 2 and "environment.class_path: " in missing.stderr
    assert "has no class VisualEnw" in missing.stderr and "Traceback" not in missing.stderr
    (tmp_path / "mine.py").write_text("import nowhere_to_be_found\n")
    broken = cli("config", "check", "--set", "environment.class_path=mine.py:Mine")
    assert broken.returncode == 2 and "nowhere_to_be_found" in broken.stderr and "Traceback" not in broken.stderr


def test_live_says_when_nothing_is_recorded(cli: Cli, tmp_path: Path) -> None:
    said = cli("live")
    assert said.returncode == 2 and "needs a terminal" in said.stderr


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        *(("runs", closed) for closed in ("<&-", ">&-", "<&- >&- 2>&-")),
        ("config presets", "<&- >&- 2>&-"),
        *(pytest.param("config presets", closed, marks=pytest.mark.stress) for closed in ("<&-", ">&-")),
    ],
)
def test_closed_streams_are_no_error(command: str, closed: str, tmp_path: Path) -> None:
    words = f"{sys.executable} -m grpo_tui.tui.cli {command} {closed}"
    answer = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert bool(answer.stdout) == (">&-" not in closed)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("KeyboardInterrupt", 130, "interrupted"),
        ("PermissionError(13, 'Permission denied', 'runs')", 1, "runs cannot be used: Permission denied"),
        ("OSError(5, 'Input/output error')", 1, "a file cannot be used: Input/output error"),
        ("SystemExit(1)", 1, ""),
        ("SystemExit('no such thing')", 1, "no such thing"),
        ("BrokenPipeError", 0, ""),
        ("ValueError('a\\nb')", 1, "ValueError: a b; this is a bug in grpo-tui, details are in "),
    ],
)
def test_every_end_of_a_list_of_runs_is_a_line_and_an_exit_code(
    error: str, code: int, said: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, tempfile; tempfile.tempdir = '.'\n"
        "from grpo_tui.tui import entry\nfrom grpo_tui.tui.cli import run_table\n"
        f"def fails(*given): raise {error}\n"
        "run_table.list_runs = fails\nentry.main()"
    )
    for words in (["runs"], ["--runs-dir", ".", "runs"]):  # at once, and by the command line
        with forked_processes():
            answer = subprocess.run([sys.executable, program, *words], cwd=tmp_path, capture_output=True, text=True)
        assert answer.returncode == code
        assert answer.stderr.startswith(said if words == ["runs"] or code != 130 else "")
        assert answer.stderr.count("\n") <= 1


def test_the_app_does_not_open_on_a_terminal_that_cannot_show_it(tmp_path: Path) -> None:
    main, inner = pty.openpty()
    answer = subprocess.run(
        [sys.executable, "-m", "grpo_tui.tui.entry"],
        cwd=tmp_path,
        env={**os.environ, "TERM": "dumb"},
        stdin=inner,
        stdout=inner,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(inner)
    os.close(main)
    assert answer.returncode == 2 and "the app needs a terminal" in answer.stderr


def test_a_server_that_is_just_being_started_ends_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[Any]] = []
    start, before = subprocess.Popen, signal.getsignal(signal.SIGTERM)

    def signalled(*given: Any, **named: Any) -> subprocess.Popen[Any]:
        started.append(start(*given, **named))
        os.kill(os.getpid(), signal.SIGTERM)  # before its caller has it
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", signalled)
    assert rollouts._run([(["sleep", "60"], dict(os.environ))]) == 143
    assert [process.poll() for process in started] == [-signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_ends_the_servers_of_rollouts_serve(tmp_path: Path) -> None:
    server = tmp_path / "vllm"
    server.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    server.chmod(0o755)
    words = [sys.executable, "-m", "grpo_tui.tui.cli", "rollouts", "serve", "builtin:tiny"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    with subprocess.Popen(words, env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL) as command:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert command.poll() is None
            time.sleep(0.05)
        command.terminate()
        assert command.wait(30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
