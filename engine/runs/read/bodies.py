"""Read one whole trajectory: its turns, reward breakdown, tokens and token texts."""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, Literal

from ....envs.tools import ToolSpec
from ..errors import RecordDamaged
from ..learning import USE_COLUMNS, Use, use_of
from ..schema import AMONG
from ..types import TokenArrays, TrajectoryRecord
from .record import Record


class Alphabet(StrEnum):
    """The notation of the tokens in a vocabulary."""

    TEXT = "text"
    """Plain text."""
    BYTE_LEVEL = "byte-level"
    """Every byte is a printable character: `Ġthe` is ` the`, `Ċ` a line break (GPT-2, Llama 3, Qwen)."""
    SENTENCEPIECE = "sentencepiece"
    """`▁the` is ` the`, and `<0x0A>` a byte (Llama 2, Gemma, Mistral)."""


_PIECE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@lru_cache(maxsize=1 << 16)
def token_bytes(symbol: str, alphabet: Alphabet) -> bytes:
    """Return the bytes of a token. Those of a special token are its name."""
    if alphabet is Alphabet.BYTE_LEVEL and all(char in _BYTES for char in symbol):
        return bytes(_BYTES[char] for char in symbol)
    if alphabet is Alphabet.SENTENCEPIECE:
        if found := _PIECE_BYTE.fullmatch(symbol):
            return bytes.fromhex(found[1])
        symbol = symbol.replace("▁", " ")
    return symbol.encode("utf-8", "surrogatepass")


SAME_CHARACTER = "⁺"
"""Marks a token that continues a character of an earlier token."""


def texts_in_order(symbols: Sequence[str], alphabet: Alphabet) -> list[str]:
    """Return the text of each token of a sequence.

    A character that spans several tokens belongs to the first of them. The others are `SAME_CHARACTER`.
    """
    texts: list[str] = []
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    incomplete, first = False, 0
    """Whether a character is unfinished, and the token in which it began."""
    for index, symbol in enumerate(symbols):
        text, continues = decoder.decode(token_bytes(symbol, alphabet)), incomplete
        if continues and text:
            texts[first] += text[0]
        texts.append(SAME_CHARACTER + text[1:] if continues else text)
        incomplete = bool(decoder.getstate()[0])
        if incomplete and (text or not continues):
            first = index
    if incomplete:
        texts[first] += decoder.decode(b"", final=True)
    return texts


