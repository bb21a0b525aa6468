"""The image of a step, with its mask, box, point and path drawn on it.

Half blocks (two pixels per cell) work in every terminal. Terminals that support it get real pixels instead, by kitty's
protocol or sixel, through textual-image. The environment determines the protocol. No query is sent, because its answer
would arrive among the keys. `GRPO_TUI_IMAGES` (`kitty`, `sixel` or `blocks`) overrides the choice for unknown
terminals. A thread decodes and draws, and only an image that is on screen.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size

from ....configs.pictures import open_picture
from ....engine.runs.remote.address import address_of
from ....engine.runs.types import Overlay, Trajectory
from .pane import Line, Pane

if TYPE_CHECKING:
    from PIL.Image import Image
    from textual.widget import Widget

_KEPT = 24
GAP = 0.04
_RAMP = " ·:-=+*#%@"
MASK_COLOR = (255, 196, 0)
LINE_COLOR = (255, 64, 96)


def resolve(run: Path, path: str) -> Path | None:
    """Return the file of an image. None if its path leaves the run's folder or is invalid."""
    folder = run.resolve()
    try:
        file = (folder / path).resolve()
    except (OSError, ValueError):
        return None
    return file if file.is_relative_to(folder) else None


def _fetched(run: Path, path: str) -> Path | None:
    """Return the file of an image. First copies that of a remote run to this machine, which may take seconds."""
    file = resolve(run, path)
    if file is not None and address_of(run) is not None:
        from ....engine.runs.remote.mirror import fetch  # imported here: local runs do not need it

        fetch(run.resolve(), file)
    return file


def _opened(run: Path, source: str) -> AbstractContextManager[Image]:
    file = _fetched(run, source)
    if file is None:
        raise ValueError(f"it is outside the run's folder ({source})")
    return open_picture(file)


