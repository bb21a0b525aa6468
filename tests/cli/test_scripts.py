"""What scripts read of a recorded run: JSON, filters, exports, reports; nothing in them steers a terminal."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.tui.cli.inspect import _place
from grpo_tui.tui.cli.output import CliError

from .conftest import Cli
from .record import HOSTILE, record, trajectory

RUN = "1120-0949-test"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return record(tmp_path / "runs")


def test_runs_json_is_one_object_a_line(cli: Cli, recorded: Path, tmp_path: Path):
    record(tmp_path / "runs", "1120-0950-more")
    lines = cli("runs", "--json").stdout.splitlines()
    runs = [json.loads(line) for line in lines]
    assert {r["id"] for r in runs} == {RUN, "1120-0950-more"}
    assert all(r["status"] == "finished" and r["step"] == 3 and r["reward"] == pytest.approx(0.3) for r in runs)


def test_runs_prints_a_table(cli: Cli, recorded: Path):
    head, row = cli("runs").stdout.splitlines()
    assert head.split()[:4] == ["run", "status", "mode", "environment"]
    assert row.split()[:6] == [RUN, "finished", "rft", "VisualEnv", "builtin:tiny", "3/3"]


def test_runs_dir_and_the_environment_say_where_runs_live(cli: Cli, recorded: Path, tmp_path: Path):
    record(tmp_path / "elsewhere" / "runs", "elsewhere")
    assert "elsewhere" in cli("runs", GRPO_TUI_HOME=str(tmp_path / "elsewhere")).stdout
    assert "elsewhere" in cli("runs", "--runs-dir", "elsewhere/runs").stdout
    assert RUN in cli("runs", "--runs-dir", "runs", GRPO_TUI_HOME=str(tmp_path / "elsewhere")).stdout


@pytest.mark.parametrize("reference", [RUN, "1120-0949", "latest"])
def test_a_run_goes_by_its_id_a_unique_beginning_or_latest(cli: Cli, recorded: Path, reference: str):
    assert json.loads(cli("inspect", reference, "--json").stdout)["run"]["id"] == RUN


def test_inspect_json_has_the_run_its_last_values_and_its_findings(cli: Cli, recorded: Path):
    data = json.loads(cli("inspect", RUN, "--json").stdout)
    assert data["trajectories"] == 12
    assert data["latest"]["rewards/total/mean"] == pytest.approx(0.3)
    assert data["alerts"][0]["data"]["trajectories"] == ["t0"]
    assert data["evaluations"][0]["data"]["greedy"] == 0.75


def test_one_trajectory_as_json_is_what_was_recorded(cli: Cli, recorded: Path):
    data = json.loads(cli("inspect", RUN, "--trajectory", "t3", "--json").stdout)
    expected = trajectory(3)
    assert data["trajectory"] == json.loads(json.dumps(expected.trajectory.to_json()))
    assert data["breakdown"]["steps"][1]["penalties"][0]["right"] == "Call SEGMENT_OBJECT_AT first."
    assert data["advantage"] == pytest.approx(0.3)


def test_one_trajectory_as_text_explains_the_penalty(cli: Cli, recorded: Path):
    text = cli("inspect", RUN, "--trajectory", "t3").stdout
    for expected in (
        "✗ missing prerequisite",
        "GET_PROPERTIES(mask=7): no mask 7 exists here.",
        "saw:   mask 7, masks none",
        "limit: a mask that exists",
        "right: Call SEGMENT_OBJECT_AT first.",
    ):
        assert expected in text


def test_a_filter_gives_the_matching_rows_one_a_line(cli: Cli, recorded: Path):
    answer = cli("inspect", RUN, "--filter", "penalty:missing_prerequisite and step>1", "--json")
    assert [json.loads(line)["id"] for line in answer.stdout.splitlines()] == ["t6", "t9"]
    assert len(cli("inspect", RUN, "--filter", "", "--json", "--limit", "5").stdout.splitlines()) == 5
    assert len(cli("inspect", RUN, "--search", "SALE").stdout.splitlines()) == 12


def test_a_wrong_filter_is_one_line_with_what_would_be_right(cli: Cli, recorded: Path):
    answer = cli("inspect", RUN, "--filter", "rewrd<0.2")
    assert answer.returncode == 2
    assert "reward" in answer.stderr and answer.stderr.count("\n") == 1


def test_a_trajectory_that_is_not_there_is_exit_code_3(cli: Cli, recorded: Path):
    answer = cli("inspect", RUN, "--trajectory", "t99", "--json")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert "t99" in answer.stderr


@pytest.mark.parametrize(
    "arguments", [["--json"], ["--trajectory", "t3"], ["--trajectory", "t3", "--json"], ["--filter", ""], []]
)
def test_nothing_that_a_model_wrote_reaches_the_terminal_as_more_than_text(
    cli: Cli, recorded: Path, arguments: list[str]
):
    answer = cli("inspect", RUN, *arguments)
    assert answer.returncode == 0
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e]", answer.stdout + answer.stderr) == []
    if "t3" in arguments:
        assert "[/red][link=x]" in answer.stdout


def test_export_to_jsonl_holds_every_trajectory_whole(cli: Cli, recorded: Path, tmp_path: Path):
    answer = cli("export", RUN, "--format", "jsonl", "--out", "all.jsonl")
    assert answer.stdout == "wrote 12 trajectories to all.jsonl\n"
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [r["n"] for r in rows] == list(range(1, 13))
    assert rows[3]["trajectory"]["steps"][1]["observation"] == HOSTILE


def test_export_to_parquet_reads_back(cli: Cli, recorded: Path, tmp_path: Path):
    answer = cli("export", RUN, "--format", "parquet", "--out", "some.parquet", "--filter", "penalised")
    assert answer.returncode == 0, answer.stderr
    table = pq.read_table(tmp_path / "some.parquet")
    assert table.column("id").to_pylist() == ["t0", "t3", "t6", "t9"]
    assert table.column("penalties").to_pylist() == [["missing_prerequisite"]] * 4
    assert json.loads(table.column("steps")[1].as_py())[1]["observation"] == HOSTILE


def test_an_export_that_fails_leaves_no_half_file(cli: Cli, recorded: Path, tmp_path: Path):
    assert cli("export", RUN, "--out", "x.jsonl", "--filter", "nonsense(").returncode == 2
    assert cli("export", RUN, "--out", "no/such/x.jsonl").returncode == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_a_report_is_one_file_that_fetches_nothing(cli: Cli, recorded: Path, tmp_path: Path, kind: str):
    answer = cli("inspect", RUN, "--report", f"out.{kind}")
    assert answer.returncode == 0, answer.stderr
    text = (tmp_path / f"out.{kind}").read_text()
    assert "<svg" in text
    assert text.count("<script") == (2 if kind == "html" else 0), "its data and its own code"
    assert RUN in text
    assert "url(http" not in text and "src=" not in text and "href=" not in text
    if kind == "html":
        assert "rewards/total/mean" in text and "greedy 0.75" in text


def test_a_report_of_another_kind_is_refused(cli: Cli, recorded: Path):
    answer = cli("inspect", RUN, "--report", "out.pdf")
    assert answer.returncode == 2 and ".html or .svg" in answer.stderr


def test_stopping_a_run_that_has_ended_says_so(cli: Cli, recorded: Path):
    answer = cli("stop", RUN)
    assert answer.returncode == 0
    assert "not running" in answer.stdout


@pytest.mark.parametrize("command", ["inspect", "check", "rescore", "train --resume"])
def test_the_shell_completes_the_ids_of_runs(cli: Cli, recorded: Path, command: str):
    words = f"grpo-tui {command} 11"
    answer = cli(_GRPO_TUI_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert RUN in answer.stdout.split()


def test_the_app_opens_at_no_step_that_is_not_there(recorded: Path):
    with RunReader(recorded) as reader:
        assert _place(reader, "1/2") == (1, 1)
        with pytest.raises(CliError, match="--at: rollout 1 has 2 steps, and no step 9"):
            _place(reader, "1/9")


def test_an_export_to_a_folder_asks_for_another_name(cli: Cli, recorded: Path):
    assert cli("export", RUN, "--out", ".").stderr == ". already exists; choose another\n"


def test_a_printed_command_finds_the_run_of_another_folder(cli: Cli, recorded: Path, tmp_path: Path):
    away = record(tmp_path / "two words", "away")
    assert f"grpo-tui inspect {RUN} --filter" in cli("inspect", RUN).stdout
    printed = cli("inspect", "away", "--runs-dir", "two words").stdout.splitlines()[-1]
    assert f"grpo-tui inspect '{away}' --filter" in printed
    command = shlex.split(printed.split("grpo-tui ")[1].rpartition(", then")[0])
    assert cli(*command, "--limit", "1").stdout.count("reward") == 1


@pytest.mark.parametrize("mode", ["play", "recorded"])
def test_only_a_run_that_can_be_resumed_names_a_command_for_it(cli: Cli, recorded: Path, mode: str):
    facts = json.loads((recorded / "run.json").read_bytes())
    (recorded / "run.json").write_text(json.dumps({**facts, "mode": mode}), encoding="utf-8")
    assert look(recorded).resume_command == ""
    answer = cli("train", "--resume", RUN)
    assert answer.returncode == 2 and f"has mode {mode} and cannot be resumed" in answer.stderr
