"""Elementwise functions of a number or of an array: a number needs ``math`` alone, an array brings numpy with it.

Importing numpy takes longer than a whole answer of the planner, and most questions are about numbers. What leaves the
range of floats is infinite here for both, as IEEE 754 has it, and neither an exception nor a warning.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Real: TypeAlias = "float | Floats"
"""A number or an array of numbers; arrays broadcast against each other as numpy does."""


def real(value: Any) -> Real:
    """Return ``value`` as a float, or as an array of float64."""
    if isinstance(value, float | int):
        return float(value)
    import numpy as np

    return np.asarray(value, dtype=np.float64)


def each(kernel: Callable[..., float], *arguments: Real) -> Real:
    """Return ``kernel`` of every element; the kernel takes and returns plain numbers."""
    if all(isinstance(argument, float | int) for argument in arguments):
        return float(kernel(*arguments))
    import numpy as np

    return np.asarray(np.frompyfunc(kernel, len(arguments), 1)(*arguments), dtype=np.float64)


def exp(x: Real) -> Real:
    """Return e^x."""
    return _applied(math.exp, "exp", x, math.inf)


def expm1(x: Real) -> Real:
    """Return e^x - 1 without cancellation near zero."""
    return _applied(math.expm1, "expm1", x, math.inf)


def log(x: Real) -> Real:
    """Return ln x, minus infinity at zero; ``x`` is not negative."""
    return _applied(math.log, "log", x, -math.inf)


def log1p(x: Real) -> Real:
    """Return ln(1 + x) without cancellation near zero, minus infinity at -1; ``x`` is not below."""
    return _applied(math.log1p, "log1p", x, -math.inf)


def sqrt(x: Real) -> Real:
    """Return the square root; ``x`` is not negative."""
    return _applied(math.sqrt, "sqrt", x, math.inf)


def _applied(number: Callable[[float], float], array: str, x: Real, at_the_edge: float) -> Real:
    if isinstance(x, float | int):
        try:
            return number(x)
        except (OverflowError, ValueError):  # past the range, or at a pole
            return at_the_edge
    import numpy as np

    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(getattr(np, array)(x), dtype=np.float64)


def quotient(above: Real, below: Real) -> Real:
    """Return ``above / below``, infinite where ``below`` is zero; neither is negative, nor both zero."""
    if isinstance(above, float | int) and isinstance(below, float | int):
        return above / below if below else math.inf
    import numpy as np

    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.divide(above, below), dtype=np.float64)


def where(condition: Any, then: Real, otherwise: Real) -> Real:
    """Return ``then`` where the condition holds and ``otherwise`` elsewhere; both are computed everywhere."""
    if isinstance(condition, bool):
        return then if condition else otherwise
    import numpy as np

    return np.asarray(np.where(condition, then, otherwise), dtype=np.float64)


def maximum(left: Real, right: Real) -> Real:
    """Return the larger of both."""
    return where(left >= right, left, right)


def minimum(left: Real, right: Real) -> Real:
    """Return the smaller of both."""
    return where(left <= right, left, right)


def rounded(x: Real) -> Real:
    """Return the nearest whole number, the even one of two."""
    if isinstance(x, float | int):
        return float(round(x)) if math.isfinite(x) else x
    import numpy as np

    return np.asarray(np.round(x), dtype=np.float64)


def every(condition: Any) -> bool:
    """Return whether a condition holds of each element."""
    return condition if isinstance(condition, bool) else bool(condition.all())


def some(condition: Any) -> bool:
    """Return whether a condition holds of any element."""
    return condition if isinstance(condition, bool) else bool(condition.any())
