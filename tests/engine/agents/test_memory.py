"""The memory that a training needs, said from a config alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    FalconConfig,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2_5_VLConfig,
    Qwen3Config,
    Qwen3VLConfig,
    SmolLM3Config,
)

from grpo_tui.configs.loading import load_config
from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.policy.activations import numbers_of_layer
from grpo_tui.engine.policy.memory import GIB, OVERHEAD, need, shape_of


def qwen3(hidden: int, intermediate: int, layers: int, heads: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )


PUBLISHED: dict[str, tuple[PreTrainedConfig, float]] = {
    "Qwen3-0.6B": (qwen3(1024, 3072, 28, 16), 0.596e9),
    "Qwen3-1.7B": (qwen3(2048, 6144, 28, 16), 1.721e9),
    "Qwen3-4B": (qwen3(2560, 9728, 36, 32), 4.022e9),
    "Llama-3.2-1B": (
        LlamaConfig(
            vocab_size=128256,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            tie_word_embeddings=True,
        ),
        1.236e9,
    ),
    "gemma-3-1b": (
        Gemma3TextConfig(
            vocab_size=262144,
            hidden_size=1152,
            intermediate_size=6912,
            num_hidden_layers=26,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
        ),
        1.000e9,
    ),
    "SmolLM3-3B": (
        SmolLM3Config(
            vocab_size=128256,
            hidden_size=2048,
            intermediate_size=11008,
            num_hidden_layers=36,
            num_attention_heads=16,
            num_key_value_heads=4,
            tie_word_embeddings=True,
        ),
        3.075e9,
    ),
    "Qwen3-VL-2B": (
        Qwen3VLConfig(
            text_config={
                "vocab_size": 151936,
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
            },
            vision_config={
                "depth": 24,
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "out_hidden_size": 2048,
                "deepstack_visual_indexes": [5, 11, 17],
            },
            tie_word_embeddings=True,
        ),
        2.1275e9,
    ),
    "Qwen2.5-VL-3B": (
        Qwen2_5_VLConfig(
            text_config={
                "vocab_size": 151936,
                "hidden_size": 2048,
                "intermediate_size": 11008,
                "num_hidden_layers": 36,
                "num_attention_heads": 16,
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
            },
            vision_config={"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 2048},
            tie_word_embeddings=True,
        ),
        3.7546e9,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_counted_as_published(name: str):
    config, parameters = PUBLISHED[name]
    assert shape_of(config).parameters == pytest.approx(parameters, rel=0.002)


def test_the_parts_follow_the_settings():
    shape = shape_of(PUBLISHED["Qwen3-0.6B"][0])
    half = dict.fromkeys(("weights", "compute", "sampling"), "bfloat16")
    model = {"base": "x/y", **half, "device": "cuda"}
    base = {"model": model, "training": {"max_trajectory_tokens": 2048}}
    config = RunConfig.model_validate(base)
    found = need(shape, config)
    assert next(iter(found.both.values())) / GIB == pytest.approx(1.11, abs=0.01)
    # 28 layers x 8 heads x 128 numbers x keys and values x 2 bytes x 2048 tokens x 128 rollouts
    assert sum(found.acting.values()) == 28 * 8 * 128 * 2 * 2 * 2048 * 128
    more = config.model_copy(update={"training": config.training.model_copy(update={"num_generations": 16})})
    assert sum(need(shape, more).acting.values()) == 2 * sum(found.acting.values())
    plain = config.model.model_copy(update=dict.fromkeys(half, "float32"))
    full = need(shape, config.model_copy(update={"model": plain}))
    assert full.peak > found.peak
    whole = RunConfig.model_validate({**base, "model": {**base["model"], "lora": None}})
    assert need(shape, whole).both["gradients and optimiser of all weights"] == 12 * shape.parameters
    kept = whole.model_copy(update={"model": whole.model.model_copy(update={"weights": "float32"})})
    # Master weights in float32, and a copy of them in bfloat16 in either phase.
    assert need(shape, kept).peak - need(shape, whole).peak == pytest.approx((2 + 2 + 2) * shape.parameters)


def test_weights_in_four_bits_take_about_an_eighth():
    """As bitsandbytes counts them: half a byte each, with scales of 64 and of 256 of these. All else is in 16 bits."""
    shape = shape_of(qwen3(3584, 18944, 28, 28))
    settings = ["model.base=x/y", "model.device=cuda", "model.compute=bfloat16", "model.sampling=bfloat16"]
    whole = need(shape, load_config(None, [*settings, "model.weights=float32"]))
    packed = need(shape, load_config(None, [*settings, "model.weights=float32", "model.quantization=nf4"]))
    embeddings = shape.parameters - shape.linear
    name = next(iter(packed.both))
    assert name.endswith("million in nf4)")
    assert packed.both[name] == pytest.approx(shape.linear * 0.516 + embeddings * 2, rel=0.001)
    assert not any("copy" in part for part in (*packed.acting, *packed.training))
    assert packed.peak < whole.peak - 3 * shape.parameters


def test_a_model_without_attention_caches_no_keys():
    shape = shape_of(AutoConfig.for_model("mamba2", num_hidden_layers=2))
    assert shape.cached == 0 and shape.parameters > 0


@pytest.mark.parametrize(
    "settings", [{}, {"multi_query": False}, {"new_decoder_architecture": True, "num_kv_heads": 2}]
)
def test_the_cache_of_falcon_is_that_of_its_heads(settings: dict[str, Any]):
    small: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = FalconConfig(**small, **settings)
    cache: Any = AutoModelForCausalLM.from_config(config)(torch.tensor([[1, 2, 3]])).past_key_values
    assert shape_of(config).cached == sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers) / 3


def test_layers_may_differ():
    """Gemma 4 has heads of two sizes, and Gemma 3n a list of the widths of its layers."""
    small: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
    }
    kinds = ["sliding_attention", "full_attention"]
    heads: dict[str, Any] = {"head_dim": 8, "global_head_dim": 16}
    apart = Gemma4TextConfig(**small, **heads, vocab_size=64, layer_types=kinds)
    assert shape_of(apart).cached == 2 * (8 + 16)
    listed = Gemma3nTextConfig(**small, intermediate_size=[40, 48], layer_types=kinds)
    assert numbers_of_layer(listed) == 8 * 32 + 4 * 48


@pytest.mark.parametrize(
    ("preset", "name", "gib"), [("qwen3_vl_2b", "Qwen3-VL-2B", 22), ("qwen2.5_vl_3b", "Qwen2.5-VL-3B", 74)]
)
def test_presets_that_see_fit_their_gpu_and_adapters_on_the_tower_cost_more(monkeypatch, preset, name, gib):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a larger GPU has more room for activations
    shape, config = shape_of(PUBLISHED[name][0]), load_config(preset)
    found = need(shape, config)
    assert (found.peak + OVERHEAD) / GIB < gib
    assert config.model.lora is not None and not config.model.lora.vision
    lora = config.model.lora.model_copy(update={"vision": True})
    seeing = config.model_copy(update={"model": config.model.model_copy(update={"lora": lora})})
    assert need(shape, seeing).peak > found.peak


def test_the_rollouts_of_servers_are_cached_on_the_servers():
    shape = shape_of(qwen3(3584, 18944, 28, 28))
    own = need(shape, load_config(None, ["model.weights=bfloat16", "model.sampling=bfloat16"]))
    servers = ["rollouts.engine=vllm", "rollouts.servers=[http://127.0.0.1:8000]"]
    served = need(shape, load_config(None, ["model.weights=bfloat16", "model.sampling=bfloat16", *servers]))
    assert served.acting == {} and own.acting
    assert served.both == own.both and served.training == own.training
    assert served.peak == sum(own.both.values()) + sum(own.training.values())
