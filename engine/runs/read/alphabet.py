"""The alphabets in which tokenizers write their tokens: bytes as printable characters, blanks as `▁`, or plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum


class Alphabet(StrEnum):
    """How the tokens of a vocabulary are written."""

    TEXT = "text"
    """As they read."""
    BYTE_LEVEL = "byte-level"
    """Every byte as a printable character: `Ġthe` is ` the`, `Ċ` a line break (GPT-2, Llama 3, Qwen)."""
    SENTENCEPIECE = "sentencepiece"
    """`▁the` is ` the`, and `<0x0A>` a byte (Llama 2, Gemma, Mistral)."""


_PIECE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(symbol: str, alphabet: Alphabet) -> bytes:
    """Return the bytes of a token. A special token is its own name."""
    if alphabet is Alphabet.BYTE_LEVEL and all(char in _BYTES for char in symbol):
        return bytes(_BYTES[char] for char in symbol)
    if alphabet is Alphabet.SENTENCEPIECE:
        if found := _PIECE_BYTE.fullmatch(symbol):
            return bytes.fromhex(found[1])
        symbol = symbol.replace("▁", " ")
    return symbol.encode("utf-8", "surrogatepass")


def token_text(symbol: str, alphabet: Alphabet) -> str:
    r"""Return one token as text. Bytes that are no valid UTF-8 become `\xNN`."""
    return token_bytes(symbol, alphabet).decode("utf-8", "backslashreplace")


SAME_CHARACTER = "⁺"
"""Marks a token that continues the character of the token before it."""


def texts_in_order(symbols: Sequence[str], alphabet: Alphabet) -> list[str]:
    """Return the text of each token of a sequence.

    A character of several tokens belongs to the first of them. The others are `SAME_CHARACTER`.
    """
    texts: list[str] = []
    known: dict[str, bytes] = {}
    open_bytes, first = b"", 0
    for at, symbol in enumerate(symbols):
        data = known.get(symbol)
        if data is None:
            data = known[symbol] = token_bytes(symbol, alphabet)
        if not open_bytes and data.isascii():
            texts.append(data.decode("ascii"))
            continue
        whole = open_bytes + data
        cut = _unfinished(whole)
        text = whole[: len(whole) - cut].decode("utf-8", "backslashreplace")
        if open_bytes:
            if text:
                texts[first] += text[0]
            texts.append(SAME_CHARACTER + text[1:])
        else:
            texts.append(text)
        if not cut:
            open_bytes = b""
        else:
            first = first if open_bytes and not text else at
            open_bytes = whole[len(whole) - cut :]
    if open_bytes and texts:
        texts[first] += open_bytes.decode("utf-8", "backslashreplace")
    return texts


def _unfinished(data: bytes) -> int:
    """Return how many bytes at the end are the beginning of a character (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC2:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF5 else 0
            return back if needed > back else 0
        if byte < 0x80:
            return 0
    return 0


def _byte_alphabet() -> dict[str, int]:
    """Return the alphabet of GPT-2's byte-level BPE: printable bytes are themselves, others count up from 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in set(printable)]
    alphabet.update({chr(256 + i): b for i, b in enumerate(others)})
    return alphabet


_BYTES = _byte_alphabet()
