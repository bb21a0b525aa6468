"""Loading the policy: base model, tokenizer and adapters, by name or path.

Supervised and reinforcement fine-tuning, the online engine and the benchmarks all load through `load_policy`.

**The reference policy.** SFT adapters are loaded as `default`, trainable. TRL's `GRPOTrainer`, given a `PeftModel` and
beta > 0, copies them into a second, frozen adapter `ref` before the first step. For a resumed run, load the SFT
adapters here again and let the trainer load its checkpoint afterwards: `ref` then equals the adapters that the run
began with.
"""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora.layer import Linear as LoraLinear
from safetensors import safe_open
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from ...configs.sections.model import LoraSection, ModelConfig
from ..runs.durable import CHECKSUMS, find_damage
from .merged import AdaptedHead
from .precision import set_arithmetic
from .sources import (
    ModelLoadError,
    base_source,
    builtin,
    explain,
    first_line,
    load_known,
    load_tokenizer,
    without_embedding,
)
from .unwrap import base_of
from .versions import returns_router_logits
from .vision.inputs import VisionModel
from .vision.kinds import apart_from_language, takes_images
from .vision.processor import VisionProcessor, load_processor

logger = logging.getLogger(__name__)

BUILTIN_ADAPTERS = {"builtin:tiny-sft": "sft", "builtin:tiny-vl-sft": "seeing/sft"}
"""Names of adapters that ship with the package, and their folders."""


def load_policy(
    config: ModelConfig, *, adapters: str | None = None, trainable: bool = True
) -> tuple[PeftModel | PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the base model of `config` with `adapters` (a folder or a built-in name), and its tokenizer.

    trainable: for training. Without `config.lora`, all weights are trainable, with `adapters` merged into them.
    Otherwise, without `adapters`, fresh LoRA adapters as in `config.lora` are added (their output is zero at first, so
    the policy equals the base). Gradient checkpointing stays off (`spare_memory` enables it). If not trainable: eval
    mode, nothing requires a gradient, and without `adapters` the bare base.

    Raises ModelLoadError.
    """
    base = load_base(config)
    tokenizer = load_tokenizer(config)
    embeddings = len(base.get_input_embeddings().weight)  # type: ignore[arg-type]
    if tokenizer.pad_token_id >= embeddings:  # type: ignore - a token without embedding
        tokenizer.pad_token_id = tokenizer.eos_token_id or 0
    if lacking := without_embedding(tokenizer, embeddings):
        raise ModelLoadError(
            f"the model {config.base} has {embeddings:,} embeddings, but its tokenizer also writes {lacking}: use the "
            "model's own tokenizer and chat template"
        )
    model: PeftModel | PreTrainedModel = base
    if adapters is not None:
        model = _with_adapters(base, adapters, trainable)
        if trainable and config.lora is None:
            model = base = model.merge_and_unload().requires_grad_(True)
        elif trainable and config.lora is not None:
            _check_trained(model.peft_config["default"], adapters, config.lora)
    elif trainable and config.lora is not None:
        try:
            model = get_peft_model(base, lora_config(config.lora, base))  # type: ignore[assignment]
        except (TypeError, ValueError, re.error) as error:
            raise ModelLoadError(f"model.lora does not fit {config.base}: {first_line(error)}") from error
    device = chosen_device(config)
    if config.quantization is None:  # a 4-bit model was loaded onto its device
        model.to(device)  # type: ignore[arg-type]
    if device.type == "cuda":
        # cuDNN's attention plans each new shape, which takes longer than the pass. Here shapes differ in every step.
        torch.backends.cuda.enable_cudnn_sdp(False)
    set_arithmetic(model, config)
    if type(head := base.get_output_embeddings()) is LoraLinear:
        head.__class__ = AdaptedHead
    if not trainable:
        model.requires_grad_(False)
        return model.eval(), tokenizer
    if config.lora is None and VisionModel.of(base) is not None:
        for part in apart_from_language(base):  # the vision tower is frozen, or has adapters
            part.requires_grad_(False)
    return model.train(), tokenizer


def load_base(config: ModelConfig) -> PreTrainedModel:
    """Load the base model in the format of `config.weights` on the CPU, or in 4 bits on its GPU.

    Raises ModelLoadError.
    """
    source, revision = base_source(config)
    quantized = _quantized(config) if config.quantization is not None else {}
    _check(Path(source))
    known = load_known(config)
    disable_progress_bar()  # keep it out of log files
    try:
        kind: Any = AutoModelForImageTextToText if takes_images(known) else AutoModelForCausalLM
        model, found = kind.from_pretrained(
            source,
            revision=revision,
            dtype=getattr(torch, config.compute if quantized else config.weights),
            attn_implementation=config.attn_implementation,
            use_safetensors=True,  # nothing is unpickled
            trust_remote_code=False,
            output_loading_info=True,
            **quantized,
        )
        if lacking := sorted(found["missing_keys"]):  # they would be random
            raise ValueError(f"its files lack {len(lacking)} of its weights, such as {lacking[0]}")
        places = {re.sub(r"\d+", "", name) for name in model.state_dict()}
        further = sorted(name for name in found["unexpected_keys"] if re.sub(r"\d+", "", name) in places)
        if further and not getattr(known.get_text_config(), "num_nextn_predict_layers", None):  # for other tokens
            raise ValueError(f"its files have layers that its config.json leaves out, such as {further[0]}")
        if model.base_model is model:  # Llama 4's language model has the prefix of a part that it lacks
            model.base_model_prefix = "model"
        VisionModel.of(model)  # raises for a model that takes images in an unsupported way
        _count_experts(model)
        return model
    except Exception as error:  # transformers raises OSError, ValueError, ImportError, and what the hub's client raises
        raise ModelLoadError(explain(config.base, error)) from error


def _count_experts(model: PreTrainedModel) -> None:
    """Set the attributes that TRL's expert-balancing loss reads: `num_experts`, which some configurations name
    `num_local_experts`, and a coefficient of 0 if there is nothing to balance."""
    config = model.config.get_text_config()
    if not hasattr(config, "output_router_logits"):
        return
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if not hasattr(config, "num_experts"):
        config.num_experts = experts
    if experts and not returns_router_logits(model):
        logger.warning("%s returns no router logits here: its experts are not balanced", type(model).__name__)
        experts = None
    if not experts:
        config.router_aux_loss_coef = 0.0


def _quantized(config: ModelConfig) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a 4-bit base model (QLoRA, https://arxiv.org/abs/2305.14314).

    Raises ModelLoadError without a CUDA GPU or without bitsandbytes.
    """
    device = chosen_device(config)
    if device.type != "cuda":
        raise ModelLoadError(
            f"model.quantization: {config.quantization} needs a CUDA GPU, and this model goes to {device.type}; set it "
            "to null (LoRA on the model as it is)"
        )
    if find_spec("bitsandbytes") is None:
        raise ModelLoadError(
            f"model.quantization: {config.quantization} needs bitsandbytes; pip install 'grpo-tui[qlora]'"
        )
    four_bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, config.compute),
    )
    return {"quantization_config": four_bits, "device_map": {"": device}}


