"""Other names for keys, and formats of one's own: on the command line, in a person's settings, as an entry point."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.tui.cli.main import run

MINE = '''
"""My own log."""
from grpo_tui.engine.imports.rollout import Message, Rollout

name = "my log"
unknown = {"advantage": "I never kept it"}

def detect(document, origin):
    return "said" in document

def open(document, origin):
    yield Rollout(completion=(Message("assistant", document["said"]),), reward=document["won"], step=origin.step)
'''


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "step_4.jsonl"
    file.write_text('{"said": "left", "won": 1}\n{"said": "right", "won": 0.25}\n')
    return file


def rows(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run(["inspect", *arguments, "--filter", "", "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_keys_are_mapped_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "odd.jsonl"
    lines = [
        {"q": "2+2?", "said": "4", "points": 3.5, "who": "a"},
        {"q": "2+2?", "said": "5", "points": -1, "who": "a"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    maps = ["reward=points", "group=who", "prompt=q", "completion=said"]
    found = rows([str(file), *(part for m in maps for part in ("--map", m))], capsys)
    assert [r["reward"] for r in found] == [3.5, -1.0] and {r["group"] for r in found} == {"a"}
    assert run(["inspect", str(file), "--map", "price=points", "--json"]) != 0
    assert "ROLE one of" in capsys.readouterr().err


def test_an_importer_is_named_on_the_command_line(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    found = rows([str(log), "--importer", str(tmp_path / "mine.py")], capsys)
    assert [(r["reward"], r["step"]) for r in found] == [(1.0, 4), (0.25, 4)]


def test_an_importer_is_named_in_a_persons_settings(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings" / "grpo-tui"
    settings.mkdir(parents=True)
    (settings / "mine.py").write_text(MINE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings.parent))
    (settings / "config.yaml").write_text("importers: [mine.py]\n")
    assert [r["reward"] for r in rows([str(log)], capsys)] == [1.0, 0.25]
    (settings / "config.yaml").write_text("importer: [mine.py]\n")
    assert run(["inspect", str(log), "--json"]) == 2
    assert "nearest valid key: importers" in capsys.readouterr().err


def test_an_importer_is_an_entry_point_of_an_installed_package(log: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    about = site / "my_log-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "my_log.py").write_text(MINE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-log\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[grpo_tui.importers]\nmine = my_log\n")
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r}); from grpo_tui.tui.cli.main import run; "
        f"sys.exit(run(['inspect', {str(log)!r}, '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["run"]["facts"]["formats"] == {"my log": 2}


TYPO = "def detect(document, origin): return documnet\ndef open(document, origin): return []\n"


@pytest.mark.parametrize(
    "code", ["def detect(document, origin): return True\n", "raise OSError('no')\n", "def (", TYPO]
)
def test_an_importer_that_cannot_be_used_is_one_sentence(
    code: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text(code)
    assert run(["inspect", str(log), "--importer", str(tmp_path / "bad.py"), "--json"]) != 0
    said = capsys.readouterr().err
    assert (
        ("bad.py" in said or "'documnet' is not defined" in said)
        and "Traceback" not in said
        and len(said.strip().splitlines()) == 1
    )


def test_a_command_that_is_printed_names_the_keys_as_this_one_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"q": f"q{i // 4}", "a": f"a{i}", "points": 5.0}) + "\n" for i in range(40)))
    maps = ["--map=prompt=q", "--map=completion=a", "--map=reward=points"]
    assert run(["check", str(file), *maps]) == 1
    printed = next(line for line in capsys.readouterr().out.splitlines() if "--trajectory" in line)
    assert run(shlex.split(printed)[1:]) == 0 and "a0" in capsys.readouterr().out
