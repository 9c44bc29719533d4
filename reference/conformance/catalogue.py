"""The known defects: which records catch each (golden/kill_matrix.json), and what its answers look like.

golden/fingerprints.safetensors holds, of the specification (row 0) and of every mutant, the fingerprint of each
answer: sketches [1 + mutants, records, SKETCH] of what is numeric, digests [1 + mutants, records] of the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from reference.conformance.artifacts import GOLDEN, read_json, validate
from reference.conformance.evidence import DISCRETE, NUMERIC, SKETCH, Fingerprint
from reference.errors import Array, Refusal, RefusedError

KILL_MATRIX, FINGERPRINTS = GOLDEN / "kill_matrix.json", GOLDEN / "fingerprints.safetensors"

NOT_TOLD = 0
"""The digest of what an answer does not tell; a sketch of it is NaN."""


@dataclass(frozen=True)
class Defect:
    """A known defect of engines."""

    id: str
    effect: str
    reports: tuple[str, ...]  # addresses


@dataclass(frozen=True)
class Catalogue:
    """The known defects and the fingerprints of their answers to every record."""

    defects: tuple[Defect, ...]
    records: tuple[str, ...]
    answers: Mapping[str, Array]  # observable -> [1 + defects, records] or [1 + defects, records, SKETCH]


def load_catalogue(matrix: Path = KILL_MATRIX, fingerprints: Path = FINGERPRINTS) -> Catalogue:
    """The catalogue of this corpus. Raises: NOT_FOUND, ARTIFACT_INVALID, also for one made from another corpus."""
    content = read_json(matrix)
    validate(content, "kill_matrix", str(matrix))
    if content["corpus"] != read_json(GOLDEN / "manifest.json")["root"]:
        sentence = f"{matrix} was made from another corpus; run python tools/mutate.py"
        raise RefusedError(Refusal.ARTIFACT_INVALID, sentence)
    defects = tuple(
        Defect(row["id"], row["effect"], tuple(report["url"] for report in row["reports"]))
        for row in content["mutants"]
    )
    records = tuple(content["records"])
    try:
        answers = safetensors.numpy.load_file(fingerprints)
    except (OSError, safetensors.SafetensorError) as error:
        raise RefusedError(
            Refusal.ARTIFACT_INVALID, f"{fingerprints}: {error}; run python tools/mutate.py"
        ) from error
    for name in (*NUMERIC, *DISCRETE):
        wanted = (1 + len(defects), len(records), *((SKETCH,) if name in NUMERIC else ()))
        if name not in answers or answers[name].shape != wanted:
            sentence = f"{fingerprints} lacks {name} of shape {list(wanted)}; run python tools/mutate.py"
            raise RefusedError(Refusal.ARTIFACT_INVALID, sentence)
    return Catalogue(defects, records, answers)


def stacked(rows: Sequence[Mapping[str, Fingerprint]], records: Sequence[str]) -> dict[str, Array]:
    """Fingerprints of several engines (record id -> fingerprint) as arrays, one row an engine."""
    arrays: dict[str, Any] = {}
    for name in NUMERIC:
        nothing = np.full(SKETCH, np.nan, np.float32)
        told = [[row.get(record, {}).get(name, nothing) for record in records] for row in rows]
        arrays[name] = np.array(told, np.float32).reshape(len(rows), len(records), SKETCH)
    for name in DISCRETE:
        told = [[row.get(record, {}).get(name, NOT_TOLD) for record in records] for row in rows]
        arrays[name] = np.array(told, np.uint32).reshape(len(rows), len(records))
    return arrays
