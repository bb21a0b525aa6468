"""Texts as lines, rendered by kind with rich and Pygments: Markdown, source code, diffs, JSON, logs with colours.

Model text stays data. It is literal before a renderer sees it, and links and HTML in Markdown stay text. Only the
colour codes of a log apply, and styles hold only colours and attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from rich.color_triplet import ColorTriplet
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from ...text import wrap
from ..kinds import SGR
from ..theme import Palette
from .pane import Line

if TYPE_CHECKING:
    from rich.markdown import Markdown
    from rich.syntax import SyntaxTheme

_BOXED = re.compile(r"\\boxed\s*\{")
_ANSI_ROLES = ("faint", "bad", "good", "warn", "accent", "accent", "accent", "text")
"""Roles for the terminal's eight colours, whose own shades may be unreadable on this background."""
_KEPT = ("bold", "italic", "underline", "strike", "reverse")


class Renderer:
    """Renders texts in the colours of one palette."""

    def __init__(self, palette: Palette, colors: bool = True) -> None:
        self.palette, self.colors = palette, colors

    def lines(self, text: str, kind: str, width: int, style: Style) -> list[Line]:
        """Render a literal text (`kinds.prepared`) in lines of at most `width` cells."""
        try:
            if kind == "markdown":
                lines = self._markdown(text, width, style)
            elif kind == "ansi":
                lines = self._wrapped(self._ansi(text), width)
            elif self.colors and kind not in ("raw", "plain"):
                from rich.syntax import Syntax

                syntax = Syntax(text, kind, theme=self._theme, background_color="default")
                lines = self._wrapped(syntax.highlight(text)[: len(text)], width)
            else:
                lines = [Line(self.palette, part, style) for part in wrap(text, width, len(text))]
        except Exception:  # a renderer failed on an odd text, but the text itself can always be shown
            lines = [Line(self.palette, part, style) for part in wrap(SGR.sub("", text), width, len(text))]
        return self._boxed(lines)

    def _line(self, segments: Sequence[Segment], style: Style | None = None) -> Line:
        line, base = Line(self.palette), self.palette.base + style if style else self.palette.base
        for segment in segments:
            if not segment.control and segment.text:
                shown = base + segment.style if segment.style else base
                line.add(segment.text, shown + self._ground if shown.bgcolor and shown.bgcolor.is_default else shown)
        return line

    def _wrapped(self, text: Text, width: int) -> list[Line]:
        lines: list[Line] = []
        for paragraph in text.split("\n", allow_blank=True):
            for part, start in broken(paragraph.plain, width):
                lines.append(self._line(list(paragraph[start : start + len(part)].render(self._console))))
        return lines

    # -- kinds --------------------------------------------------------------------------------------------------

    def _markdown(self, text: str, width: int, style: Style) -> list[Line]:
        options = self._console.options.update(width=max(8, width))
        rows = self._console.render_lines(self._markdown_type(text), options, pad=False)
        lines = [self._line(row, style) for row in rows]
        blank = [not line.plain.strip() for line in lines]
        kept = [line for index, line in enumerate(lines) if not blank[index] or not (index == 0 or blank[index - 1])]
        while kept and not kept[-1].plain.strip():
            kept.pop()
        return [line.cropped(width) for line in kept]

    def _ansi(self, text: str) -> Text:
        shown = Text.from_ansi(text)
        shown.spans = [span._replace(style=self._allowed(span.style)) for span in shown.spans]
        return shown

    def _allowed(self, style: str | Style) -> Style:
        """Keep the colours and attributes of a log's code, in theme colours. Nothing may hide or blink."""
        if isinstance(style, str):
            return Style.null()
        number = None if style.color is None else style.color.number
        role = None if number is None or number > 15 else getattr(self.palette, _ANSI_ROLES[number % 8])
        kept = {name: True for name in _KEPT if getattr(style, name)}
        marked = {"reverse": True} if style.bgcolor is not None and not style.bgcolor.is_default else {}
        shade = role if role is not None else self._readable(style)
        return shade + Style(**{**kept, **marked})  # type: ignore[arg-type]

    def _readable(self, style: Style) -> Style:
        if style.color is None or style.color.is_default:
            return Style.null()
        shade, ground = style.color.get_truecolor(), self.palette.base.bgcolor
        assert ground is not None
        contrast = abs(_light(shade) - _light(ground.get_truecolor()))
        return Style.from_color(style.color) if contrast > 0.35 else self.palette.text

    def _boxed(self, lines: list[Line]) -> list[Line]:
        text = "\n".join(line.plain for line in lines)
        spans: list[tuple[int, int]] = []
        for found in _BOXED.finditer(text):
            end, depth = found.end(), 1
            while end < len(text) and depth:
                depth += (text[end] == "{") - (text[end] == "}")
                end += 1
            spans.append((found.start(), end))
        return marked_lines(lines, spans, self.palette.found) if spans else lines

    @cached_property
    def _markdown_type(self) -> Callable[[str], Markdown]:
        return _markdown_type(self._theme)

    # -- what rich needs ----------------------------------------------------------------------------------------

    @cached_property
    def _ground(self) -> Style:
        return Style.from_color(None, self.palette.base.bgcolor)

    @cached_property
    def _console(self) -> Console:
        p = self.palette
        names = {
            "em": Style(italic=True), "strong": Style(bold=True), "code": p.accent, "block_quote": p.muted,
            "item.bullet": p.accent, "item.number": p.accent, "hr": p.border, "link": p.accent, "s": p.muted,
            "link_url": p.muted + Style(underline=True), "table.border": p.border, "table.header": p.strong,
            "h1": p.key + Style(underline=True), "h2": p.key, "h3": p.strong, "h4": p.strong, "h5": p.strong,
            "h6": p.strong,
        }  # fmt: skip
        none = dict.fromkeys(("paragraph", "text", "list", "item", "code_block"), Style.null())
        theme = Theme({f"markdown.{name}": style for name, style in (none | names).items()})
        return Console(
            file=StringIO(), width=80, color_system="truecolor", theme=theme, force_terminal=True, _environ={}
        )

    @cached_property
    def _theme(self) -> SyntaxTheme:
        from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String
        from rich.syntax import ANSISyntaxTheme

        p = self.palette
        return ANSISyntaxTheme(
            {
                Comment: p.muted + Style(italic=True), Comment.Preproc: p.muted, Keyword: p.key,
                Keyword.Constant: p.series[3], Name.Function: p.strong, Name.Class: p.strong, Name.Tag: p.accent,
                Name.Builtin: p.accent, Name.Decorator: p.warn, Name.Exception: p.bad, Name.Attribute: p.accent,
                String: p.good, String.Escape: p.warn, Number: p.series[3], Operator.Word: p.key,
                Generic.Inserted: p.good, Generic.Deleted: p.bad, Generic.Heading: p.strong,
                Generic.Subheading: p.accent, Generic.Error: p.bad_bold, Generic.Traceback: p.bad_bold,
            }
        )  # fmt: skip


