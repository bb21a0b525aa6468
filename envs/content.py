"""The content of a message: text, or blocks of text and pictures in reading order.

A vision policy reads the blocks. All other readers (text policies, the record, reward functions) use `text_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

IMAGE_SIGN = "[image]"
"""Placeholder for a picture in text."""


@dataclass(frozen=True)
class Picture:
    """A picture or video frame, whose pixels are loaded on demand.

    `name` identifies the content: equal names mean equal pixels, so each is saved once. `load` returns uint8 [H, W, 3],
    or [H, W] for a mask (255 = inside).
    """

    name: str
    load: Callable[[], np.ndarray] = field(compare=False)


class TextBlock(TypedDict):
    """A block of text in a message."""

    type: Literal["text"]
    text: str


class ImageBlock(TypedDict):
    """A block that shows a picture."""

    type: Literal["image"]
    image: Picture


Block = TextBlock | ImageBlock
Content = str | list[Block]


def blocks_of(content: Content) -> list[Block]:
    """Return content as blocks. Empty text has none."""
    if not isinstance(content, str):
        return content
    return [TextBlock(type="text", text=content)] if content else []


def text_of(content: Content) -> str:
    """Return the text, with a placeholder for each picture."""
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] if block["type"] == "text" else IMAGE_SIGN for block in content)


def pictures_of(messages: Sequence[Mapping[str, object]]) -> list[Picture]:
    """Return the pictures of a conversation in reading order."""
    contents = [message.get("content") for message in messages]
    return [b["image"] for c in contents if isinstance(c, list | tuple) for b in c if b["type"] == "image"]


def with_text_before(text: str, content: Content) -> Content:
    """Prepend a paragraph to the content."""
    if isinstance(content, str):
        return f"{text}\n\n{content}"
    return [TextBlock(type="text", text=text), *content]


def checked_content(content: object) -> Content:
    """Return `content` if it is text or blocks. Raises TypeError."""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)) or not content:
        raise TypeError('the content of a message must be text or a list of blocks such as {"type": "text", "text": …}')
    for block in content:
        match block:
            case {"type": "text", "text": str()} | {"type": "image", "image": Picture()}:
                continue
        raise TypeError('a block must be {"type": "text", "text": str} or {"type": "image", "image": Picture}')
    return list(content)
