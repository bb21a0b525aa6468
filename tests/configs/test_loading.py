"""Reading a configuration: defaults, files, presets and `--set`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_tui.configs.errors import ConfigError
from grpo_tui.configs.expectations import section_of, walk
from grpo_tui.configs.loading import DEFAULT_PATH, load_config, presets, read_source, validate
from grpo_tui.configs.schema import RunConfig
from grpo_tui.configs.writing import to_yaml
from grpo_tui.configs.yaml_source import parse_value, parse_yaml


def test_training_params_yaml_holds_exactly_the_schemas_defaults():
    assert load_config(DEFAULT_PATH) == RunConfig()


def test_training_params_yaml_writes_out_every_key_with_a_comment():
    written = parse_yaml(DEFAULT_PATH.read_text(), "training_params.yaml")
    keys = [path for path, field in walk(RunConfig) if section_of(field.annotation) is None]
    assert [k for k in keys if k not in written.places] == []
    lines = DEFAULT_PATH.read_text().splitlines()
    for key in keys:
        line = int(written.places[key].rpartition(":")[2])
        assert lines[line - 2].lstrip().startswith("#"), f"{'.'.join(key)} has no comment above it"


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_loads(name: str):
    assert (load_config(name) == RunConfig()) is (name == "tiny")


def test_the_users_file_goes_over_the_defaults_and_set_over_the_file(tmp_path: Path):
    file = tmp_path / "my.yaml"
    file.write_text("training:\n  max_steps: 7\n  beta: 0.5\n")
    config = validate(read_source(file, ["training.beta=0.25", "name=first"], {"mode": ("--mode", "sft")}))
    assert (config.training.max_steps, config.training.beta, config.name, config.mode) == (7, 0.25, "first", "sft")
    assert config.training.num_generations == RunConfig().training.num_generations


def test_set_takes_any_yaml_value():
    config = load_config(
        None,
        [
            "model.lora.target_modules=[q_proj, v_proj]",
            "environment.config.size=64",
            "model.sft_adapters=null",
            "training.learning_rate=1e-4",
        ],
    )
    assert config.model.lora is not None and config.model.lora.target_modules == ["q_proj", "v_proj"]
    assert config.environment.config == {"size": 64}
    assert config.model.sft_adapters is None
    assert config.training.learning_rate == 1e-4


def test_a_later_set_wins_over_an_earlier_one():
    assert load_config(None, ["seed=1", "seed=2"]).seed == 2


def test_an_empty_file_is_the_default(tmp_path: Path):
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing yet\n")
    assert load_config(file) == RunConfig()


def test_what_is_written_reads_back_equal(tmp_path: Path):
    config = load_config("qwen3_0.6b", ["environment.config={a: [1, {b: off}], 'x y': 1e-7}", "name='a: b # c'"])
    for comments in (False, True):
        file = tmp_path / f"{comments}.yaml"
        file.write_text(to_yaml(config, comments=comments))
        assert load_config(file) == config


VALUES = st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.booleans() | st.text(max_size=30)


@example(["1e3", "a\x85b\u2028 c\n\n d\x1b", "08", "off", 1e-7])
@given(st.lists(VALUES, min_size=10, max_size=50))
@settings(max_examples=10)  # a whole configuration is written for each
def test_any_value_in_a_free_dictionary_survives_writing_and_reading(values: list[object]):
    given = {f"key {i}": value for i, value in enumerate(values)}
    config = RunConfig.model_validate({"environment": {"config": given}})
    read = parse_yaml(to_yaml(config), "x").data["environment"]["config"]
    assert read == given
    assert [type(value) for value in read.values()] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("1e-3", 1e-3),
        ("-2", -2),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("010", "010"),
        ("", None),
        ("~", None),
        ("'1'", "1"),
        (".5", 0.5),
        ("-.inf", float("-inf")),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object):
    assert parse_value(text) == value and type(parse_value(text)) is type(value)


def test_a_document_whose_aliases_multiply_is_refused():
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for previous, name in zip("abcdef", "bcdefg", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{previous}'] * 9)}]\n"
    with pytest.raises(ConfigError, match="alias"):
        parse_yaml(bomb, "bomb.yaml")


@pytest.mark.parametrize(("environment", "weight"), [("chat.ChatEnv", 0.0), ("visual.VisualEnv", 0.01)])
def test_conversations_have_no_curiosity_unless_a_weight_is_set(environment: str, weight: float):
    class_path = f"environment.class_path=grpo_tui.envs.{environment}"
    rewards = load_config(overrides=[class_path]).rewards
    assert (rewards.w_curiosity, rewards.w_coherence) == (weight, weight)
    assert rewards.needs_embeddings == bool(weight)
    assert load_config(overrides=[class_path, "rewards.w_curiosity=0.2"]).rewards.w_curiosity == 0.2


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("Answer after #### ", "Answer after ####"),
        ("#### and the number", "#### and the number"),
        ("Think.\nThen answer.", "Think.\nThen answer."),
        ("'a # b'", "a # b"),
        ("|\n  a # b\n", "a # b\n"),
        ("null", None),
        ("", None),
    ],
)
def test_a_text_by_set_is_what_was_written(written: str, text: str | None):
    options = ["data.source=owner/name", "data.answer=answer"]
    assert load_config(None, [*options, f"data.system_prompt={written}"]).data.system_prompt == text


@pytest.mark.parametrize("value", ["!!timestamp 2026-01-01", "!!binary aGVsbG8=", "[" * 600 + "]" * 600])
def test_yaml_that_is_no_plain_data_is_refused_with_its_place(value: str, tmp_path: Path):
    file = tmp_path / "my.yaml"
    file.write_text(f"environment: {{config: {{x: {value}}}}}\n")
    for source, options in ((file, []), (None, [f"environment.config.x={value}"])):
        with pytest.raises(ConfigError, match="my.yaml" if source else "--set"):
            load_config(source, options)
