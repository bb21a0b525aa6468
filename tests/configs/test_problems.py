"""What a person is told about a wrong configuration: file, line, key, what would be right, the nearest valid key."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_tui.configs.errors import ConfigError, Problem
from grpo_tui.configs.expectations import walk
from grpo_tui.configs.explain import ELSEWHERE
from grpo_tui.configs.loading import load_config
from grpo_tui.configs.schema import RunConfig


def problems_of(tmp_path: Path, text: str, *overrides: str) -> dict[str, Problem]:
    file = tmp_path / "my.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    return {p.key: p for p in caught.value.problems}


def line(problem: Problem) -> int:
    return int(problem.place.rpartition(":")[2])


def test_all_problems_are_told_at_once_each_with_its_line(tmp_path: Path):
    found = problems_of(
        tmp_path,
        "mode: rfl\n"
        "trainin:\n"
        "  beta: 1\n"
        "training:\n"
        "  lerning_rate: 0.001\n"
        "  max_steps: ten\n"
        "  temperature: .nan\n"
        "model: 7\n"
        "logging: {wandb: of}\n",
    )
    assert {key: line(p) for key, p in found.items()} == {
        "mode": 1,
        "trainin": 2,
        "training.lerning_rate": 5,
        "training.max_steps": 6,
        "training.temperature": 7,
        "model": 8,
        "logging.wandb": 9,
    }
    assert list(found) == [
        "mode",
        "trainin",
        "training.lerning_rate",
        "training.max_steps",
        "training.temperature",
        "model",
        "logging.wandb",
    ]


@pytest.mark.parametrize(
    ("text", "key", "right"),
    [
        ("training:\n  lerning_rate: 1\n", "training.lerning_rate", "training.learning_rate"),
        ("trainin: {}\n", "trainin", "training"),
        ("target_kl: 1\n", "target_kl", "online.kl.target_kl"),
        ("model:\n  lora:\n    rank: 8\n", "model.lora.rank", "model.lora.r"),
    ],
)
def test_a_wrong_key_is_answered_with_the_nearest_valid_one(tmp_path: Path, text: str, key: str, right: str):
    problem = problems_of(tmp_path, text)[key]
    assert "no such key" in problem.message
    assert right in problem.right


@pytest.mark.parametrize(
    ("text", "key", "right"),
    [
        ("training:\n  max_steps: '10'\n", "training.max_steps", "an integer ≥ 1"),
        ("training:\n  max_steps: 0\n", "training.max_steps", "≥ 1"),
        ("training:\n  max_steps: true\n", "training.max_steps", "an integer"),
        ("training:\n  beta: -1\n", "training.beta", "≥ 0"),
        ("training:\n  beta: .inf\n", "training.beta", "a number ≥ 0"),
        ("training:\n  top_p: 1.5\n", "training.top_p", "a number > 0 and ≤ 1"),
        ("training:\n  advantages: groups\n", "training.advantages", "(nearest: group)"),
        ("model:\n  gradient_checkpointing: 1\n", "model.gradient_checkpointing", "true or false or auto"),
        ("model:\n  lora:\n    target_modules: 3\n", "model.lora.target_modules", "text or a list of text"),
        ("training:\n  loss_type: 1\n", "training.loss_type", "vespo, reinforce or file.py:Name for your own code"),
        ("rewards:\n  penalty_rules: 1\n", "rewards.penalty_rules", "a list of sections"),
        ("environment:\n  config: [1]\n", "environment.config", "keys and values"),
    ],
)
def test_a_wrong_type_or_value_is_answered_with_what_would_be_right(tmp_path: Path, text: str, key: str, right: str):
    problem = problems_of(tmp_path, text)[key]
    assert right in problem.right
    assert problem.place.endswith(f"my.yaml:{text.count(chr(10))}")


@pytest.mark.parametrize("queue", ["http://host", "redis", "redis://:a/b@host/0", "redis://host/0?password=x"])
def test_a_queue_is_a_url_whose_password_stands_where_it_is_known_to_be_one(tmp_path: Path, queue: str):
    problem = problems_of(tmp_path, f"online:\n  queue: '{queue}'\n  shared_files: x\n")["online.queue"]
    assert "HOST:PORT/NUMBER" in problem.message


def test_settings_that_the_chosen_method_or_loss_would_pass_over_are_refused(tmp_path: Path):
    found = problems_of(tmp_path, "training: {loss_type: reinforce, trl: {delta: 1.5}, tree: {fresh: 2}}\n")
    assert found["training.trl.delta"].message == "training.loss_type: reinforce does not use it"
    assert found["training.tree.fresh"].right == "null, or training.advantages: tree"


def test_a_problem_from_set_names_the_option_not_a_line(tmp_path: Path):
    found = problems_of(tmp_path, "training:\n  beta: 0.1\n", "training.beta=-3", "training.max_stps=2")
    assert found["training.beta"].place == "--set training.beta=-3"
    assert found["training.max_stps"].place == "--set training.max_stps=2"


@pytest.mark.parametrize("override", ["training.beta", "=3", "training..beta=1", "name={", "seed.x=1"])
def test_a_set_option_that_cannot_be_read_is_named(tmp_path: Path, override: str):
    found = problems_of(tmp_path, "seed: 3\n", override)
    assert [p.place for p in found.values()] == [f"--set {override}"]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("training:\n  beta: 1\n beta: 2\n", 3),
        ("name: 'open\n", 2),
        ("- a\n- b\n", 1),
        ("seed: 1\nseed: 2\n", 2),
        ("seed: 1\n3: x\n", 2),
        ("a: &x [*x]\n", 1),
        ("name: \x07\n", None),
    ],
)
def test_text_that_is_not_a_yaml_mapping_is_refused_with_its_line(tmp_path: Path, text: str, at: int | None):
    (problem,) = problems_of(tmp_path, text).values()
    assert problem.place.endswith(f"my.yaml:{at}" if at else "my.yaml")


def test_a_file_that_is_not_there_is_answered_with_the_presets(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"did you mean qwen3_0\.6b"):
        load_config("qwen_0.6b")
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="folder"):
        load_config(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path):
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(file)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("training: {max_turn_tokens: 600, max_trajectory_tokens: 512}\n", "training.max_turn_tokens"),
        ("training: {micro_batch_size: 48}\n", "training.micro_batch_size"),
        ("sft: {batch_size: 16, micro_batch_size: 6}\n", "sft.micro_batch_size"),
        ("model: {base: Qwen/Qwen3-0.6B, sft_adapters: builtin:tiny-sft}\n", "model.sft_adapters"),
        ("model: {device: cpu, compute: float16}\n", "model.compute"),
        ("online: {queue: 'redis://host:6379/0'}\n", "online.shared_files"),
        ("training: {output_dir: ./a}\nsft: {output_dir: a}\n", "training.output_dir"),
        ("data: {source: d.csv}\nenvironment: {reward_funcs: {'r.py:a': 0.0}}\n", "environment.reward_funcs"),
        ("environment:\n  reward_funcs: ['r.py:a', 'r.py:a:0.5']\n", "environment.reward_funcs"),
        ("environment:\n  reward_funcs: r.py\n", "environment.reward_funcs"),
        ("environment:\n  tools: [t.py]\n", "environment.tools"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(tmp_path: Path, text: str, key: str):
    problem = problems_of(tmp_path, text)[key]
    assert problem.right or "write" in problem.message or "list it once" in problem.message
    assert "my.yaml" in problem.place


@pytest.mark.parametrize("folder", ["''", ".", "/", "a/.."])
def test_a_folder_of_adapters_has_a_name(tmp_path: Path, folder: str):
    (tmp_path / "my.yaml").write_text(f"training: {{output_dir: {folder}}}\n")
    with pytest.raises(ConfigError, match="does not name a folder for the adapters"):
        load_config(tmp_path / "my.yaml", paths=True)


def test_a_place_that_the_adapters_cannot_have_is_refused_before_a_run_not_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "taken").write_text("")
    file = tmp_path / "my.yaml"
    for folder in ("taken", "taken/adapters"):
        file.write_text(f"training: {{output_dir: {tmp_path / folder}}}\n")
        with pytest.raises(ConfigError, match="taken is a file, and the adapters need a folder"):
            load_config(file, paths=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda *_: False)
    file.write_text(f"training: {{output_dir: {tmp_path.parent / 'adapters'}}}\n")
    with pytest.raises(ConfigError, match="is not writable"):
        load_config(file, paths=True)
    file.write_text("training: {output_dir: adapters}\n")
    load_config(file, paths=True)  # a folder that is only read from may hold a configuration and data


def test_files_that_are_named_but_missing_are_refused_when_a_run_is_about_to_start(tmp_path: Path):
    text = "data: {source: gone.jsonl}\nenvironment: {class_path: 'gone.py:MyEnv'}\nmodel: {sft_adapters: gone}\n"
    file = tmp_path / "my.yaml"
    file.write_text(text)
    load_config(file)
    with pytest.raises(ConfigError) as caught:
        load_config(file, paths=True)
    assert [p.key for p in caught.value.problems] == [
        "model.sft_adapters",
        "environment.class_path",
        "data.source",
    ]


def test_a_key_of_trl_has_its_name_here_and_one_that_is_like_none_gets_no_guess(tmp_path: Path):
    found = problems_of(
        tmp_path, "training: {optim: adamw, per_device_train_batch_size: 4, max_completion_length: 9}\n"
    )
    assert found["training.optim"].right == "write it as training.trl.optim, which is passed to TRL"
    assert "training.micro_batch_size" in found["training.per_device_train_batch_size"].right
    assert found["training.max_completion_length"].right.startswith("here it is called training.max_turn_tokens")
    known = {".".join(path) for path, _ in walk(RunConfig)}
    names = {
        name for text in ELSEWHERE.values() for name in text.replace(":", " ").replace(",", " ").split() if "." in name
    }
    assert {name for name in names if ".trl" not in name} <= known, names - known
