"""Which known defect an engine's answers look like: all its answers together against those that each mutant gave."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reference.conformance.catalogue import NOT_TOLD, Catalogue, Defect, load_catalogue, stacked
from reference.conformance.compare import BAD, TOLERANCES, Verdict
from reference.conformance.evidence import DISCRETE, NUMERIC, Fingerprint
from reference.conformance.table import Judged
from reference.engine import Description, Precision
from reference.errors import Array, RefusedError

Booleans = NDArray[np.bool_]

LEAST_FIT = 0.5
"""Below this share of the evidence no known defect is named."""

SHOWN = 3
"""Defects and addresses that are named; the report has all."""

SAME_FIT = 1e-9
HEADROOM = 4.0
"""A sketch adds errors with signs; of correct engines it is off by no more than this many tolerances."""


@dataclass(frozen=True)
class Candidate:
    """Defects that fit the evidence equally well, and how well."""

    defects: tuple[Defect, ...]
    fit: float  # mean agreement over the records that are evidence, 0 .. 1
    num_fitting: int  # records that agree at least by half
    num_records: int  # records where the engine or the defect answers otherwise than the specification


@dataclass(frozen=True)
class Diagnosis:
    """The best and the second best explanation; none if none fits."""

    best: Candidate | None
    runner_up: Candidate | None


def explain(judged: Judged, engine: Description) -> tuple[Diagnosis | None, str]:
    """The diagnosis of a run with failures, and lines that tell it. Known failures are no evidence.

    Without a catalogue of this corpus the verdicts stand, and the lines say why there is no diagnosis.
    """
    if not any(judgement.verdict in BAD for _, judgement in judged):
        return None, ""
    try:
        catalogue = load_catalogue()
    except RefusedError as error:
        return None, f"  no diagnosis: {error}"
    evidence = {record.id: found.evidence for record, found in judged if found.verdict is not Verdict.XFAIL}
    diagnosis = diagnose(evidence, engine.precision, catalogue)
    return diagnosis, explanation(diagnosis)


def explanation(diagnosis: Diagnosis) -> str:
    """Lines for a person."""
    if diagnosis.best is None:
        return "  behaves like none of the known defects"
    lines = [f"  behaves like: {sentence(diagnosis.best)}"]
    lines += [f"    report: {address}" for defect in diagnosis.best.defects for address in defect.reports[:SHOWN]]
    if diagnosis.runner_up is not None:
        lines.append(f"  next best: {sentence(diagnosis.runner_up)}")
    return "\n".join(lines)


def sentence(candidate: Candidate) -> str:
    """What the engine may do, and how much of the evidence says so."""
    what = "; or ".join(f"{defect.effect} ({defect.id})" for defect in candidate.defects[:SHOWN])
    more = len(candidate.defects) - SHOWN
    others = f"; or {more} more that this evidence cannot tell apart" if more > 0 else ""
    counts = f"{candidate.num_fitting} of {candidate.num_records} records fit, {candidate.fit:.0%} on average"
    return f"{what}{others}: {counts}"


def diagnose(evidence: Mapping[str, Fingerprint], precision: Precision, catalogue: Catalogue) -> Diagnosis:
    """Compares the fingerprints of an engine's answers (record id -> fingerprint) with those of every known defect.

    A record is evidence for or against a defect if the engine or the defect deviates there from the specification in
    what both tell. Tokens and other discrete observables agree or not; sketches agree by 1 - distance / deviation if
    both deviate, and not at all if one does.
    """
    agreement, is_evidence = agreements(evidence, precision, catalogue)
    counts = is_evidence.sum(axis=1)
    fits = (agreement * is_evidence).sum(axis=1) / np.maximum(1, counts)
    fitting = (is_evidence & (agreement >= 0.5)).sum(axis=1)
    ranked: list[Candidate] = []
    for row in np.argsort(-fits, kind="stable"):
        if counts[row] == 0 or fits[row] < LEAST_FIT:
            continue
        defect = catalogue.defects[row]
        if ranked and abs(ranked[-1].fit - fits[row]) <= SAME_FIT:
            last = ranked[-1]
            ranked[-1] = Candidate((*last.defects, defect), last.fit, last.num_fitting, last.num_records)
        elif len(ranked) == 2:
            break
        else:
            ranked.append(Candidate((defect,), float(fits[row]), int(fitting[row]), int(counts[row])))
    return Diagnosis(*[*ranked, None, None][:2])


def agreements(
    evidence: Mapping[str, Fingerprint], precision: Precision, catalogue: Catalogue
) -> tuple[Array, Booleans]:
    """How well each defect's answer to each record agrees with the engine's, and whether it counts; [defects, R]."""
    engine = {name: rows[0] for name, rows in stacked([evidence], catalogue.records).items()}
    answered = np.array([bool(evidence.get(record)) for record in catalogue.records])
    agreed = np.zeros((len(catalogue.defects), len(catalogue.records)))
    deviating = np.zeros_like(agreed)
    for name in (*NUMERIC, *DISCRETE):
        right, defects = catalogue.answers[name][0], catalogue.answers[name][1:]
        if name in NUMERIC:
            agrees, counts = _numeric(engine[name], right, defects, HEADROOM * TOLERANCES[precision])
        else:
            # No error is an answer, too; of the other observables nothing is told.
            told = answered if name == "error" else (engine[name] != NOT_TOLD) & (defects != NOT_TOLD)
            counts = told & ((engine[name] != right) | (defects != right))
            agrees = np.asarray(engine[name] == defects, dtype=np.float64)
        agreed += agrees * counts
        deviating += counts
    return agreed / np.maximum(1.0, deviating), deviating > 0


def _numeric(engine: Array, right: Array, defects: Array, relative: float) -> tuple[Array, Booleans]:
    """Agreement of sketches, and whether one deviates; engine and right [R, SKETCH], defects [defects, R, SKETCH]."""
    tolerance = relative * np.maximum(1.0, _length(right))
    engine_off, defect_off = _length(engine - right), _length(defects - right)
    between = np.maximum(0.0, _length(defects - engine) - tolerance)
    # A NaN, which stands for nothing told, is no deviation.
    counts: Booleans = (np.maximum(engine_off, defect_off)) > tolerance
    both = (engine_off > tolerance) & (defect_off > tolerance)
    with np.errstate(invalid="ignore", divide="ignore"):
        agrees = np.clip(1.0 - between / np.maximum(engine_off, defect_off), 0.0, 1.0)
    return np.where(both, agrees, 0.0), counts


def _length(sketches: Array) -> Array:
    """Root of the mean square over the last axis."""
    length: Array = np.sqrt(np.mean(np.square(sketches, dtype=np.float64), axis=-1))
    return length
