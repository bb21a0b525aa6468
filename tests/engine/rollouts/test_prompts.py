"""Prompts as the policy reads them: counted and checked with the tools that their environment tells it of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_tui.configs.schema import RunConfig
from grpo_tui.configs.sections import TrainingConfig
from grpo_tui.engine.agents.scripted import ScriptedAgent
from grpo_tui.engine.policy.sources import load_tokenizer
from grpo_tui.engine.rollouts import prompts
from grpo_tui.engine.rollouts.dataset import load_rows
from grpo_tui.engine.rollouts.prompts import fitting
from grpo_tui.engine.rollouts.runner import DataError, RolloutRunner
from grpo_tui.engine.training.previews import first_prompt, rows_of

TOOL = '''
def search(query: str, most: int = 5) -> str:
    """
    Search all notes that were ever written.

    Args:
        query: What to look for.
        most: How many at most.
    """
    return "nothing"
'''
SHOWS_TOOLS = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DROPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
)


def configured(folder: Path, template: str | None = None, tools: bool = True) -> RunConfig:
    rows = [{"question": f"what is {i}?"} for i in range(20)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tools.py").write_text(TOOL)
    given: dict[str, object] = {"base": "builtin:tiny", "device": "cpu"}
    if template is not None:
        (folder / "template.jinja").write_text(template)
        given |= {"chat_template": str(folder / "template.jinja"), "tool_calls": "native"}
    environment = {"tools": [f"{folder / 'tools.py'}:search"]} if tools else {}
    return RunConfig.model_validate(
        {"mode": "sft", "model": given, "data": {"source": str(folder / "data.jsonl")}, "environment": environment}
    )


def tokens_told(config: RunConfig) -> int:
    """Of the first row."""
    line = next(line for line in rows_of(config, 1, True) if line.startswith("row "))
    return int(line.split(", ")[1].split()[0])


@pytest.mark.parametrize(
    ("template", "said"),
    [(None, "search(query: string, What to look for."), (SHOWS_TOOLS, '<tools>[{"')],
)
def test_data_show_counts_and_prints_the_tools_as_the_policy_reads_them(
    tmp_path: Path, template: str | None, said: str
):
    config = configured(tmp_path, template)
    lines = "\n".join(rows_of(config, 1, True))
    assert said in lines
    assert tokens_told(config) > tokens_told(configured(tmp_path, template, tools=False)) + 20
    tokenizer = load_tokenizer(config.model)
    assert tokens_told(config) == len(tokenizer.encode(first_prompt(config), add_special_tokens=False))


def test_rows_that_leave_too_little_room_are_listed(tmp_path: Path):
    config = configured(tmp_path, tools=False)
    config.data.prompt_template = "{question} Be brief."
    size = tokens_told(config)
    config.training.max_trajectory_tokens = size + config.training.max_turn_tokens - 1
    lines = "\n".join(rows_of(config, 1, True))
    assert "Be brief.<|end|><|assistant|>" in lines
    assert f"leave less room than training.max_turn_tokens ({config.training.max_turn_tokens})" in lines
    config.training.max_trajectory_tokens = size
    last = list(rows_of(config, 1, True))[-1]
    assert f"leave no room for an answer within training.max_trajectory_tokens ({size})" in last


@pytest.mark.parametrize("template", [None, SHOWS_TOOLS])
def test_a_prompt_that_only_its_tools_make_too_long_is_refused_before_training(tmp_path: Path, template: str | None):
    config = configured(tmp_path, template)
    tokenizer = load_tokenizer(config.model)
    policy = ScriptedAgent([["x"]], tokenizer, knows=lambda environment: False, native_calls=True)
    rows = load_rows(config.environment, "train", 0, tokenizer, config.data)
    environment = RolloutRunner(policy, tokenizer, 1).environment
    plain = configured(tmp_path, template, tools=False)
    room = tokens_told(plain) + 8
    limits = TrainingConfig(max_trajectory_tokens=room, max_turn_tokens=4)
    with pytest.raises(
        DataError, match=f"the prompt has [0-9]+ tokens, but a prompt with its answer may have at most {room}"
    ):
        fitting(rows, policy, environment, limits, "stop")
    rows = load_rows(plain.environment, "train", 0, tokenizer, plain.data)
    assert fitting(rows, policy, environment, limits, "stop") == rows


def test_long_prompts_are_dropped_however_long_counting_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A resumed run has the same rows, also on a busy machine."""
    monkeypatch.setattr(prompts, "CHECK_SECONDS", -1.0)
    config = configured(tmp_path, tools=False)
    questions = ["short", "long " * 100, "brief", "longer " * 100]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"question": text}) + "\n" for text in questions))
    config.environment.eval_tasks = 0
    tokenizer = load_tokenizer(config.model)
    policy = ScriptedAgent([["x"]], tokenizer, knows=lambda environment: False)
    rows = load_rows(config.environment, "train", 0, tokenizer, config.data)
    limits = TrainingConfig(max_trajectory_tokens=64, max_turn_tokens=4)
    kept = fitting(rows, policy, RolloutRunner(policy, tokenizer, 1).environment, limits, "drop")
    assert [row.task_data["row"] for row in kept] == [1, 3]


def test_a_template_that_drops_what_is_said_of_the_tools_is_refused(tmp_path: Path):
    config = configured(tmp_path, DROPS_SYSTEM)
    tokenizer = load_tokenizer(config.model)
    policy = ScriptedAgent([["x"]], tokenizer, knows=lambda environment: False)
    rows = load_rows(config.environment, "train", 0, tokenizer, config.data)
    with pytest.raises(DataError, match="drops the system message in which the tools are explained"):
        fitting(rows, policy, RolloutRunner(policy, tokenizer, 1).environment, TrainingConfig(), "stop")


ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate!') }}"
    "{% endif %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
)


@pytest.mark.parametrize(
    ("template", "roles", "said"),
    [
        (DROPS_SYSTEM, ("system", "user"), "the model's chat template drops the system's message"),
        (ALTERNATES, ("user", "user"), r"the chat template rejected the conversation \(alternate!\)"),
    ],
)
def test_a_later_row_that_the_template_drops_or_rejects_is_named(
    tmp_path: Path, template: str, roles: tuple[str, ...], said: str
):
    config = configured(tmp_path, template, tools=False)
    conversations = [[{"role": role, "content": f"{role} {i}"} for i, role in enumerate(r)] for r in (["user"], roles)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"prompt": c}) + "\n" for c in conversations))
    config.environment.eval_tasks = 0
    tokenizer = load_tokenizer(config.model)
    policy = ScriptedAgent([["x"]], tokenizer)
    rows = load_rows(config.environment, "train", 0, tokenizer, config.data)
    with pytest.raises(DataError, match=f"row 2 of the data: {said}"):
        fitting(rows, policy, RolloutRunner(policy, tokenizer, 1).environment, TrainingConfig(), "stop")
    if template == ALTERNATES:
        with pytest.raises(DataError, match=f"row 2 of the data: {said}"):
            list(rows_of(config, 1, True))
