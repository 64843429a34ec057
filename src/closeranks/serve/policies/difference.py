"""How far an answer is from the full service's, as one number: 0 is the same, 1 has nothing in common. Pure.

Of texts it is the share of words that they do not have in common, of rankings the mean disagreement of their tops. It
needs no model and no language. It sees what is left out or said otherwise, and not which of the two is right.

Source: Dice, "Measures of the Amount of Ecologic Association Between Species", 1945 (words); Fagin, Kumar & Sivakumar,
"Comparing Top k Lists", SODA 2003 (the average overlap of rankings).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def difference(full: Mapping[str, Any], less: Mapping[str, Any]) -> float | None:
    """Of two whole answers of the API, ``full`` the full service's; None: they are of no form that is compared."""
    rankings = _ranking(full), _ranking(less)
    if rankings[0] is not None and rankings[1] is not None:
        return _of_rankings(rankings[0], rankings[1])
    said = _words(full), _words(less)
    if said[0] is None or said[1] is None:
        return None
    total = said[0].total() + said[1].total()
    return 1.0 - 2.0 * (said[0] & said[1]).total() / total if total else 0.0


def _words(answer: Mapping[str, Any]) -> Counter[str] | None:
    """What the first choice says and calls."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    message = choices[0].get("message")
    message = message if isinstance(message, dict) else {}
    words: Counter[str] = Counter(str(message.get("content") or choices[0].get("text") or "").split())
    for call in message.get("tool_calls") or ():
        words.update(str(call.get("function") if isinstance(call, dict) else call).split())
    return words


def _ranking(answer: Mapping[str, Any]) -> list[str] | None:
    results = answer.get("results")
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        return None
    return [str(result.get("index")) for result in results]


def _of_rankings(full: Sequence[str], less: Sequence[str]) -> float:
    depth = min(len(full), len(less))
    if not depth:
        return float(len(full) != len(less))
    overlaps = [len(set(full[:top]) & set(less[:top])) / top for top in range(1, depth + 1)]
    return 1.0 - sum(overlaps) / depth
