"""The source of a model, and its tokenizer with its chat template. No weights are loaded.

This module does not import torch or peft, which halves the time to show a first prompt or count tokens of rows.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from ...configs.errors import GrpoTuiError
from ...configs.model_facts import local_copy
from ...configs.sections.model import ModelConfig

BUILTIN_MODELS = {"builtin:tiny": "base", "builtin:tiny-vl": "seeing/base"}
"""Names of models that ship with the package, and their folders."""


class ModelLoadError(GrpoTuiError, RuntimeError):
    """A model or its adapters cannot be loaded. The message names them and the fix."""


def base_source(config: ModelConfig) -> tuple[str, str | None]:
    """Return the source for `from_pretrained`: a folder, or a hub id with its revision."""
    name = local_copy(config.base, config.revision)
    if not name.strip():
        raise ModelLoadError("model.base is empty: name a hub id, a folder, or builtin:tiny")
    if "://" in name:
        raise ModelLoadError(
            f"model.base is {name}: name the hub id of a model, such as Qwen/Qwen3-0.6B, not an address"
        )
    if name.startswith("builtin:"):
        return str(builtin(name, BUILTIN_MODELS, "model")), None
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            adapters = (folder / "adapter_config.json").is_file()
            hint = "; these are adapters: name them in model.sft_adapters" if adapters else ""
            raise ModelLoadError(f"the folder {name} contains no model: config.json is missing{hint}")
        return str(folder), None
    if folder.is_file():
        raise ModelLoadError(f"model.base is the file {name}: name the folder of a model, or a hub id")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise ModelLoadError(f"there is no folder {name} with a model (model.base)")
    return name, config.revision


def load_known(config: ModelConfig, what: str = "model") -> PreTrainedConfig:
    """Load `config.json` of the base model. Raises ModelLoadError, also for an encoder-decoder. what: see `explain`."""
    source, revision = base_source(config)
    try:
        known = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except Exception as error:
        raise ModelLoadError(explain(config.base, error, what)) from error
    if known.is_encoder_decoder:
        raise ModelLoadError(
            f"the model {config.base} is an encoder-decoder ({known.model_type}): name a causal language model"
        )
    return known


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the base model's tokenizer, with left padding and a padding token. Raises ModelLoadError."""
    source, revision = base_source(config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=revision, padding_side="left", trust_remote_code=False
        )
    except Exception as error:
        raise ModelLoadError(explain(config.base, error, "tokenizer")) from error
    if tokenizer.pad_token_id is None:
        added = map(str, tokenizer.added_tokens_decoder.values())
        tokenizer.pad_token = tokenizer.eos_token or next(added, tokenizer.convert_ids_to_tokens(0))
    if config.chat_template is not None:
        tokenizer.chat_template = chat_template(config.chat_template, tokenizer)
    return tokenizer


def foreign_template(config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a warning if `model.chat_template` lacks special tokens of the model's own template; empty if not."""
    if config.chat_template is None:
        return ""
    source, revision = base_source(config)
    base_tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    lost = _special_tokens(base_tokenizer, base_tokenizer) - _special_tokens(tokenizer, base_tokenizer)
    if not lost:
        return ""
    return (
        "the model was trained with another chat template: remove model.chat_template, or check that the model knows "
        f"it. Prompts lack {', '.join(sorted(lost))}, which mark turns in its own template."
    )


def _special_tokens(templated: PreTrainedTokenizerBase, known: PreTrainedTokenizerBase) -> set[str]:
    """Return the special tokens of `known` in a prompt by the template of `templated`."""
    try:
        messages = [{"role": "user", "content": "?"}]
        prompt = str(templated.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception:  # a template may be missing, or refuse any conversation
        return set()
    tokens = {*known.all_special_tokens, *(str(t) for t in known.added_tokens_decoder.values())}
    return {token for token in tokens if token in prompt}


def without_embedding(tokenizer: PreTrainedTokenizerBase, embeddings: int) -> str:
    """Return a token of the vocabulary or of the chat template that a model with this many embeddings lacks."""
    if tokenizer.vocab_size > embeddings:
        return repr(tokenizer.convert_ids_to_tokens(embeddings))
    beyond = {str(token) for index, token in tokenizer.added_tokens_decoder.items() if index >= embeddings}
    written = sorted(beyond & _special_tokens(tokenizer, tokenizer)) if beyond else []
    return repr(written[0]) if written else ""


CHATML = """{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '@END@\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""
IM_END = "<|im_end|>"
GIT_LFS = b"version https://git-lfs"
"""The beginning of a file that Git LFS has not fetched."""


def chat_template(name: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the template of `model.chat_template`: `chatml`, or a file's. Raises ModelLoadError.

    A base model that never saw `<|im_end|>` ends its turns with the end-of-text token, which it knows. If its tokenizer
    begins every text with a special token, the model was trained with it, so `chatml` begins with it as well.
    """
    if name == "chatml":
        known = tokenizer.convert_tokens_to_ids(IM_END) not in (None, tokenizer.unk_token_id)
        end = IM_END if known else tokenizer.eos_token
        if end is None:
            raise ModelLoadError("model.chat_template: chatml needs a tokenizer with an end-of-text token (eos_token)")
        begins = tokenizer.bos_token_id is not None and tokenizer.encode("")[:1] == [tokenizer.bos_token_id]
        return (str(tokenizer.bos_token) if begins else "") + CHATML.replace("@END@", str(end))
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"model.chat_template: {name} cannot be read: {error}") from error


def builtin(name: str, known: dict[str, str], kind: str) -> Path:
    """Return the folder of a built-in model or adapters. Raises ModelLoadError."""
    if name not in known:
        raise ModelLoadError(f"there is no built-in {kind} {name}; there is {', '.join(known)}")
    folder = Path(__file__).parents[1] / "demonstration" / "policies" / known[name]
    if not folder.is_dir():
        raise ModelLoadError(f"{name} is not built in this checkout; run `make policy`")
    return folder


def explain(base: str, error: Exception, what: str = "model") -> str:
    """Explain in one sentence why a model, or a part of it, cannot be loaded."""
    reason = first_line(error)
    if "file named model.safetensors" in reason:
        return f"the {what} {base} has no safetensors weights, and other formats are not loaded: {reason}"
    if (pointer := _pointer(Path(base).expanduser())) is not None:
        reason = f"{pointer} is only a pointer of Git LFS; `git lfs pull` in that folder fetches the file"
    elif "custom code" in reason:
        reason = "it needs code from its repository, which grpo-tui never runs"
    elif "ignore_mismatched_sizes" in reason:
        reason = "the shapes of its weights differ from its config.json"
    elif "for this kind of AutoModel" in reason:
        reason = "transformers has no causal language model of its kind"
    elif isinstance(error, TypeError):
        reason = f"its config.json or generation_config.json has a value of a wrong type ({reason})"
    elif isinstance(error, ImportError) and "quantiz" in reason:
        reason += " (or name the model with weights that are not quantized)"
    return f"the {what} {base} cannot be loaded: {reason}"


def _pointer(folder: Path) -> Path | None:
    """Return a file that a clone without Git LFS left as a pointer; None if there is none."""
    for file in (*folder.glob("*.safetensors"), *folder.glob("*.json")):
        with suppress(OSError), file.open("rb") as content:
            if content.read(len(GIT_LFS)) == GIT_LFS:
                return file
    return None


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or all of it as one line if the first only announces the rest."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    first = " ".join(map(str.strip, lines)) if lines[0].rstrip().endswith(":") else lines[0]
    return f"KeyError: {first}" if isinstance(error, KeyError) else first
