"""The tiny policy's tokenizer: byte-level BPE trained on the task text, numbers as single tokens, a chat template."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END, PAD = "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant", "tool")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
"""Roles and ends are one token each, so the separator between two turns takes three tokens instead of a dozen."""

WORDS = r"\d+|[a-z]+|[A-Z_]+|[^A-Za-z0-9]+"
"""Numbers stay whole, so a coordinate can become one token. A run of punctuation and spaces stays together, so that
JSON's separator between two values is one token. Words do not include the space before them, so a word is the same
token everywhere and can be copied from an observation into an answer."""


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 768, numbers: int = 128) -> PreTrainedTokenizerFast:
    """Train on `texts`, deterministically. Every number below `numbers` is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - numbers,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(str(n), single_word=True, normalized=False) for n in range(10, numbers)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=special[2:],
        chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
