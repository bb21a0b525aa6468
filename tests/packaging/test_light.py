"""`pip install grpo-tui` without extras: everything that looks at runs, nothing that people train with, and small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.together("packaging")
"""What the fixtures of these files make is made once, not by each worker."""

TRAINED_WITH = {"torch", "transformers", "trl", "peft", "accelerate", "datasets", "numpy", "pandas", "pyarrow", "wandb"}
LARGEST = 80_000_000
"""Bytes of the light form, installed, byte-code included."""
RECORD = Path(__file__).parents[1] / "cli" / "record.py"
DUMPS = Path(__file__).parents[1] / "engine" / "imports" / "peer_dumps"


def closure(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """All distributions that these requirements (without extras) pull in, as installed here."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(r) for r in requirements]
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extras = requirement.extras or {""}
        if name in found and not requirement.extras:
            continue
        found[name] = metadata.distribution(name)
        for line in found[name].requires or ():
            inner = Requirement(line)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(inner)
    return found


@pytest.fixture(scope="module")
def needed(wheel: Path) -> dict[str, metadata.Distribution]:
    """What the wheel needs without extras; read from the wheel, not from what is installed."""
    (info,) = metadata.distributions(path=[str(wheel)])
    plain = [line for line in info.requires or () if "extra ==" not in line]
    return closure([r for r in plain if (m := Requirement(r).marker) is None or m.evaluate()])


@pytest.fixture(scope="module")
def light(
    wheel: Path, needed: dict[str, metadata.Distribution], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An environment with the wheel and what it needs, each file linked to where it lies here: no network is used."""
    home = tmp_path_factory.mktemp("light")
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    for distribution in needed.values():
        for file in distribution.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                (site / file).symlink_to(str(distribution.locate_file(file)))
    python = ["--python", str(home / "bin" / "python")]
    install = [sys.executable, "-m", "pip", *python, "install", "--no-deps", "--no-index", str(wheel)]
    for command in (install, [sys.executable, "-m", "pip", *python, "check"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    made = "import sys, pathlib, record; record.record(pathlib.Path('runs'), 'first')"
    answer = inside(home, "python", "-c", made, PYTHONPATH=str(RECORD.parent))
    assert answer.returncode == 0, answer.stderr
    yield home


def variables(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GRPO_TUI", "VIRTUAL_ENV"))}
    return kept | {"XDG_CACHE_HOME": "cache"} | more


def inside(light: Path, command: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    program = [str(light / "bin" / command), *arguments]
    return subprocess.run(program, cwd=light, capture_output=True, text=True, env=variables(**more), timeout=120)


def test_nothing_that_people_train_with_comes_along(needed: dict[str, metadata.Distribution]):
    assert set(needed) & TRAINED_WITH == set()


def test_it_takes_at_most_80_megabytes(wheel: Path, light: Path, needed: dict[str, metadata.Distribution]):
    def size(distribution: metadata.Distribution) -> int:
        paths = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
        return sum(path.stat().st_size for path in paths if path.exists())

    site = next((light / "lib").glob("python*/site-packages"))
    own = sum(f.stat().st_size for f in (site / "grpo_tui").rglob("*") if f.is_file())
    sizes = {name: size(distribution) for name, distribution in needed.items()} | {"grpo-tui": own}
    assert sum(sizes.values()) <= LARGEST, sorted(sizes.items(), key=lambda item: -item[1])[:8]


def test_the_commands_work_where_nothing_else_of_this_repository_is(light: Path):
    answer = inside(light, "python", "-c", "import grpo_tui.tui as t; print(t.__file__)")
    assert str(light) in answer.stdout, answer.stderr
    assert "inspect" in inside(light, "grpo-tui", "--help").stdout
    answer = inside(light, "grpo-tui", "config", "check", "qwen3_0.6b")
    assert answer.returncode == 0 and ": valid (" in answer.stdout, answer.stderr


def test_runs_are_listed_and_read(light: Path):
    listed = inside(light, "grpo-tui", "runs")
    assert listed.returncode == 0 and "first" in listed.stdout, listed.stderr
    found = inside(light, "grpo-tui", "inspect", "first", "--filter", "penalty:missing_prerequisite", "--json")
    assert found.returncode == 0 and len(found.stdout.splitlines()) == 4, found.stderr


def test_what_another_framework_wrote_is_read(light: Path):
    dump = DUMPS / "verl" / "rollout" / "1.jsonl"
    found = inside(light, "grpo-tui", "inspect", str(dump), "--filter", "reward>-9", "--json")
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == len(dump.read_text().splitlines())
    parquet = inside(light, "grpo-tui", "inspect", str(DUMPS / "trl"))
    assert "pip install 'grpo-tui[parquet]'" in parquet.stdout + parquet.stderr and "Traceback" not in parquet.stderr


def test_the_app_opens_a_run(light: Path):
    command = [str(light / "bin" / "grpo-tui"), "inspect", "first"]
    with Terminal(command, cwd=light, env=variables()) as terminal:
        terminal.see("READ_TEXT")
        terminal.press("q")
        assert terminal.wait() == 0


@pytest.mark.parametrize("command", [["train"], ["train", "--headless"], ["online"]])
def test_a_command_that_trains_says_how_to_get_the_trainer(light: Path, command: list[str]):
    answer = inside(light, "grpo-tui", *command)
    assert answer.returncode == 2 and answer.stderr.count("\n") == 1, answer.stderr
    assert "pip install 'grpo-tui[train]'" in answer.stderr
    assert [p.name for p in (light / "runs").iterdir()] == ["first"]


def test_what_needs_a_further_library_names_it(light: Path):
    answer = inside(light, "grpo-tui", "export", "first", "--out", "x.parquet", "--format", "parquet")
    assert answer.returncode == 1 and "pip install pyarrow" in answer.stderr
    assert not (light / "x.parquet").exists()


def test_a_look_at_data_or_a_model_names_the_trainer(light: Path):
    (light / "data.jsonl").write_text('{"prompt": "a"}\n')
    for command in (["data", "show", "data.jsonl"], ["init", "--dataset", "data.jsonl"], ["doctor", "--model", "x/y"]):
        answer = inside(light, "grpo-tui", *command)
        assert answer.returncode == 2 and answer.stderr.count("\n") == 1
        assert "this needs the trainer" in answer.stderr and "pip install 'grpo-tui[train]'" in answer.stderr


def test_doctor_says_that_the_trainer_is_not_here(light: Path):
    answer = inside(light, "grpo-tui", "doctor")
    assert answer.returncode == 1 and "pip install 'grpo-tui[train]'" in answer.stdout
    assert "textual" in answer.stdout and "torch does not load" not in answer.stdout
