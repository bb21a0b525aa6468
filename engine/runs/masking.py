"""Keep secrets out of files by key name and by value pattern."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

MASKED = "••••••"

_WORD = re.compile("secrets?|password|passwd|passphrase|credentials?|authorization|bearer|apikey")
_PAIRS = {(word, "key") for word in ("api", "access", "private", "auth", "secret", "signing", "encryption")}
_PLAIN_TOKENS = {"pad", "eos", "bos", "unk", "sep", "cls", "mask", "stop", "end", "image", "video", "special"}
_VALUES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)"
)
_INNER_KEY = re.compile(r"([\w.-]+)[\"']?\s*[:=]")
_USERINFO = re.compile(r"(?<=://)[^/\s:@]*:[^/\s]+(?=@)")


def is_secret_key(key: str) -> bool:
    """Return whether a key names a secret, such as `WANDB_API_KEY`, `hf_token` or `dbPassword`.

    `max_tokens`, `tokenizer` and `api_key_env` (a variable's name) are not secrets.
    """
    words = [w for w in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()) if w]
    if words and words[-1] == "env":
        return False
    if any(map(_WORD.fullmatch, words)) or not _PAIRS.isdisjoint(itertools.pairwise(words)):
        return True
    return bool(words) and words[-1] == "token" and not _PLAIN_TOKENS.intersection(words)


def mask_text(text: str) -> str:
    """Replace everything in a text that looks like a well-known kind of secret."""
    return _USERINFO.sub(MASKED, _VALUES.sub(MASKED, text))


def mask(value: object, key: str = "") -> Any:
    """Return a copy of plain data with secrets replaced. Numbers and booleans stay under any key, because they are
    limits."""
    if isinstance(value, Mapping):
        return {k: mask(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask(v, key) for v in value]
    if isinstance(value, str):
        if value and is_secret_key(key):
            return MASKED
        return mask_text(value)
    return value


def mask_command(arguments: Sequence[str]) -> list[str]:
    """Mask the secrets in a command line: `--set a.api_key=…`, `--hf-token …`, and values with such keys."""
    masked: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        before = masked[-1] if masked else ""
        if equals and (is_secret_key(name) or any(map(is_secret_key, _INNER_KEY.findall(value)))):
            masked.append(f"{name}={MASKED}")
        elif before.startswith("--") and "=" not in before and is_secret_key(before):
            masked.append(MASKED)
        else:
            masked.append(mask_text(argument))
    return masked
