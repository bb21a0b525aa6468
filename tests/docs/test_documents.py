"""What the documents tell people to type works, and what they point to is there."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_tui.configs.expectations import walk
from grpo_tui.configs.schema import RunConfig
from tests.cli.record import record
from tests.forked import forked_processes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"```python\n# file: (\S+)\n(.*?)```", re.S)
INLINE = re.compile(r"`((?:make|grpo-tui) [^`\n]*)`")
BLOCK = re.compile(r"```(?:sh|bash|console)\n(.*?)```", re.S)


def commands(program: str) -> list[tuple[str, str]]:
    """Every command line of a program in the pages, in sentences and in blocks; what stands behind `#` is a note."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
        lines += [
            part for line in INLINE.findall(re.sub(r"```.*?```", "", text, flags=re.S)) for part in line.split(", `")
        ]
        found += [(page.name, line.split("  #")[0].strip()) for line in lines if re.match(rf"\s*{program} ", line)]
    return sorted(set(found))


@functools.cache
def program() -> Any:
    """The program's commands and options."""
    import typer

    from grpo_tui.tui.cli.main import command_line

    return typer.main.get_command(command_line())


@pytest.mark.parametrize(("page", "line"), commands("grpo-tui"))
def test_a_command_of_the_documents_is_one_that_the_program_takes(page: str, line: str):
    """Its words and options are parsed by the program itself; nothing is started."""
    words = shlex.split(line.replace("\\|", "|").split(" | ")[0].rstrip("&; "))[1:]
    group = program()
    if words[0].startswith("--") or words[0] == "…":
        return
    name, rest = words[0], words[1:]
    assert name in group.commands, f"{page}: there is no command {name!r}"
    command = group.commands[name]
    if hasattr(command, "commands"):
        assert rest and rest[0] in command.commands, f"{page}: {line}"
        command, rest = command.commands[rest[0]], rest[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help"}
    given = {word.split("=")[0] for word in rest if word.startswith("--")}
    assert given <= known, f"{page}: {line} has {sorted(given - known)}"


VIEWING = re.compile(r"grpo-tui (runs|export|repair RUN|inspect RUN .*--(json|report))")


@pytest.mark.parametrize("line", sorted({line for _, line in commands("grpo-tui") if VIEWING.match(line)}))
def test_what_looks_at_a_run_does_it_as_the_documents_write_it(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from grpo_tui.tui.cli.main import command_line

    monkeypatch.chdir(tmp_path)
    record(tmp_path / "runs", "mine")
    words = shlex.split(line.replace("\\|", "|").split(" | ")[0].replace("RUN", "mine"))[1:]
    done = CliRunner().invoke(command_line(), words)
    assert done.exit_code == 0, f"{line}: {done.output}"
    made = {path.suffix for path in tmp_path.iterdir()} - {""}
    assert done.stdout.strip() or made, f"{line} says nothing"
    if "export" in words:
        assert made == {".parquet" if "parquet" in words else ".jsonl"}
    if "--report" in words:
        assert made == {Path(words[words.index("--report") + 1]).suffix}


@pytest.mark.parametrize(("page", "line"), commands("make"))
def test_a_target_of_the_documents_is_in_the_makefile(page: str, line: str):
    targets = re.findall(r"^([a-z0-9-]+(?: [a-z0-9-]+)*):", (ROOT / "Makefile").read_text(), re.M)
    known = {name for group in targets for name in group.split()}
    wanted = {word for word in shlex.split(line)[1:] if "=" not in word}
    assert wanted <= known, f"{page}: {line}"


def test_links_lead_to_files_that_are_there():
    missing = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{page.name}: {target}")
    assert missing == []


def test_no_file_cites_a_document_that_is_not_here():
    known = {p.name for p in ROOT.rglob("*.md") if ".venv" not in p.parts}
    wrong = []
    for room in ("api", "configs", "envs", "rewards", "engine", "tui", "docs"):
        for path in (ROOT / room).rglob("*"):
            if path.suffix in (".py", ".md", ".yaml"):
                cited = re.findall(r"`(?:[\w/.-]*/)?([\w-]+\.md)", path.read_text(encoding="utf-8"))
                wrong += [f"{path.relative_to(ROOT)}: {name}" for name in cited if name not in known]
    assert wrong == []


def examples() -> dict[str, str]:
    """The files that CONTRIBUTING.md shows, by name."""
    return dict(CODE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, code in examples().items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_of_contributing_check(folder: Path):
    from grpo_tui.tui.cli.main import command_line

    lines = [line for page, line in commands("grpo-tui") if page == "CONTRIBUTING.md" and "config check" in line]
    assert len(lines) == 4
    with forked_processes():
        for line in lines:
            answer = CliRunner().invoke(command_line(), shlex.split(line)[1:])
            assert answer.exit_code == 0, answer.output


def test_the_rule_of_contributing_gives_its_penalty(folder: Path):
    code = """
from grpo_tui.envs.trajectory import Step, StepContext, Trajectory
from too_many_zooms import TooManyZooms
steps = tuple(Step(i, "", action="ZOOM_IN", context=StepContext("image")) for i in range(5))
episode = Trajectory("t", "env", "p", "g", 0, "?", steps)
rule = TooManyZooms()
found = [rule.check(episode, step) for step in steps]
assert [p is not None for p in found] == [False, False, False, True, True], found
assert found[3].amount == -0.05 and found[3].why == "Zoomed 4 times."
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_the_advantage_method_of_contributing_is_found_and_computes(folder: Path):
    from grpo_tui.engine.rollouts.advantages import advantage_method
    from grpo_tui.rewards.advantages.base import Returns

    method = advantage_method("halves.py:Halves")
    assert method.returns(Returns([1.0, 2.0, 4.0])) == [3.0, 2.0, 1.0]


def test_the_loss_of_contributing_is_found_and_computes(folder: Path):
    import torch

    from grpo_tui.engine.training.losses import LossInputs, own_loss

    loss = own_loss("clipped.py:clipped")
    assert loss is not None
    old = torch.zeros(1, 2)
    now = torch.tensor([[0.0, 1.0]])  # ratios 1 and e: the second is clipped at 1.2
    inputs = LossInputs(now, old, torch.full((1, 2), 2.0), torch.zeros(1, 2), torch.ones(1, 2))
    torch.testing.assert_close(loss(inputs), torch.tensor([[-2.0, -2.4]]))


YAML = re.compile(r"```yaml\n(.*?)```", re.S)


@pytest.mark.parametrize(
    ("page", "text"), [(page.name, text) for page in PAGES for text in YAML.findall(page.read_text(encoding="utf-8"))]
)
def test_a_configuration_of_the_documents_is_one_that_the_program_takes(page: str, text: str, tmp_path: Path):
    from grpo_tui.configs.loading import load_config

    (tmp_path / "example.yaml").write_text(text)
    load_config(tmp_path / "example.yaml")


def test_every_file_that_the_architecture_names_is_there():
    """Named from the root, or from a folder that the page is about."""
    pages = [ROOT / "docs" / "ARCHITECTURE.md", *(ROOT / "docs" / "architecture").glob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    rooms = ("api", "configs", "envs", "rewards", "engine", "tui", "benchmarks", "tests", "docs")
    known = [p.relative_to(ROOT).as_posix() for room in rooms for p in (ROOT / room).rglob("*.py")]
    named = set(re.findall(r"`(?:python )?((?:[\w-]+/)*[\w-]+\.py)`", text))
    assert len(named) > 60
    assert sorted(n for n in named if not any(f"/{path}".endswith(f"/{n}") for path in known)) == []


def test_every_setting_that_a_page_names_exists():
    """In forms such as `training.beta`, `rewards.w_penalty: 0.2` and `--set training.beta=0`."""
    known = {".".join(path) for path, _ in walk(RunConfig)} | {"training.reward"}  # a key of spans that importers read
    sections = {name.split(".")[0] for name in known}
    unknown = []
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # it names settings that are gone
            continue
        for name in re.findall(r"(?:`|--set '?)([a-z]+(?:\.[a-z_0-9]+)+)[=:`]", page.read_text(encoding="utf-8")):
            parts = name.split(".")
            in_mapping = any(".".join(parts[:n]) in known for n in range(2, len(parts)))  # environment.config.workers
            module = ROOT.joinpath(*parts)
            is_file = parts[-1] == "py" or module.is_dir() or module.with_suffix(".py").exists()
            if parts[0] in sections and name not in known and not in_mapping and not is_file:
                unknown.append(f"{page.name}: {name}")
    assert unknown == []
