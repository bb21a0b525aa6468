"""Defaults that follow from the model: the table, its reasons, and warnings of values that are far from it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from grpo_tui.configs import model_facts
from grpo_tui.configs.loading import load_config, presets, read_source
from grpo_tui.configs.model_defaults import TINY, chosen, steps_of, unusual
from grpo_tui.configs.model_facts import ModelFacts, facts_of, size_in_name
from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.policy.sources import base_source
from grpo_tui.envs.loading import load_env_class


def make_model(folder: Path, parameters: int, context: int = 8192, template: str = "{{ messages }}") -> str:
    """A folder with the files that facts are read from; the weights are a header alone."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": context}))
    (folder / "chat_template.jinja").write_text(template)
    header = json.dumps({"__metadata__": {}, "w": {"shape": [parameters // 10, 10]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return str(folder)


def test_the_files_of_a_model_state_its_size_context_and_thoughts(tmp_path: Path):
    small = make_model(tmp_path / "small", 134_000_000)
    thinking = make_model(tmp_path / "thinking", 40, 512, "{% if enable_thinking %}<think>{% endif %}")
    assert facts_of(small) == ModelFacts(134_000_000, 8192, False)
    assert facts_of(thinking) == ModelFacts(40, 512, True)
    for name, mark in (("magistral", "[THINK]"), ("gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>")):
        assert facts_of(make_model(tmp_path / name, 40, template=f"{{{{ '{mark}' }}}}")).thinks
    rope = {"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope"}}
    for name, values in (("gpt2", {"n_positions": 1024}), ("phi3", {**rope, "original_max_position_embeddings": 4096})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(values))
    assert facts_of(str(tmp_path / "gpt2")).context == 1024
    assert facts_of(str(tmp_path / "phi3")).context == 4096


def test_other_copies_of_the_weights_do_not_count(tmp_path: Path):
    whole = make_model(tmp_path / "whole", 100)
    weights = (tmp_path / "whole" / "model.safetensors").read_bytes()
    (tmp_path / "whole" / "consolidated.safetensors").write_bytes(weights)
    assert facts_of(whole).parameters == 100
    make_model(tmp_path / "parts", 100)
    (tmp_path / "parts" / "model.safetensors").rename(tmp_path / "parts" / "a.safetensors")
    (tmp_path / "parts" / "b.safetensors").write_bytes(weights)
    (tmp_path / "parts" / "consolidated.safetensors").write_bytes(weights)
    index = tmp_path / "parts" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}))
    assert facts_of(str(tmp_path / "parts")).parameters == 200


@pytest.mark.parametrize(
    ("build", "driver", "hidden", "device"),
    [
        ("2.9.0+cu128", "/dev/nvidiactl", "", "cuda"),
        ("2.9.0", "/usr/lib/wsl/lib/libcuda.so.1", "", "cuda"),
        ("2.9.0+rocm6.4", "/dev/kfd", "", "cuda"),
        ("2.9.0+rocm6.4", "/dev/kfd", "HIP_VISIBLE_DEVICES", "cpu"),
        ("2.9.0", "/dev/kfd", "", "cpu"),
        ("2.9.0+cpu", "/dev/nvidiactl", "", "cpu"),
    ],
)
def test_the_device_follows_from_the_driver_and_the_build_of_torch(
    monkeypatch: pytest.MonkeyPatch, build: str, driver: str, hidden: str, device: str
):
    for name in model_facts.HIDING:
        monkeypatch.delenv(name, raising=False)
    if hidden:
        monkeypatch.setenv(hidden, "")
    monkeypatch.setattr("importlib.metadata.version", lambda name: build)
    monkeypatch.setattr(Path, "exists", lambda self: str(self) == driver)
    assert model_facts.device_of("auto") == device


def test_smollm2_from_the_wheel_takes_the_place_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_TUI_SMOLLM2", make_model(tmp_path / "made", 134_000_000))
    facts_of.cache_clear()
    config = load_config("smollm2_135m")
    assert base_source(config.model) == (str(tmp_path / "made"), None)
    assert facts_of(config.model.base) == ModelFacts(134_000_000, 8192, False)
    pinned = config.model.model_copy(update={"revision": "abc"})
    assert base_source(pinned) == (config.model.base, "abc")
    facts_of.cache_clear()


@pytest.mark.parametrize("name", presets())
def test_the_environment_of_each_preset_exists(name: str):
    assert load_env_class(load_config(name).environment.class_path)


def test_damaged_files_leave_facts_unknown(tmp_path: Path):
    folder = tmp_path / "damaged"
    make_model(folder, 100)
    (folder / "model.safetensors").write_bytes(b"\xff" * 7)
    (folder / "config.json").write_text("[")
    assert facts_of(str(folder)) == ModelFacts()


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen/Qwen3-0.6B", 600_000_000),
        ("Qwen/Qwen3-30B-A3B", 30_000_000_000),
        ("meta-llama/Llama-3.2-1B-Instruct", 1_000_000_000),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 135_000_000),
        ("google/gemma-3-1b-it", 1_000_000_000),
        ("openai-community/gpt2", None),
        ("owner/v2b-model", None),
    ],
)
def test_a_hub_id_may_name_its_size(name: str, size: int | None):
    assert size_in_name(name) == size


