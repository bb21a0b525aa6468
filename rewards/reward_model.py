"""A reward model: a classifier with one label over prompt and completion, read as TRL reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROWS = 16
"""Completions in one forward pass."""


class RewardModel:
    """A reward function whose score is the logit of a sequence classifier. The model is loaded with the first batch.

    path: a folder, or a hub id. Construction looks at the configuration and raises OSError or ValueError for a path
    that holds no classifier.
    """

    def __init__(self, path: str) -> None:
        from transformers import AutoConfig

        folder = Path(path).expanduser()
        self.path = str(folder) if folder.is_dir() else path
        names = AutoConfig.from_pretrained(self.path).architectures or [""]
        if not any("ForSequenceClassification" in name for name in names):
            raise ValueError(f"{path} is a {names[0] or 'model without an architecture'}, not a sequence classifier")
        self._loaded: tuple[Any, Any] | None = None

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: object) -> list[float]:
        import torch

        model, tokenizer = self._load()
        scores: list[float] = []
        for start in range(0, len(prompts), ROWS):
            rows = slice(start, start + ROWS)
            texts = [_text(p, c, tokenizer) for p, c in zip(prompts[rows], completions[rows], strict=True)]
            inputs = tokenizer(
                text=texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False
            )
            with torch.inference_mode():
                scores += model(**inputs.to(model.device)).logits[:, 0].float().tolist()
        return scores

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer

            model: Any = AutoModelForSequenceClassification.from_pretrained(self.path, num_labels=1)
            tokenizer: Any = AutoTokenizer.from_pretrained(self.path)
            if tokenizer.pad_token_id is None:
                tokenizer.pad_token = tokenizer.eos_token
            model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._loaded = model.to(device).eval(), tokenizer
        return self._loaded


def _text(prompt: Any, completion: Any, tokenizer: Any) -> str:
    if isinstance(prompt, str):
        return f"{prompt}{completion}"
    from trl.data_utils import apply_chat_template

    return apply_chat_template({"messages": [*prompt, *completion]}, tokenizer)["text"]