def broken(text: str, width: int) -> list[tuple[str, int]]:
    """Wrap a text. Returns the parts with their start positions."""
    start, parts = 0, []
    for part in wrap(text, width, len(text)):
        start = max(start, text.find(part, start))
        parts.append((part, start))
        start += len(part)
    return parts


def marked(line: Line, spans: Sequence[tuple[int, int]], style: Style) -> Line:
    """Return the line with a style over possibly overlapping spans of characters."""
    result, start = Line(line.palette), 0
    result.hits = line.hits
    for segment in line.segments:
        end = start + len(segment.text)
        cuts = sorted({start, end, *(min(max(c, start), end) for span in spans for c in span)})
        for a, b in pairwise(cuts):
            over = any(begin <= a < stop for begin, stop in spans)
            result.add(segment.text[a - start : b - start], style if over else segment.style)
        start = end
    return result


def marked_lines(lines: Sequence[Line], spans: Sequence[tuple[int, int]], style: Style) -> list[Line]:
    """Return the lines with a style over spans of their text, in which one character separates two lines."""
    result, begin = [], 0
    for line in lines:
        size = len(line.plain)
        inside = [(max(0, a - begin), min(size, b - begin)) for a, b in spans if a < begin + size and b > begin]
        result.append(marked(line, inside, style) if inside else line)
        begin += size + 1
    return result


def _light(color: ColorTriplet) -> float:
    return (0.299 * color.red + 0.587 * color.green + 0.114 * color.blue) / 255


def _markdown_type(theme: SyntaxTheme) -> Callable[[str], Markdown]:
    """Return rich's Markdown with plain headings and frameless fences in the colours of `theme`. HTML, entities, images
    and references stay text."""
    from markdown_it import MarkdownIt
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.syntax import Syntax

    parser = MarkdownIt().enable(["strikethrough", "table"])
    parser.disable(["html_block", "html_inline", "entity", "escape", "image", "autolink", "reference", "link"])

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code = str(self.text).rstrip()
            yield Syntax(code, self.lexer_name, theme=theme, word_wrap=True, background_color="default")

    class Head(Heading):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield self.text

    class Plain(Markdown):
        elements: ClassVar = {**Markdown.elements, "fence": Code, "code_block": Code, "heading_open": Head}

        def __init__(self, text: str) -> None:
            super().__init__("", hyperlinks=False)
            self.markup, self.parsed = text, parser.parse(text)
            for token in self.parsed:
                for child in token.children or ():
                    if child.type == "softbreak":
                        child.type = "hardbreak"  # keeps the writer's line breaks

    return Plain
