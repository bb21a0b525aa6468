"""Tiny random models of several architectures, and a tokenizer for them."""

from functools import cache
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from benchmarks.policies.tokenizer import train_tokenizer

TEXTS = [
    '{"name": "SEGMENT_OBJECT_AT", "arguments": {"x": 31, "y": 40}}',
    '{"name": "ANSWER", "arguments": {"text": "red"}}',
    "What colour is the object at (31, 40)?",
    "mask 1: area 312, box [3, 4, 90, 100]",
]

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 1024,
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, vocab_size=512)


def model(
    architecture: str, *, attention: str = "sdpa", seed: int = 0, end_bias: float = 0.0, layers: int = 2
) -> PreTrainedModel:
    """A random model in float32. Random weights hardly ever end a turn; `end_bias` makes its end token likelier."""
    torch.manual_seed(seed)
    tok = tokenizer()
    common = {
        **SHAPE,
        "num_hidden_layers": layers,
        "vocab_size": len(tok),
        "eos_token_id": tok.eos_token_id,
        "pad_token_id": tok.pad_token_id,
        "bos_token_id": None,
        "known_environments": ["calculator"],
    }
    if architecture == "qwen3":
        made = Qwen3ForCausalLM(Qwen3Config(**common, tie_word_embeddings=True))
    elif architecture == "llama":
        made = LlamaForCausalLM(LlamaConfig(**common))
    elif architecture == "mistral-sliding":
        made = MistralForCausalLM(MistralConfig(**common, sliding_window=16))
    else:
        made = Gemma3ForCausalLM(
            Gemma3TextConfig(
                **common,
                sliding_window=16,
                layer_types=["sliding_attention", "full_attention"],
                query_pre_attn_scalar=8,
            )
        )
    made.set_attn_implementation(attention)
    for parameter in made.parameters():
        # A wider spread than at initialisation, so that attention is not nearly uniform and a wrong mask shows.
        if parameter.dim() > 1:
            parameter.data.mul_(4)
    if end_bias:
        make_likelier(made, tok.encode("<|end|>")[0], end_bias)
    return made.eval()


LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
OF_OTHER_KINDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**LINEAR, "layer_types": ["linear_attention", "full_attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "bamba": {
        "attn_layer_indices": [1],
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 16,
    },
    "bloom": {"n_layer": 2, "n_head": 4},
    "doge": {},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "shared_intermediate_size": 32,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024},
    "mamba": {"state_size": 8, "time_step_rank": 4},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16},
    "modernbert-decoder": {"local_attention": 16, "global_attn_every_n_layers": 2, "bos_token_id": 1},
    "rwkv": {"attention_hidden_size": 32},
}
"""What a cache of rows does not hold: recurrent layers, a convolution, masks and positions of the model's own."""

SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WITH_WINDOWS: dict[str, dict[str, Any]] = {
    "gemma2": {**SLIDING, "query_pre_attn_scalar": 8},
    "gemma3_text": {**SLIDING, "query_pre_attn_scalar": 8},
    "gemma3n_text": {
        **SLIDING,
        "activation_sparsity_pattern": [0.0, 0.0],
        "altup_num_inputs": 2,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 512,
    },
    "gpt_oss": {**SLIDING, **EXPERTS},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16},
    "llama4_text": {
        "attention_chunk_size": 16,
        "num_local_experts": 2,
        "layer_types": ["chunked_attention", "full_attention"],
        "no_rope_layers": [1, 0],
    },
    "mistral": {"sliding_window": 16},
    "olmo3": SLIDING,
    "phi3": {"sliding_window": 16},
    "qwen2": {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 0},
}
"""Layers that look back over 16 tokens alone: by a sliding window, in chunks, by a mask of the model's own."""
WITHOUT_WINDOWS: dict[str, dict[str, Any]] = {
    **OF_OTHER_KINDS,
    "llama": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "qwen3_next": {
        **OF_OTHER_KINDS["qwen3_5_text"],
        **EXPERTS,
        "shared_expert_intermediate_size": 32,
    },
    "smollm3": {},
}


def model_of_type(kind: str, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A random model of the tables above in float32; `settings` of its configuration over those there."""
    torch.manual_seed(seed)
    tok = tokenizer()
    ends = {"eos_token_id": tok.eos_token_id, "pad_token_id": tok.pad_token_id, "bos_token_id": None}
    config = AutoConfig.for_model(
        kind, **{**SHAPE, "vocab_size": len(tok), **ends, **(WITHOUT_WINDOWS | WITH_WINDOWS)[kind], **settings}
    )
    made = AutoModelForCausalLM.from_config(config)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)
    return made.eval()


def make_likelier(made: PreTrainedModel, token: int, bias: float) -> None:
    head = made.get_output_embeddings()
    assert isinstance(head, torch.nn.Linear)
    biased = torch.nn.Linear(head.in_features, head.out_features, bias=True)
    biased.weight = torch.nn.Parameter(head.weight.detach().clone())
    biased.bias.data.zero_()
    biased.bias.data[token] = bias
    made.lm_head = biased
