"""A chart as a list of shapes, drawn as SVG by itself or as PNG by Pillow."""

from __future__ import annotations

import io
from html import escape
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from closeranks.simulate.book import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from closeranks.simulate.compare import Comparison, Result

WIDTH: Final = 900
_LEFT, _RIGHT, _ROW, _TOP = 210, 30, 46, 60
_SIZE: Final = 13
_SCALE: Final = 2  # of a PNG, for sharp text
_COLOURS: Final = {
    Part.USEFUL: "#2e7d32",
    Part.REPEATED: "#f9a825",
    Part.SAVING: "#8e24aa",
    Part.LOST: "#ef6c00",
    Part.DETECT: "#c62828",
    Part.RECOVER: "#ad1457",
    Part.NO_NODES: "#424242",
    Part.RESTART: "#1565c0",
    Part.LOAD: "#00838f",
    Part.START_UP: "#90a4ae",
}
_INK, _GREY, _PAPER = "#222222", "#bbbbbb", "#ffffff"


class PlotError(Exception):
    """The chart cannot be drawn in that form; nothing was written."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A box, a line or a text. ``x1, y1`` is where a text stands."""

    kind: Literal["box", "line", "text"]
    x1: float
    y1: float
    x2: float = 0.0
    y2: float = 0.0
    colour: str = _INK
    text: str = ""
    anchor: Literal["start", "middle", "end"] = "start"


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes on paper, in pixels."""

    title: str
    width: int
    height: int
    shapes: tuple[Shape, ...]


def chart_of(found: Comparison) -> Chart:
    """Goodput of each policy with its interval, and where the rest of the time goes."""
    shapes: list[Shape] = [_text(_LEFT, 24, f"goodput: mean, 95 % interval, 10 to 90 % of {found.replicas} replicas")]
    low = min(0.98, *(min(result.goodput.p10, result.goodput.mean) for result in found.results)) - 0.02
    low = max(0.0, int(low * 20) / 20)
    bottom = _TOP + _ROW * len(found.results)
    shapes += _axis(low, 1.0, bottom)
    for row, result in enumerate(found.results):
        shapes += _goodput(result, _TOP + row * _ROW + _ROW / 2, low)
    top = bottom + 70
    shapes.append(_text(_LEFT, top - 14, "where the time that is not goodput goes, share of wall time"))
    most = max(1 - result.shares.get(Part.USEFUL, 0.0) for result in found.results) or 1e-9
    for row, result in enumerate(found.results):
        shapes += _losses(result, top + row * _ROW, most)
    end = top + _ROW * len(found.results)
    shapes += _legend(found.results, end + 16)
    return Chart(title="Simulated policies", width=WIDTH, height=int(end + 76), shapes=tuple(shapes))


def _text(x: float, y: float, text: str, anchor: Literal["start", "middle", "end"] = "start") -> Shape:
    return Shape(kind="text", x1=x, y1=y, text=text, anchor=anchor)


def _box(x1: float, y1: float, x2: float, y2: float, colour: str) -> Shape:
    return Shape(kind="box", x1=x1, y1=y1, x2=x2, y2=y2, colour=colour)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = _INK) -> Shape:
    return Shape(kind="line", x1=x1, y1=y1, x2=x2, y2=y2, colour=colour)


def _x(value: float, low: float, high: float) -> float:
    return _LEFT + (min(max(value, low), high) - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)


def _axis(low: float, high: float, bottom: float) -> list[Shape]:
    shapes = [_line(_LEFT, bottom, WIDTH - _RIGHT, bottom)]
    for tick in range(6):
        value = low + (high - low) * tick / 5
        x = _x(value, low, high)
        shapes += [_line(x, _TOP - 10, x, bottom, _GREY), _text(x, bottom + 18, f"{value:.0%}", "middle")]
    return shapes


def _goodput(result: Result, y: float, low: float) -> list[Shape]:
    found = result.goodput
    shapes = [
        _text(_LEFT - 10, y + 4, result.name[:28], "end"),
        _box(_x(found.p10, low, 1), y - 9, _x(found.p90, low, 1) + 1, y + 9, "#a5d6a7"),
        _line(_x(found.low, low, 1), y, _x(found.high, low, 1), y),
        _box(_x(found.mean, low, 1) - 2, y - 12, _x(found.mean, low, 1) + 2, y + 12, _COLOURS[Part.USEFUL]),
    ]
    if result.formula is not None:
        x = _x(result.formula, low, 1)
        shapes += [_line(x, y - 16, x, y + 16, "#c62828")]
    return shapes


def _losses(result: Result, y: float, most: float) -> list[Shape]:
    shapes = [_text(_LEFT - 10, y + 20, result.name[:28], "end")]
    at = 0.0
    for part, colour in _COLOURS.items():
        share = result.shares.get(part, 0.0)
        if part is Part.USEFUL or not share:
            continue
        shapes.append(_box(_x(at, 0, most), y + 4, _x(at + share, 0, most), y + 26, colour))
        at += share
    shapes.append(_text(min(_x(at, 0, most) + 6, WIDTH - 60), y + 40, f"{at:.2%}"))
    return shapes


def _legend(results: Sequence[Result], y: float) -> list[Shape]:
    parts = [p for p in _COLOURS if p is not Part.USEFUL and any(r.shares.get(p) for r in results)]
    shapes = []
    for number, part in enumerate(parts):
        x, row = 20 + (number % 5) * 174, y + (number // 5) * 22
        shapes += [_box(x, row, x + 12, row + 12, _COLOURS[part]), _text(x + 18, row + 11, part.value)]
    if any(result.formula is not None for result in results):
        x, row = 20 + (len(parts) % 5) * 174, y + (len(parts) // 5) * 22
        shapes += [_line(x + 6, row, x + 6, row + 12, "#c62828"), _text(x + 18, row + 11, "closed form")]
    return shapes


def to_svg(chart: Chart) -> str:
    """The chart as an SVG image."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {chart.width} {chart.height}" width="{chart.width}"',
        f' font-family="system-ui,sans-serif" font-size="{_SIZE}" role="img" aria-label="{escape(chart.title)}">',
        f'<rect width="100%" height="100%" fill="{_PAPER}"/>',
    ]
    for shape in chart.shapes:
        if shape.kind == "box":
            size = f'width="{shape.x2 - shape.x1:.1f}" height="{shape.y2 - shape.y1:.1f}"'
            parts.append(f'<rect x="{shape.x1:.1f}" y="{shape.y1:.1f}" {size} fill="{shape.colour}"/>')
        elif shape.kind == "line":
            ends = f'x1="{shape.x1:.1f}" y1="{shape.y1:.1f}" x2="{shape.x2:.1f}" y2="{shape.y2:.1f}"'
            parts.append(f'<line {ends} stroke="{shape.colour}"/>')
        else:
            where = f'x="{shape.x1:.1f}" y="{shape.y1:.1f}" text-anchor="{shape.anchor}" fill="{shape.colour}"'
            parts.append(f"<text {where}>{escape(shape.text)}</text>")
    return "".join([*parts, "</svg>\n"])


def to_png(chart: Chart) -> bytes:
    """The chart as a PNG image, with twice the pixels.

    Raises:
        PlotError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ModuleNotFoundError:
        message = "a PNG needs Pillow: pip install 'closeranks[plot]', or name a file that ends in .svg or .html"
        raise PlotError(message) from None
    image = Image.new("RGB", (chart.width * _SCALE, chart.height * _SCALE), _PAPER)
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(_SIZE * _SCALE)
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for shape in chart.shapes:
        at = (shape.x1 * _SCALE, shape.y1 * _SCALE)
        ends = (*at, shape.x2 * _SCALE, shape.y2 * _SCALE)
        if shape.kind == "box":
            pen.rectangle(ends, fill=shape.colour)
        elif shape.kind == "line":
            pen.line(ends, fill=shape.colour, width=_SCALE)
        else:
            pen.text(at, shape.text, fill=shape.colour, font=font, anchor=anchors[shape.anchor])
    written = io.BytesIO()
    image.save(written, format="PNG")
    return written.getvalue()