def load_vision(
    config: ModelConfig, model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase
) -> VisionProcessor | None:
    """Load the processor of a policy that takes images; None for a text model. Raises ModelLoadError."""
    base = base_of(model)
    if VisionModel.of(base) is None:
        vision = config.lora is not None and config.lora.vision
        for key, value in (
            ("max_pixels", config.max_pixels),
            ("max_images", config.max_images),
            ("lora.vision", vision),
        ):
            if value:
                raise ModelLoadError(f"model.{key} is for models with image input, and {config.base} has none")
        return None
    source, revision = base_source(config)
    try:
        processor: Any = load_processor(source, revision, base.config)
        sizes = {"max_pixels": config.max_pixels, "max_images": config.max_images}
        vision = VisionProcessor(processor, tokenizer, base.config, **sizes)
    except Exception as error:
        raise ModelLoadError(explain(config.base, error, "processor of")) from error
    if config.chat_template is not None:
        vision.processor.chat_template = tokenizer.chat_template
    return vision


def lora_config(lora: LoraSection, base: PreTrainedModel) -> LoraConfig:
    """Return the adapters that `model.lora` describes. A vision tower gets adapters only if it asks for them. A
    projection gets none if a Mamba layer's kernel reads its weight directly, past the adapter, nor does a router that
    returns several tensors (Llama 4, Phi-3.5-MoE)."""
    excluded = [] if lora.vision or VisionModel.of(base) is None else apart_from_language(base)
    if lora.target_modules == "all-linear":
        mixers = [m for m in base.modules() if hasattr(m, "A_log") and hasattr(m, "D")]
        own = [m for m in base.modules() if isinstance(m, torch.nn.Linear) and "transformers" in type(m).__module__]
        excluded = [
            *excluded,
            *(part for m in mixers for name, part in m.named_children() if name in ("out_proj", "x_proj", "dt_proj")),
            *(m for m in own if not isinstance(m(m.weight.new_zeros(1, m.in_features)), Tensor)),
        ]
    names = [re.escape(name) for name, module in base.named_modules() if any(module is part for part in excluded)]
    return LoraConfig(
        exclude_modules=rf"({'|'.join(names)})(\..*)?" if names else None,
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
        **lora.peft,
    )


