"""A plot of the differences of scores along the positions: what the template draws, in the units of its viewBox."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.numerics import log

WIDTH, HEIGHT = 460, 190
LEFT, RIGHT, TOP, BOTTOM = 50, 448, 14, 152
MOST_DECADES = 12
MOST_TICKS = 6

NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class LogScale:
    """Decades from 10**low to 10**high upwards between two heights. What is not finite is at the top."""

    low: int
    high: int

    def height(self, value: float) -> float:
        """0 and what is below the lowest decade are at the bottom."""
        if not math.isfinite(value):
            return TOP
        share = (_log10(value) - self.low) / (self.high - self.low) if value > 0 else 0.0
        return BOTTOM - (BOTTOM - TOP) * min(1.0, max(0.0, share))

    def ticks(self) -> list[tuple[float, str]]:
        """(height, label) of whole decades, few enough to read."""
        step = max(1, math.ceil((self.high - self.low) / MOST_TICKS))
        return [(self.height(10.0**decade), f"1e{decade}") for decade in range(self.low, self.high + 1, step)]


@dataclass(frozen=True)
class Plot:
    """Paths of the differences, of the limit, and of dots out of tolerance; ticks are (place, label)."""

    line: str
    limit: str
    wrong: str  # dots
    not_finite: str  # dots at the top
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    description: str


def difference_plot(details: Mapping[str, Any]) -> Plot | None:
    """The plot of details with differences and tolerances, or None."""
    if not details.get("differences") or len(details["differences"]) != len(details.get("tolerances", ())):
        return None
    differences, limits = (numbers(details[name]) for name in ("differences", "tolerances"))
    positions = details.get("positions", range(len(differences)))
    scale = log_scale([*differences, *limits])
    places = [x_place(index, len(differences)) for index in range(len(differences))]
    points = [(x, scale.height(value)) for x, value in zip(places, differences, strict=True)]
    is_limited = [math.isfinite(limit) for limit in limits]  # elsewhere the noise allows anything
    is_far = [not value <= limit for value, limit in zip(differences, limits, strict=True)]
    is_wrong = [all(flags) for flags in zip(is_far, is_limited, strict=True)]
    is_finite = [math.isfinite(value) for value in differences]
    return Plot(
        line=path(points, is_finite),
        limit=path([(x, scale.height(value)) for x, value in zip(places, limits, strict=True)], is_limited),
        wrong=dots([point for point, *flags in zip(points, is_wrong, is_finite, strict=True) if all(flags)]),
        not_finite=dots([point for point, flag in zip(points, is_finite, strict=True) if not flag]),
        x_ticks=[(places[index], str(positions[index])) for index in tick_indices(len(places))],
        y_ticks=scale.ticks(),
        description=_description(differences, is_wrong, positions),
    )


def numbers(plain: Sequence[Any]) -> list[float]:
    """Floats of a report, in which those that JSON does not have are named."""
    return [NAMED[value] if isinstance(value, str) else float(value) for value in plain]


def log_scale(values: Sequence[float]) -> LogScale:
    """Whole decades around the positive finite values, at most MOST_DECADES below the largest."""
    shown = [value for value in values if value > 0 and math.isfinite(value)]
    if not shown:
        return LogScale(-1, 0)
    high = math.ceil(_log10(max(shown)))
    low = max(math.floor(_log10(min(shown))), high - MOST_DECADES)
    return LogScale(low, max(high, low + 1))


def x_place(index: int, count: int) -> float:
    """Where a row is; the only one is in the middle."""
    return LEFT + (RIGHT - LEFT) * (index / (count - 1) if count > 1 else 0.5)


def tick_indices(count: int) -> list[int]:
    """Multiples of 1, 2, 5, 10, 20 ... below the count, few enough to read."""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    step = next(step for step in steps if count <= step * (MOST_TICKS + 2))
    return list(range(0, count, step))


def path(points: Sequence[tuple[float, float]], is_drawn: Sequence[bool]) -> str:
    """An SVG path through the points, with gaps where one is not drawn."""
    words, command = [], "M"
    for index, (x, y) in enumerate(points):
        if not is_drawn[index]:
            command = "M"
            continue
        words.append(f"{command}{x:.1f} {y:.1f}")
        command = "L"
    return "".join(words)


def dots(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path of lines without length, which round caps make dots."""
    return "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)


def _description(differences: Sequence[float], is_wrong: Sequence[bool], positions: Sequence[int]) -> str:
    """The plot in words."""
    num_wrong = sum(is_wrong)
    words = [f"{num_wrong} of {len(differences)} positions are out of tolerance"]
    if num_wrong > 0:
        words.append(f"the first is {positions[list(is_wrong).index(True)]}")
    finite = [
        (value, position) for value, position in zip(differences, positions, strict=True) if math.isfinite(value)
    ]
    if finite:
        largest, position = max(finite)
        words.append(f"the largest difference is {largest:.3g} at position {position}")
    if len(finite) < len(differences):
        words.append(f"{len(differences) - len(finite)} differences are not finite")
    return "; ".join(words)


def _log10(value: float) -> float:
    return float(log(np.float64(value)) / log(np.float64(10.0)))