@pytest.mark.parametrize(
    ("parameters", "lora", "rate"),
    [
        (500_000, True, 1e-3),
        (134_000_000, True, 1e-4),
        (134_000_000, False, 1e-5),
        (600_000_000, True, 3e-5),
        (4_000_000_000, True, 1e-5),
        (4_000_000_000, False, 1e-6),
    ],
)
def test_the_learning_rate_follows_from_size_and_adapters(tmp_path: Path, parameters: int, lora: bool, rate: float):
    base = make_model(tmp_path / "model", parameters)
    config = load_config(None, [f"model.base={base}", *([] if lora else ["model.lora=null"])])
    assert config.training.learning_rate == pytest.approx(rate)


@pytest.mark.parametrize(("parameters", "least"), [(1_000_000, 3e-3), (134_000_000, 3e-4)])
def test_rates_while_serving_follow_from_the_size(tmp_path: Path, parameters: int, least: float):
    config = load_config(None, ["mode=online", f"model.base={make_model(tmp_path / 'model', parameters)}"])
    assert config.online.lr_adaptive_min == pytest.approx(least)
    assert config.online.lr_correction == config.online.lr_adaptive_max == pytest.approx(least * 5 / 3)


def test_lengths_follow_from_device_thoughts_and_context(tmp_path: Path):
    plain = make_model(tmp_path / "plain", 1000)
    thinks = make_model(tmp_path / "thinks", 1000, 40_000, "<think>")
    short = make_model(tmp_path / "short", 1000, 100)

    def limits(*settings: str) -> tuple[int, int]:
        training = load_config(None, settings).training
        return training.max_turn_tokens, training.max_trajectory_tokens

    cpu, gpu = limits(f"model.base={plain}", "model.device=cpu"), limits(f"model.base={plain}", "model.device=cuda")
    long = limits(f"model.base={thinks}", "model.device=cpu")
    told = limits(f"model.base={thinks}", "model.device=cpu", "model.chat_template_kwargs={enable_thinking: false}")
    assert cpu[0] < gpu[0] and cpu[0] < long[0] and told == cpu
    assert limits(f"model.base={short}") == (33, 67)


def test_what_the_user_sets_wins_and_every_other_choice_has_a_reason(tmp_path: Path):
    base = make_model(tmp_path / "model", 134_000_000)
    settings = [f"model.base={base}", "training.learning_rate=0.5", "training.max_steps=7"]
    training = load_config(None, settings).training
    assert (training.learning_rate, training.max_steps) == (0.5, 7)
    reasons = {choice.key: choice.why for choice in chosen(read_source(None, settings).data)}
    assert reasons.keys().isdisjoint({"training.learning_rate", "training.max_steps"})
    assert "134 million" in reasons["sft.learning_rate"]
    assert all(reasons.values())


def test_a_stored_configuration_takes_nothing_from_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base = make_model(tmp_path / "model", 134_000_000)
    stored = load_config(None, [f"model.base={base}"]).model_dump(mode="json")
    monkeypatch.setattr("grpo_tui.configs.model_defaults.facts_of", lambda *_: pytest.fail("the model was looked at"))
    assert RunConfig.model_validate(stored).training.learning_rate == 1e-4


def test_the_built_in_policy_keeps_the_values_of_its_preset():
    assert load_config("tiny") == load_config(None) == RunConfig()
    training = RunConfig().training
    assert (training.learning_rate, training.max_steps, training.max_turn_tokens) == (3e-3, 75, 64)
    assert presets()["tiny"] == TINY


@pytest.mark.parametrize(("rows", "steps"), [(3, 30), (400, 100), (1_000_000, 500)])
def test_the_data_decide_the_length_of_a_run(tmp_path: Path, rows: int, steps: int):
    base = make_model(tmp_path / "model", 1000)
    settings = [f"model.base={base}", "model.device=cpu"]
    assert steps_of(load_config(None, settings).training, rows) == steps
    assert steps_of(load_config(None, [*settings, "training.max_steps=3"]).training, rows) == 3


@pytest.mark.parametrize(
    ("setting", "warning"),
    [
        ("training.learning_rate=0.003", "30 times"),
        ("training.learning_rate=1e-7", "hardly change"),
        ("training.max_trajectory_tokens=9000", "8,192"),
        ("training.max_turn_tokens=64", "thinks"),
        ("model.compute=float16", "a CPU computes"),
        ("training.learning_rate=3e-4", None),
    ],
)
def test_values_that_are_far_from_usual_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, warning: str | None
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    base = make_model(tmp_path / "model", 134_000_000, template="<think>")
    config = load_config(None, [f"model.base={base}", setting])
    found = list(unusual(config.model, config.training))
    assert len(found) == (warning is not None)
    assert warning is None or warning in found[0]
    assert list(unusual(RunConfig().model, RunConfig().training)) == []


@pytest.mark.parametrize("fast", ["float32", "bfloat16"])
def test_bfloat16_is_warned_of_where_the_cpu_emulates_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: str):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("grpo_tui.configs.model_defaults.half_precision", lambda device: (fast, "of this CPU"))
    config = load_config(None, [f"model.base={make_model(tmp_path / 'model', 134_000_000)}", "model.compute=bfloat16"])
    found = [each for each in unusual(config.model, config.training) if "slower than float32" in each]
    assert len(found) == (fast == "float32")
