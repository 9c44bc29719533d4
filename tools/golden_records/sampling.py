"""The token that a coin draws."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from golden_records.common import Record, record
from reference.decoding.sampling import distribution, draw
from reference.errors import RefusedError


def sampling_records(_models: Path) -> Iterator[Record]:
    """Draws whose token is far from a boundary of the distribution, unless that is the point."""
    ramp, twins = (0.0, 1.0, 2.0, 3.0), (2.0, -1.0, 2.0, -50.0)
    cases: list[tuple[str, str, Any, float, float]] = [
        ("plain", "a draw from logits instead of probabilities", ramp, 1.0, 0.3),
        ("first", "a coin of 0 that gives anything but the first likely token", ramp, 1.0, 0.0),
        ("cold", "a temperature that multiplies", ramp, 0.25, 0.05),
        ("hot", "a temperature that is ignored", ramp, 8.0, 0.05),
        ("twins", "a draw that breaks ties instead of drawing", twins, 1.0, 0.75),
        ("last", "a coin just below 1 that runs off the end", ramp, 1.0, 0.9999999),
        ("no-temperature", "a division by the temperature 0", ramp, 0.0, 0.5),
        ("negative-temperature", "a temperature below 0 that turns the order round", ramp, -1.0, 0.5),
        ("coin-of-one", "a coin outside [0, 1)", ramp, 1.0, 1.0),
    ]
    for label, catches, logits, temperature, coin in cases:
        asked = {"logits": logits, "temperature": temperature, "coin": coin}
        try:
            expected: dict[str, Any] = {"token": draw(distribution(np.array(logits), temperature), coin)}
        except RefusedError as error:
            expected = {"refusal": error.reason}
        yield record(f"sampling/{label}", ["DEC-2", "DEC-3"], catches, asked, expected)
