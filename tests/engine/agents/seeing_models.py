"""Tiny random vision-language models of several architectures with their own processors, built from configs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from benchmarks.policies.tokenizer import train_tokenizer
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.policy.vision.processor import VisionProcessor, without_video
from grpo_tui.envs.content import Picture

from .models import OF_OTHER_KINDS, SHAPE, TEXTS, make_likelier

ARCHITECTURES = (
    *("qwen3_5", "qwen3_vl", "qwen2_5_vl", "qwen2_vl", "idefics3", "smolvlm", "gemma3", "internvl", "llava"),
    "llava_clip",
)
"""The first has recurrent layers, the last two are over vision towers of SigLIP and CLIP. SmolVLM's own processor wants
a package for videos: Idefics3's, which makes the same of images, stands in."""
ALIKE = {
    "qwen3_5": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "qwen2_vl": "qwen2_5_vl",
    "smolvlm": "idefics3",
    "llava_clip": "llava",
}
"""Whose signs and tokens they share."""
SIGNS = {
    "qwen3_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "idefics3": "<image>",
    "gemma3": "<start_of_image>",
    "internvl": "<IMG_CONTEXT>\n",
    "llava": "<image>\n",
}
SPECIAL = {
    "qwen3_vl": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
    "qwen2_5_vl": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
    "idefics3": ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"],
    "gemma3": ["<start_of_image>", "<end_of_image>", "<image_soft_token>"],
    "internvl": ["<img>", "</img>", "<video>", "<IMG_CONTEXT>"],
    "llava": ["<image>"],
}
NAMED = {
    "gemma3": ("boi_token", "eoi_token", "image_token"),
    "internvl": ("start_image_token", "end_image_token", "video_token", "context_image_token"),
}
"""Attributes of the tokenizer that a processor reads, in the order of its special tokens."""
TEMPLATE = (
    "{%- for m in messages -%}{{ '<|' + m['role'] + '|>' }}{%- for b in m['content'] -%}"
    "{%- if b['type'] == 'image' -%}{{ 'SIGN' }}{%- else -%}{{ b['text'] }}{%- endif -%}{%- endfor -%}{{ '<|end|>' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
SIDE = 32
TEXT = {**SHAPE, "bos_token_id": None}
VISION = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@cache
def tokenizer(architecture: str) -> PreTrainedTokenizerFast:
    architecture = ALIKE.get(architecture, architecture)
    made = train_tokenizer(TEXTS, vocab_size=512)
    made.add_tokens(SPECIAL[architecture], special_tokens=True)
    for name, token in zip(NAMED.get(architecture, ()), SPECIAL[architecture], strict=False):
        setattr(made, name, token)
        setattr(made, f"{name}_id", made.convert_tokens_to_ids(token))
    return made


@cache
def processor(architecture: str) -> Any:
    tok = tokenizer(architecture)
    clip = architecture == "llava_clip"
    architecture = ALIKE.get(architecture, architecture)
    template = TEMPLATE.replace("SIGN", SIGNS[architecture].replace("\n", "\\n"))
    if architecture.startswith("qwen"):
        sizes = {"shortest_edge": 16 * 16, "longest_edge": 64 * 64}
        images = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=sizes)
        return without_video(Qwen3VLProcessor)(images, tok, chat_template=template)
    size = {"height": SIDE, "width": SIDE}
    if architecture == "idefics3":
        edge = {"longest_edge": SIDE}
        images = Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=True)
        return Idefics3Processor(images, tok, image_seq_len=4, chat_template=template)
    if architecture == "gemma3":
        return Gemma3Processor(Gemma3ImageProcessorPil(size=size), tok, image_seq_length=4, chat_template=template)
    if architecture == "internvl":
        images = GotOcr2ImageProcessorPil(size=size, crop_to_patches=True, max_patches=4)
        return without_video(InternVLProcessor)(images, tok, image_seq_length=4, chat_template=template)
    return LlavaProcessor(
        SiglipImageProcessorPil(size=size),
        tok,
        patch_size=8,
        vision_feature_select_strategy="default" if clip else "full",
        num_additional_image_tokens=int(clip),
        chat_template=template,
    )