def save_adapters(model: PeftModel, folder: Path | str, tensors: Mapping[str, Tensor] | None = None) -> Path:
    """Write the adapter `default` as safetensors to `folder`, for plain `PeftModel.from_pretrained`.

    tensors: by the names of the model's parameters; by default those in the model.
    """
    folder = Path(folder)
    model.save_pretrained(
        str(folder),
        selected_adapters=["default"],
        save_embedding_layers=False,
        state_dict=None if tensors is None else dict(tensors),
    )
    return folder


def save_policy(model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the adapters or all weights as safetensors, and the tokenizer, for plain `from_pretrained`."""
    if isinstance(model, PeftModel):
        save_adapters(model, folder)
    else:
        model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def _with_adapters(base: PreTrainedModel, adapters: str, trainable: bool) -> PeftModel:
    folder = _adapter_folder(adapters)
    _check(folder)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Found missing adapter keys")  # they would be random
            where = {"is_trainable": trainable, "torch_device": str(base.device)}
            model = PeftModel.from_pretrained(base, str(folder), **where)
        known = [k for k in get_peft_model_state_dict(model, save_embedding_layers=False) if "lora_" in k]
        with safe_open(folder / "adapter_model.safetensors", "pt") as file:
            found = [k for k in file.keys() if "lora_" in k]  # noqa: SIM118 - not a dictionary
        if len(found) > len(known):  # PEFT would pass over them
            surplus = sorted({*found} - {*known})[0].removeprefix("base_model.model.").partition(".lora_")[0]
            raise ValueError(f"they have weights of layers that it lacks, such as {surplus}")
        return model
    except Exception as error:
        why = "they lack weights of some of its layers" if isinstance(error, UserWarning) else first_line(error)
        raise ModelLoadError(
            f"the adapters in {adapters} do not fit the base model {base.name_or_path}: {why}"
        ) from error


def _check_trained(peft: PeftConfig, adapters: str, lora: LoraSection) -> None:
    """Raise ModelLoadError for settings that existing adapters pass over, and for adapters that change their base."""
    if (start := getattr(peft, "init_lora_weights", True)) not in (True, False, "gaussian", "orthogonal", "eva"):
        raise ModelLoadError(
            f"the adapters in {adapters} began with init_lora_weights: {start}, which changes the base model, and the "
            "KL penalty compares with it: convert them to plain LoRA (path_initial_model_for_weight_conversion of "
            "PEFT's save_pretrained), or set model.lora to null"
        )
    asked: dict[str, Any] = lora.model_dump(exclude_defaults=True)
    more: dict[str, Any] = asked.pop("peft", {})
    for key, value in (asked | more).items():
        own = getattr(peft, {"alpha": "lora_alpha", "dropout": "lora_dropout"}.get(key, key), value)
        own = sorted(own) if isinstance(own, (set, list)) else own
        if (sorted(value) if isinstance(value, list) else value) != own:
            raise ModelLoadError(
                f"model.lora: {key} is {value}, but the adapters in {adapters} have {own} and stay as they are: leave "
                "it out, or set model.sft_adapters to null for new adapters"
            )


def _check(folder: Path) -> None:
    """Raise ModelLoadError if a folder does not match its `checksums.json`."""
    if (folder / CHECKSUMS).is_file() and (damage := find_damage(folder)) is not None:
        raise ModelLoadError(f"{folder} is damaged: {damage}; the last checkpoint of its run also has the weights")


def _adapter_folder(adapters: str) -> Path:
    if adapters.startswith("builtin:"):
        return builtin(adapters, BUILTIN_ADAPTERS, "adapters")
    folder = Path(adapters).expanduser()
    if not folder.is_dir():
        raise ModelLoadError(
            f"there is no folder of adapters at {adapters}; train some with `grpo-tui train --mode sft`, or set "
            "model.sft_adapters to builtin:tiny-sft (for builtin:tiny) or null (the bare base)"
        )
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / name).is_file():
            raise ModelLoadError(f"{adapters} contains no loadable adapters: {name} is missing")
    try:
        json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{folder / 'adapter_config.json'} is not valid JSON: {error}") from error
    return folder


def chosen_device(config: ModelConfig) -> torch.device:
    """Return the model's device. With several processes, each takes the GPU of its own rank. Raises ModelLoadError."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    name = ("cuda" if available["cuda"] else "cpu") if config.device == "auto" else config.device
    if not available[name]:
        raise ModelLoadError(f"model.device is {name}, but torch sees no {name.upper()} device; set it to auto or cpu")
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device(name)
