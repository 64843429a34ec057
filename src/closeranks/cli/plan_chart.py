"""The U-shaped curve of ``closeranks plan`` as a chart, for a PNG."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

from closeranks.simulate.chart import Chart, Shape

if TYPE_CHECKING:
    from closeranks.plan.answer import Answer

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 480, 80.0, 860.0, 50.0, 420.0
_CURVE, _CHOSEN, _GREY = "#0066cc", "#c62828", "#bbbbbb"
_MARK: Final = 5.0
_ROWS: Final = 5


def waste_chart(answer: Answer) -> Chart:
    """Return waste against the save interval, the interval on a logarithmic axis, with the chosen one marked."""
    points = [(point.interval_s, point.waste) for point in answer.save.curve]
    low, high = math.log(points[0][0]), math.log(points[-1][0])
    top = 1.05 * max(waste for _, waste in points) or 1.0

    def at(interval_s: float, waste: float) -> tuple[float, float]:
        along = (math.log(interval_s) - low) / ((high - low) or 1.0)
        return _LEFT + along * (_RIGHT - _LEFT), _BOTTOM - waste / top * (_BOTTOM - _TOP)

    shapes = []
    for row in range(_ROWS):
        value = top * row / (_ROWS - 1)
        y = at(points[0][0], value)[1]
        shapes.append(Shape(kind="line", x1=_LEFT, y1=y, x2=_RIGHT, y2=y, colour=_GREY))
        shapes.append(Shape(kind="text", x1=_LEFT - 8, y1=y + 4, text=f"{value:.1%}", anchor="end"))
    for interval_s, _ in points[::2]:
        x = at(interval_s, 0.0)[0]
        shapes.append(Shape(kind="text", x1=x, y1=_BOTTOM + 20, text=f"{interval_s:,.0f}", anchor="middle"))
    places = [at(*point) for point in points]
    for (x1, y1), (x2, y2) in itertools.pairwise(places):
        shapes.append(Shape(kind="line", x1=x1, y1=y1, x2=x2, y2=y2, colour=_CURVE))
    chosen_s, waste = answer.save.interval_s.value, answer.waste.share.value
    x, y = at(min(max(chosen_s, points[0][0]), points[-1][0]), waste)
    shapes.append(Shape(kind="box", x1=x - _MARK, y1=y - _MARK, x2=x + _MARK, y2=y + _MARK, colour=_CHOSEN))
    title = f"waste against the save interval in seconds; {waste:.2%} at {chosen_s:,.0f} s"
    shapes.append(Shape(kind="text", x1=_LEFT, y1=28, text=title))
    return Chart(title=title, width=_WIDTH, height=_HEIGHT, shapes=tuple(shapes))