def model(architecture: str, *, seed: int = 0, end_bias: float = 4.0) -> PreTrainedModel:
    """A random model in float32 whose images matter as much as its words; `end_bias` lets turns end."""
    torch.manual_seed(seed)
    tok = tokenizer(architecture)
    text = {
        **TEXT,
        "vocab_size": len(tok),
        "eos_token_id": tok.eos_token_id,
        "pad_token_id": tok.pad_token_id,
    }
    family = ALIKE.get(architecture, architecture)
    image = "<image>" if family == "idefics3" else SPECIAL[family][-2 if "qwen" in family else -1]
    ids: dict[str, Any] = {"image_token_id": tok.convert_tokens_to_ids(image)}
    siglip = {**VISION, "image_size": SIDE, "patch_size": 8}
    if family == "qwen3_vl":
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
        vision = {
            "depth": 2, "hidden_size": 24, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
            "spatial_merge_size": 2, "out_hidden_size": 32, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        }  # fmt: skip
        parts = {"text_config": {**text, "rope_parameters": rope}, "vision_config": vision, **ids, **_video(tok)}
        if architecture == "qwen3_5":
            vision["deepstack_visual_indexes"] = []
            linear = OF_OTHER_KINDS["qwen3_5_text"]
            parts["text_config"] |= {**linear, "rope_parameters": {**rope, "partial_rotary_factor": 1.0}}
            made: Any = Qwen3_5ForConditionalGeneration(Qwen3_5Config(**parts))
        elif architecture == family:
            made = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**parts))
        else:
            parts["text_config"] |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
            made = Qwen3VLMoeForConditionalGeneration(Qwen3VLMoeConfig(**parts))
    elif architecture == "qwen2_5_vl":
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
        vision = {
            "depth": 2, "hidden_size": 24, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
            "spatial_merge_size": 2, "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1],
        }  # fmt: skip
        made = Qwen2_5_VLForConditionalGeneration(
            Qwen2_5_VLConfig(text_config={**text, "rope_parameters": rope}, vision_config=vision, **ids, **_video(tok))
        )
    elif architecture == "qwen2_vl":
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
        vision = {"depth": 2, "embed_dim": 24, "hidden_size": 32, "mlp_ratio": 2, "num_heads": 2, "patch_size": 4}
        made = Qwen2VLForConditionalGeneration(
            Qwen2VLConfig(text_config={**text, "rope_parameters": rope}, vision_config=vision, **ids, **_video(tok))
        )
    elif architecture == "smolvlm":
        made = SmolVLMForConditionalGeneration(
            SmolVLMConfig(text_config={**text, "model_type": "llama"}, vision_config=siglip, scale_factor=2, **ids)
        )
    elif architecture == "idefics3":
        config = Idefics3Config(
            text_config={**text, "model_type": "llama"}, vision_config=siglip, scale_factor=2, **ids
        )
        made = Idefics3ForConditionalGeneration(config)
    elif architecture == "gemma3":
        more = {
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 8,
        }
        made = Gemma3ForConditionalGeneration(
            Gemma3Config(text_config={**text, **more}, vision_config=siglip, mm_tokens_per_image=4, **ids)
        )
    elif architecture == "internvl":
        vision = {**VISION, "image_size": [SIDE, SIDE], "patch_size": [8, 8]}
        made = InternVLForConditionalGeneration(
            InternVLConfig(text_config={**text, "model_type": "qwen2"}, vision_config=vision, **ids)
        )
    else:
        tower = "clip" if architecture == "llava_clip" else "siglip"
        made = LlavaForConditionalGeneration(
            LlavaConfig(
                text_config={**text, "model_type": "llama"},
                vision_config={**siglip, "model_type": f"{tower}_vision_model"},
                vision_feature_select_strategy="default" if tower == "clip" else "full",
                **ids,
            )
        )
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)
        elif not bool(parameter.any()):  # a projection that begins at zero would hide what is shown
            parameter.data.normal_(std=0.1)
    if architecture == "gemma3":
        made.model.multi_modal_projector.mm_input_projection_weight.data.normal_(std=0.3)
    if end_bias:
        make_likelier(made, tok.encode("<|end|>")[0], end_bias)
    return made.eval()


def agent(architecture: str, net: torch.nn.Module | None = None, **settings: Any) -> TransformersAgent:
    net = model(architecture) if net is None else net
    inner: Any = getattr(net, "get_base_model", lambda: net)()
    vision = VisionProcessor(processor(architecture), tokenizer(architecture), inner.config)
    return TransformersAgent(net, tokenizer(architecture), vision=vision, **{"max_turn_tokens": 8, **settings})


def picture(width: int, height: int, seed: int = 0) -> Picture:
    pixels = np.random.default_rng([width, height, seed]).integers(0, 256, (height, width, 3), np.uint8)
    return Picture(f"{width}x{height}-{seed}", lambda: pixels)


def _video(tok: PreTrainedTokenizerFast) -> dict[str, Any]:
    names = ("video_token_id", "vision_start_token_id", "vision_end_token_id")
    signs = ("<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    return {name: tok.convert_tokens_to_ids(sign) for name, sign in zip(names, signs, strict=True)}  # type: ignore[misc]