def compose(run: Path, source: str, overlay: Overlay | None, size: tuple[int, int]) -> Image:
    """Scale the image to `size` pixels and draw the references of the step. Raises OSError or ValueError for a missing
    file or another format."""
    from PIL import Image, ImageDraw

    with _opened(run, source) as opened:
        natural = opened.size
        picture = opened.convert("RGB").resize(
            size, Image.Resampling.BOX if size[0] < natural[0] else Image.Resampling.NEAREST
        )
    if overlay is None:
        return picture
    sx, sy = size[0] / natural[0], size[1] / natural[1]
    mask_file = _fetched(run, overlay.mask_path) if overlay.mask_path else None
    if mask_file is not None and mask_file.is_file():
        with open_picture(mask_file) as opened:
            mask = opened.convert("L").resize(size, Image.Resampling.BILINEAR)
        picture.paste(Image.new("RGB", size, MASK_COLOR), (0, 0), mask.point([v * 150 // 255 for v in range(256)]))
    draw = ImageDraw.Draw(picture)
    stroke = max(1, size[0] // 160)
    if overlay.box is not None:
        x0, y0, x1, y1 = overlay.box
        box = (min(x0, x1) * sx, min(y0, y1) * sy, max(x0, x1) * sx, max(y0, y1) * sy)
        draw.rectangle(box, outline=LINE_COLOR, width=stroke)
    if len(overlay.path) >= 2:
        draw.line([(x * sx, y * sy) for x, y in overlay.path], fill=LINE_COLOR, width=stroke)
    points = [overlay.point] if overlay.point is not None else []
    points += [overlay.path[-1]] if overlay.path else []
    arm = max(2, size[0] // 40)
    for x, y in points:
        draw.line((x * sx - arm, y * sy, x * sx + arm, y * sy), fill=LINE_COLOR, width=stroke)
        draw.line((x * sx, y * sy - arm, x * sx, y * sy + arm), fill=LINE_COLOR, width=stroke)
    return picture


def natural_size(run: Path, source: str) -> tuple[int, int]:
    """Return width and height of an image. Raises the same errors as `compose`."""
    with _opened(run, source) as opened:
        return opened.size


def together(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the size of images in one row, as high as the first. The gaps are `GAP` of its width."""
    width, height = sizes[0]
    more = sum(GAP * width + w * height / h for w, h in sizes[1:])
    return round(width + more), height


def beside(left: Image, right: Image) -> Image:
    """Join two images of equal height."""
    from PIL import Image

    gap = max(1, round(GAP * left.width))
    both = Image.new("RGB", (left.width + gap + right.width, left.height))
    both.paste(left, (0, 0))
    both.paste(right, (left.width + gap, 0))
    return both


def half_blocks(picture: Image) -> list[list[Segment]]:
    """Draw two pixels per cell with `▀`: foreground above, background below."""
    width, height = picture.size
    data = picture.tobytes()
    row_bytes = width * 3
    rows = []
    for y in range(0, height - 1, 2):
        upper = data[y * row_bytes : (y + 1) * row_bytes]
        lower = data[(y + 1) * row_bytes : (y + 2) * row_bytes]
        pairs = (upper[x : x + 3] + lower[x : x + 3] for x in range(0, row_bytes, 3))
        row = []
        for pair, same in groupby(pairs):
            style = Style(color=Color.from_rgb(*pair[:3]), bgcolor=Color.from_rgb(*pair[3:]))
            row.append(Segment("▀" * len(list(same)), style))
        rows.append(row)
    return rows


def shades(picture: Image) -> list[list[Segment]]:
    """Draw brightness as characters, for terminals without colour."""
    grey = picture.convert("L").resize((picture.size[0], picture.size[1] // 2))
    width, height = grey.size
    data = grey.tobytes()
    return [
        [Segment("".join(_RAMP[v * (len(_RAMP) - 1) // 255] for v in data[y * width : (y + 1) * width]), Style())]
        for y in range(height)
    ]


Kind = Literal["kitty", "sixel", "blocks"]

_SIXEL_PROGRAMS = ("WezTerm", "iTerm.app", "mintty", "contour", "BlackBox")
_SIXEL_TERMS = ("foot", "mlterm", "contour", "yaft", "xterm-sixel")


def kind(environment: Mapping[str, str] = os.environ) -> Kind:
    """Return the image protocol of this terminal."""
    chosen = environment.get("GRPO_TUI_IMAGES", "")
    if chosen in ("kitty", "sixel", "blocks"):
        return chosen  # type: ignore[return-value]
    if environment.get("NO_COLOR") or environment.get("TMUX") or environment.get("STY"):
        return "blocks"  # multiplexers drop or misplace graphics
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if environment.get("KITTY_WINDOW_ID") or term in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return "kitty"
    if program in _SIXEL_PROGRAMS or term.startswith(_SIXEL_TERMS):
        return "sixel"
    return "blocks"


def cell_pixels() -> tuple[int, int]:
    """Return the pixel size of a cell as the terminal's driver reports it, or 10 × 20."""
    try:
        import fcntl
        import struct
        import termios

        assert sys.__stdout__ is not None
        packed = fcntl.ioctl(sys.__stdout__.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
        rows, columns, width, height = struct.unpack("HHHH", packed)
        if rows and columns and width >= columns and height >= rows:
            return width // columns, height // rows
    except (ImportError, OSError, ValueError, AssertionError):
        pass
    return 10, 20


def make(chosen: Kind, send: Callable[[str], None]) -> Widget:
    """Return a textual-image widget for this protocol. Its `image` takes a PIL image. `send` writes to the terminal."""
    from textual_image import _terminal

    # Importing the package sends queries to the terminal, and the running app would take the answers for keys.
    size = _terminal.CellSize(*cell_pixels())
    setattr(_terminal.get_cell_size, "_result", size)  # noqa: B010  where textual-image keeps it
    real: object = sys.__stdout__
    try:
        sys.__stdout__ = SimpleNamespace(isatty=lambda: False)  # type: ignore[misc, assignment]
        from textual_image.widget import SixelImage, TGPImage
    finally:
        sys.__stdout__ = real  # type: ignore[misc]
    from textual_image.renderable import tgp

    # Pictures in kitty's protocol are written when drawn, bypassing the app. See `OwnOutputApp.send`.
    tgp.sys = SimpleNamespace(__stdout__=SimpleNamespace(write=send, flush=lambda: None))  # type: ignore[assignment]
    return TGPImage(id="graphic") if chosen == "kitty" else SixelImage(id="graphic")


class ImagePane(Pane):
    """`source`: the image of the step, if any. `seen`: the file that the policy saw, drawn next to it."""

    pad = 0
    title = "image"

    def __init__(self) -> None:
        super().__init__("image")
        self.run = Path()
        self.source = ""
        self.seen = ""
        self.overlay: Overlay | None = None
        self.natural = (4, 3)
        self._rows: list[list[Segment]] | None = None
        self._problem = ""
        self._drawn: OrderedDict[tuple[object, ...], Any] = OrderedDict()
        self._kind: Kind = kind()
        self.cell = cell_pixels() if self._kind != "blocks" else None
        """Pixels per cell if the terminal shows pixels. Then `picture` covers the pane."""
        self.picture: Image | None = None
        self._graphic: Any = None
        """The textual-image widget."""

    def put(self, run: Path, trajectory: Trajectory, step: int) -> None:
        self.run = run
        overlay, source = None, ""
        if trajectory.steps:
            shown = trajectory.steps[min(step, len(trajectory.steps) - 1)]
            overlay = shown.overlay
            frame = next((view.content for view in shown.display if view.kind == "image"), "")
            source = (overlay.image if overlay else None) or (shown.images[0] if shown.images else frame)
        source = source or (trajectory.images[0] if trajectory.images else "")
        shown_before = [*trajectory.seen, *(image for earlier in trajectory.steps[:step] for image in earlier.seen)]
        image = shown_before[-1] if shown_before else None  # the last one before the step
        seen = (image.path or "") if image is not None else ""
        if (source, overlay, seen) == (self.source, self.overlay, self.seen):
            return
        self.source, self.overlay, self.seen = source or seen, overlay, seen if source else ""
        self.title = f"image {overlay.label}".strip() if overlay and overlay.label else "image"
        if image is not None:
            seen = "right: the policy's view" if self.seen else "the policy's view"
            self.title += f" · {seen}, {image.width} × {image.height} pixels, {image.tokens} tokens"
        self._ask()

    def rows_for(self, width: int) -> int:
        return max(1, round(width * self.natural[1] / self.natural[0] / 2))

    def placed(self, region: Region) -> None:
        super().placed(region)
        if not region.area:
            self._show_pixels()

    def on_placed(self) -> None:
        self._ask()

    def _ask(self) -> None:
        self._rows, self._problem, self.picture = None, "", None
        self._show_pixels()
        if not self.source or not self.shown:
            return
        file = resolve(self.run, self.source)
        if file is not None and not file.is_file() and address_of(self.run) is None:  # known at once, without a thread
            self._problem = f"the image {self.source} is missing"
            self.changed()
            return
        key = self.source, self.overlay, self.seen, self.size
        kept = self._drawn.get(key)
        if kept is not None:
            self._take(*kept)
        else:
            assert self.frame is not None
            self.frame.run_worker(lambda: self._draw(self.run, *key), thread=True, exclusive=True, group="image")

    def _draw(self, run: Path, source: str, overlay: Overlay | None, seen: str, size: Size) -> None:
        drawn: Any = None
        natural, problem = self.natural, ""
        try:
            sizes = [natural_size(run, name) for name in (source, seen) if name]
            natural = together(sizes)
            width, height = size
            across, down = self.cell or (1, 2)
            scale = min(across * width / natural[0], down * height / natural[1])
            tall = max(2, int(natural[1] * scale) // 2 * 2)
            wide = [max(1, int(w * natural[1] / h * scale)) for w, h in sizes]
            picture = compose(run, source, overlay, (wide[0], tall))
            if seen:
                picture = beside(picture, compose(run, seen, None, (wide[1], tall)))
            if self.cell is not None:
                drawn = picture
            else:
                drawn = shades(picture) if self.app.no_color else half_blocks(picture)
        except FileNotFoundError:
            problem = f"the image {source} is missing"
        except (OSError, ValueError) as error:
            problem = f"the image cannot be shown: {error}"
        self.app.call_from_thread(self._done, (source, overlay, seen, size), drawn, natural, problem)

    def _done(self, key: tuple[object, ...], drawn: object, natural: tuple[int, int], problem: str) -> None:
        if drawn is not None:
            self._drawn[key] = drawn, natural
            if len(self._drawn) > _KEPT:
                self._drawn.popitem(last=False)
        if key == (self.source, self.overlay, self.seen, self.size):
            self._problem = problem
            self._take(drawn, natural)

    def _take(self, drawn: Any, natural: tuple[int, int]) -> None:
        self.natural = natural
        if self.cell is not None:
            self.picture = drawn
        else:
            self._rows = drawn
        self.changed()
        self._show_pixels()

    def _show_pixels(self) -> None:
        """Place real pixels over the pane, in terminals that support them."""
        picture, region = self.picture, self.region
        if self.cell is None or picture is None or not region.area:
            if self._graphic is not None:
                self._graphic.display = False
            return
        if self._graphic is None:
            assert self.frame is not None
            self._graphic = make(self._kind, self.app.send)
            self.frame.screen.mount(self._graphic)
        widget, (across, down) = self._graphic, self.cell
        width, height = -(-picture.width // across), -(-picture.height // down)
        widget.styles.width, widget.styles.height = min(width, region.width), min(height, region.height)
        widget.styles.offset = (region.x + (region.width - width) // 2, region.y)
        widget.image = picture
        widget.display = True

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        if self._problem:
            return [Line(p).add(self._problem, p.warn, cells=width)]
        if self.picture is not None:
            return []
        if not self._rows:
            return [Line(p).add("…" if self.source else "this step has no image", p.faint)]
        lines = []
        for row in self._rows[:height]:
            size = sum(len(s.text) for s in row)
            line = Line(p).gap(max(0, (width - size) // 2))
            line.segments += [s if s.style else Segment(s.text, p.base) for s in row]
            line.width += size
            lines.append(line)
        return lines
