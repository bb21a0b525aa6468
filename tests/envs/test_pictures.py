"""Pictures of any kind: what can be shown is, and what cannot costs its own rollout, with the reason."""

from __future__ import annotations

import base64
import contextlib
import io
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grpo_tui.engine.demonstration.visual import VisualEnv
from grpo_tui.engine.demonstration.visual.clips import clip_of_files
from grpo_tui.engine.demonstration.visual.env import with_cross
from grpo_tui.engine.demonstration.visual.glance import GlanceEnv
from grpo_tui.envs.agent import Message
from grpo_tui.envs.calls import ToolCall
from grpo_tui.envs.chat import ChatEnv
from grpo_tui.envs.content import Content, checked_content, pictures_of, text_of, with_text_before
from grpo_tui.envs.pictures import picture_of, read_pixels


def content_of(messages: Sequence[Message]) -> Content:
    return messages[0].get("content", "")


def saved(folder: Path, name: str, mode: str = "RGB", size: tuple[int, int] = (12, 8), **options: object) -> str:
    colour = {"RGB": (200, 10, 10), "CMYK": (0, 255, 255, 20), "RGBA": (200, 10, 10, 0), "LA": (9, 0), "I;16": 40000}
    Image.new(mode, size, colour.get(mode, 1)).save(folder / name, **options)  # type: ignore[arg-type]
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("a.png", "RGB"),
        ("a.jpg", "CMYK"),
        ("a.png", "RGBA"),
        ("a.png", "LA"),
        ("a.png", "I;16"),
        ("a.png", "1"),
        ("a.gif", "P"),
    ],
)
def test_every_kind_of_picture_becomes_three_bytes_a_pixel(tmp_path, name, mode):
    pixels = picture_of(saved(tmp_path, name, mode)).load()
    assert pixels.dtype == np.uint8 and pixels.shape == (8, 12, 3)
    if mode == "RGBA":
        assert (pixels == 255).all(), "what is transparent is white"
    if mode == "CMYK":
        assert pixels[0, 0, 0] > 150 > pixels[0, 0, 1]


def test_an_animation_shows_its_first_frame_and_a_pixel_is_a_picture(tmp_path):
    frames = [Image.new("RGB", (6, 6), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert picture_of(str(tmp_path / "a.gif")).load()[0, 0].tolist() == [255, 0, 0]
    assert picture_of(saved(tmp_path, "one.png", size=(1, 1))).load().shape == (1, 1, 3)


def test_a_data_url_is_named_by_its_content():
    buffer = io.BytesIO()
    Image.new("RGB", (5, 4), "blue").save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    assert picture_of(url) == picture_of(url)
    assert picture_of(url).load()[0, 0].tolist() == [0, 0, 255]


@pytest.mark.parametrize(
    "source", ["missing.png", "http://example.org/a.png", "data:text/plain;base64,aaaa", "data:image/png;base64,%%"]
)
def test_what_is_no_picture_is_refused_with_a_reason(source):
    with pytest.raises(ValueError, match=r"there is no image|a file or a data URL|must start with|not base64"):
        picture_of(source)


def test_broken_and_huge_files_say_what_is_wrong_when_they_are_read(tmp_path):
    whole = Path(saved(tmp_path, "a.png", size=(64, 64))).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no picture")
    for name in ("cut.png", "text.png"):
        with pytest.raises(ValueError, match="cannot be read as an image"):
            picture_of(str(tmp_path / name)).load()
    for name, mode in (("huge.png", "1"), ("huge.gif", "P")):
        with pytest.raises(ValueError, match="8,000 x 6,000 pixels; at most 40,000,000"):
            picture_of(saved(tmp_path, name, mode, (8000, 6000))).load()
    with pytest.raises(ValueError, match="8,000 x 6,000 pixels; at most 40,000,000"):
        clip_of_files([tmp_path / "huge.png"], 64)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


def test_a_picture_of_another_kind_starts_no_program(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    (tmp_path / "a.png").write_bytes(EPS)
    for read in (lambda path: picture_of(path).load(), lambda path: clip_of_files([Path(path)], 64)):
        with pytest.raises(ValueError, match="cannot be read as an image: it is not a PNG, JPEG, WebP or GIF image"):
            read(str(tmp_path / "a.png"))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_damaged_picture_raises_nothing_but_a_reason(kind):
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    frames = [Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8)) for _ in range(3)]
    frames[0].save(buffer, kind, **({} if kind == "JPEG" else {"save_all": True, "append_images": frames[1:]}))
    for _ in range(150):
        damaged = bytearray(buffer.getvalue()[: rng.integers(1, buffer.tell() + 1)])
        for place in rng.integers(0, len(damaged), rng.integers(0, 6)):
            damaged[place] = rng.integers(256)
        with contextlib.suppress(ValueError):
            read_pixels(bytes(damaged), "it")


def test_blocks_are_read_as_text_with_a_sign_where_a_picture_stands(tmp_path):
    task = {"messages": [{"role": "user", "content": [
        {"type": "image", "image": saved(tmp_path, "a.png")}, {"type": "text", "text": "Which colour?"}]}]}  # fmt: skip
    _, messages = ChatEnv().reset(task)
    assert text_of(content_of(messages)) == "[image]\nWhich colour?"
    assert text_of(with_text_before("Look.", content_of(messages))) == "Look.\n[image]\nWhich colour?"
    assert len(pictures_of(messages)) == 1
    with pytest.raises(ValueError, match=r"messages\[0\]: a block must be"):
        ChatEnv().reset({"messages": [{"role": "user", "content": [{"type": "sound"}]}]})
    with pytest.raises(TypeError, match="a block must be"):
        checked_content([{"type": "image", "image": "a path"}])


def test_what_tools_find_is_drawn_for_a_policy_that_sees_and_only_for_one():
    env = VisualEnv(questions=("colour",), photo_share=0.0)
    task = env.make_tasks("train", 1, 0)[0]
    x, y = task["points"][0]
    call = ToolCall("SEGMENT_OBJECT_AT", {"x": x, "y": y}, "")
    state, messages = env.reset(task)
    assert isinstance(content_of(messages), str) and not env.step(state, call).images
    env.sees = True
    state, messages = env.reset(task)
    (shown,) = pictures_of(messages)
    (drawn,) = env.step(state, call).images
    changed = (shown.load() != drawn.load()).any(-1)
    assert changed[y, x] and 0.01 < changed.mean() < 0.5
    crossed = with_cross(np.zeros((9, 9, 3), np.uint8), 8, 0)
    assert crossed[0, 8].tolist() == [255, 0, 255] and crossed[8, 0].tolist() == [0, 0, 0]


def test_a_glance_asks_what_only_the_picture_says():
    env = GlanceEnv()
    tasks = env.make_tasks("train", 40, 0)
    assert tasks == env.make_tasks("train", 40, 0) and tasks != env.make_tasks("eval", 40, 0)
    assert {t["question"] for t in tasks} == {"colour", "count"}
    for task in tasks[:6]:
        state, messages = env.reset(task)
        assert str(task["answer"]) not in text_of(content_of(messages))
        said = env.demonstrate(task, "right").next(None)
        assert env.step(state, ToolCall("ANSWER", {"text": said}, said)).correct
        for route in ("neighbour", "guess"):
            said = env.demonstrate(task, route).next(None)
            assert env.step(state, ToolCall("ANSWER", {"text": said}, said)).correct is False
    (blank,) = pictures_of(GlanceEnv(blank=True).reset(tasks[0])[1])
    assert len(np.unique(blank.load())) == 1
