"""Two schedules as Gantt charts, the expected one over the engine's: bars of requests in ticks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_TICKS = 120
"""Columns of a chart; a longer schedule is shown around the first tick that differs."""
TICKS_BEFORE = 20
ROW, GAP, LEFT, TOP = 18, 4, 92, 20
WIDEST, NARROWEST, WIDTH = 30.0, 12.0, 600.0

LETTERS: Mapping[str, str] = {"prefill": "P", "decode": "D", "both": "B", "recompute": "R", "refused": "X"}

Trace = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Span:
    """What a request does in ticks [start, end)."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class Bar:
    """A span as it is drawn."""

    kind: str
    letter: str
    x: float
    y: float
    width: float
    middle: float  # of its first tick
    words: str


@dataclass(frozen=True)
class Panel:
    """One schedule: bars, paths of the marks of finished and evicted requests, (y, name) of its rows."""

    title: str
    bars: Sequence[Bar]
    finished: str
    evicted: str
    rows: Sequence[tuple[float, str]]
    y: float


@dataclass(frozen=True)
class Chart:
    """Both panels; the first tick that differs is (x, width) or None."""

    width: float
    height: float
    panels: Sequence[Panel]
    ticks: Sequence[tuple[float, int]]
    different: tuple[float, float] | None
    description: str


def gantt(details: Mapping[str, Any]) -> Chart | None:
    """The chart of details with two traces, or None."""
    if "expected_trace" not in details or "answered_trace" not in details:
        return None
    traces = {"Expected": details["expected_trace"], "Answered": details["answered_trace"]}
    names = request_names([row for trace in traces.values() for row in trace])
    differing = first_difference(*traces.values())
    start, end = window([row["tick"] for trace in traces.values() for row in trace], differing)
    tick_width = min(WIDEST, max(NARROWEST, (WIDTH - LEFT) / (end - start)))
    panel_height = TOP + len(names) * (ROW + GAP)
    panels = [
        _panel(title, trace, names, (start, end, tick_width), number * panel_height)
        for number, (title, trace) in enumerate(traces.items())
    ]
    step = next(step for step in (1, 2, 5, 10, 20, 50) if step * tick_width >= 2 * NARROWEST)
    return Chart(
        width=LEFT + (end - start) * tick_width + 8,
        height=2 * panel_height + TOP,
        panels=panels,
        ticks=[(LEFT + (tick - start + 0.5) * tick_width, tick) for tick in range(start, end) if tick % step == 0],
        different=None if differing is None else (LEFT + (differing - start) * tick_width, tick_width),
        description=_description(traces, names, differing, (start, end)),
    )


def request_names(rows: Trace) -> list[str]:
    """Requests in the order in which something happens to them."""
    names: dict[str, None] = {}
    for row in rows:
        for field in ("prefilled", "decoded", "evicted", "finished", "refused"):
            names |= dict.fromkeys(row[field])
    return list(names)


def first_difference(expected: Trace, answered: Trace) -> int | None:
    """The first tick whose rows differ, or None."""
    right, given = ({row["tick"]: row for row in trace} for trace in (expected, answered))
    return min((tick for tick in right.keys() | given.keys() if right.get(tick) != given.get(tick)), default=None)


def window(ticks: Sequence[int], differing: int | None) -> tuple[int, int]:
    """The ticks [start, end) that are shown."""
    end = max(ticks, default=0) + 1
    if end <= MOST_TICKS:
        return 0, end
    start = max(0, min(0 if differing is None else differing - TICKS_BEFORE, end - MOST_TICKS))
    return start, start + MOST_TICKS


def spans(trace: Trace, name: str) -> Iterator[Span]:
    """What a request does, equal neighbours joined."""
    joined: Span | None = None
    for row in trace:
        kind, tick = _kind(row, name), row["tick"]
        if joined is not None and (kind != joined.kind or tick != joined.end):
            yield joined
            joined = None
        if kind is not None:
            joined = Span(kind, tick if joined is None else joined.start, tick + 1)
    if joined is not None:
        yield joined


def _kind(row: Mapping[str, Any], name: str) -> str | None:
    if name in row["refused"]:
        return "refused"
    if name in row["cache_misses"]:
        return "recompute"
    if name in row["prefilled"]:
        return "both" if name in row["decoded"] else "prefill"
    return "decode" if name in row["decoded"] else None


def _panel(title: str, trace: Trace, names: Sequence[str], scale: tuple[int, int, float], y: float) -> Panel:
    start, end, tick_width = scale
    heights = {name: y + TOP + number * (ROW + GAP) for number, name in enumerate(names)}
    seen = [row for row in trace if start <= row["tick"] < end]
    bars = [_bar(span, name, heights[name], start, tick_width) for name in names for span in spans(seen, name)]
    ends = {row["tick"]: LEFT + (row["tick"] + 1 - start) * tick_width for row in seen}
    finished = "".join(
        f"M{ends[row['tick']] - 2:.1f} {heights[name]:g}v{ROW}" for row in seen for name in row["finished"]
    )
    evicted = "".join(
        f"M{ends[row['tick']] - 8:.1f} {heights[name] + ROW:g}h7v-7z" for row in seen for name in row["evicted"]
    )
    return Panel(title, bars, finished, evicted, [(heights[name] + ROW - 5, name) for name in names], y)


def _bar(span: Span, name: str, y: float, start: int, tick_width: float) -> Bar:
    x, width = LEFT + (span.start - start) * tick_width, (span.end - span.start) * tick_width - 1
    middle = x + tick_width / 2
    ticks = f"tick {span.start}" if span.end == span.start + 1 else f"ticks {span.start} to {span.end - 1}"
    return Bar(
        span.kind,
        LETTERS[span.kind],
        round(x, 1),
        y,
        round(width, 1),
        round(middle, 1),
        f"{name}: {span.kind} in {ticks}",
    )


def _description(
    traces: Mapping[str, Trace], names: Sequence[str], differing: int | None, shown: tuple[int, int]
) -> str:
    """The chart in words."""
    lengths = " and ".join(f"{len(trace)} ticks {title.lower()}" for title, trace in traces.items())
    words = "the schedules are the same" if differing is None else f"the first tick that differs is {differing}"
    return f"{len(names)} requests; {lengths}; {words}; ticks {shown[0]} to {shown[1] - 1} are shown"