def _byte_alphabet() -> dict[str, int]:
    """Return the alphabet of GPT-2's byte-level BPE: printable bytes map to themselves, others to 256 and up."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in set(printable)]
    alphabet.update({chr(256 + i): b for i, b in enumerate(others)})
    return alphabet


_BYTES = _byte_alphabet()


class Bodies:
    """Reads whole trajectories by number or id (the latest with that id)."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._toolsets: dict[int, tuple[ToolSpec, ...]] = {}

    def trajectory(self, id_or_n: str | int) -> TrajectoryRecord:
        """Return a whole trajectory without its tokens. Raises LookupError or RecordDamaged."""
        from .. import codec

        n = self.number(id_or_n)
        body, first = self._load(n, "body")
        try:
            return codec.decode_body((body or b"").split(b"\n")[n - first], self.tools(n))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise RecordDamaged(f"trajectory {id_or_n} of {self._record.run_dir} cannot be read ({error})") from error

    def uses(self, id_or_n: str | int, record: TrajectoryRecord | None = None) -> list[Use]:
        """Return how updates used a trajectory, beginning with its own step. Passing `record` saves reading it again.

        Raises the same errors as `trajectory`.
        """
        n = self.number(id_or_n)
        own = (record or self.trajectory(n)).use
        rows = self._record.all(f"SELECT {USE_COLUMNS} FROM uses WHERE n = ? ORDER BY step, mask", (n,))
        later = [use for row in rows if (use := use_of(*row)) is not None]
        return [*([] if own is None else [own]), *later]

    def tokens(self, id_or_n: str | int) -> TokenArrays[Any] | None:
        """Return token ids, agent mask, log-probs and advantages of a trajectory; None if they were not recorded."""
        from .. import codec

        n = self.number(id_or_n)
        arrays, first = self._load(n, "tokens")
        try:
            return None if arrays is None else codec.decode_tokens(arrays, n - first)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise RecordDamaged(f"the tokens of trajectory {id_or_n} cannot be read ({error})") from error

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        r"""Return the texts of token ids without a tokenizer: `<id>` if the vocabulary lacks the id, and `\xNN` for
        bytes that are not valid UTF-8."""
        alphabet = self.alphabet
        return [token_bytes(s, alphabet).decode("utf-8", "backslashreplace") for s in self.token_symbols(ids)]

    def text_of(self, ids: Sequence[int]) -> str | None:
        """Return the text of a sequence of token ids; None if the vocabulary lacks one."""
        symbols, alphabet = self.token_symbols(ids), self.alphabet
        if any(symbol == f"<{int(i)}>" for symbol, i in zip(symbols, ids, strict=True)):
            return None
        return b"".join(token_bytes(symbol, alphabet) for symbol in symbols).decode("utf-8", "replace")

    def token_symbols(self, ids: Sequence[int]) -> list[str]:
        sql = f"SELECT id, text FROM vocabulary WHERE typeof(text) = 'text' AND id {AMONG}"  # no text: damaged
        texts: dict[int, str] = dict(self._record.all(sql, (json.dumps(sorted({int(i) for i in ids})),)))
        return [texts.get(int(i), f"<{int(i)}>") for i in ids]

    @cached_property
    def alphabet(self) -> Alphabet:
        """The notation of the vocabulary: as the writer declared it, else as inferred from the tokens."""
        if self._record.scalar("SELECT value FROM meta WHERE key = 'vocabulary'") == Alphabet.BYTE_LEVEL:
            return Alphabet.BYTE_LEVEL
        looks = {" [a-z]*": Alphabet.TEXT, "▁[a-z]*": Alphabet.SENTENCEPIECE, "Ġ[a-z]*": Alphabet.BYTE_LEVEL}
        sql = "SELECT 1 FROM vocabulary WHERE text GLOB ? LIMIT 1"
        return next((a for pattern, a in looks.items() if self._record.scalar(sql, (pattern,))), Alphabet.TEXT)

    def number(self, id_or_n: str | int) -> int:
        """Return the number of a trajectory by id (the latest with that id) or number. Raises LookupError."""
        scalar = self._record.scalar
        if isinstance(id_or_n, str):
            n = scalar("SELECT max(n) FROM cards WHERE id = ?", (id_or_n,))
            if n is None and id_or_n.isdecimal() and len(id_or_n) < 19:
                n = scalar("SELECT n FROM rows WHERE n = ?", (int(id_or_n),))
        else:
            n = scalar("SELECT n FROM rows WHERE n = ?", (id_or_n,))
        if n is None:
            total = scalar("SELECT max(n) FROM rows")
            numbers = f"it has numbers 1 to {total}" if total else "it has none yet"
            raise LookupError(f"no trajectory {id_or_n!r} in run {self._record.run_dir.name}; {numbers}")
        return int(n)

    def _load(self, n: int, column: Literal["body", "tokens"]) -> tuple[bytes | None, int]:
        """Return a column of the chunk that holds trajectory n, and the chunk's first trajectory number."""
        from .. import codec

        run_dir = self._record.run_dir
        sql = f"SELECT {column}, first_n FROM chunks WHERE first_n <= ? ORDER BY first_n DESC LIMIT 1"
        row = self._record.all(sql, (n,))
        if not row:
            raise RecordDamaged(f"trajectory {n} of {run_dir} cannot be read: its text is missing")
        data, first = row[0]
        try:
            return None if data is None else codec.decompress(data), first
        except ValueError as error:
            raise RecordDamaged(f"trajectory {n} of {run_dir} cannot be read: {error}") from error

    def tools(self, n: int) -> tuple[ToolSpec, ...]:
        """Return the tools that a trajectory's environment declared; empty if none were recorded."""
        id_ = self._record.scalar("SELECT toolset FROM rows WHERE n = ?", (n,))
        if id_ is None:
            return ()
        if id_ not in self._toolsets:
            text = self._record.scalar("SELECT tools FROM toolsets WHERE id = ?", (id_,))
            self._toolsets[id_] = tuple(ToolSpec.from_json(t) for t in json.loads(text)) if text else ()
        return self._toolsets[id_]
