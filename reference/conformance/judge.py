"""The judge: ask the engine what the record asks, compare, give a verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from reference.conformance import families, metamorphic
from reference.conformance.artifacts import MODELS
from reference.conformance.channel import EngineDiedError, HarnessError
from reference.conformance.compare import BAD, PASS, Judgement, Verdict, compare_fields, fail
from reference.conformance.evidence import Answer, fingerprint, observe, unanswered
from reference.conformance.experiments import reproduce
from reference.conformance.families import Family
from reference.conformance.noise import MEASURED_LATE, Measure, measure_of
from reference.conformance.records import Record
from reference.engine import Description, Engine
from reference.errors import Refusal, RefusedError, UnsupportedError

JUDGES: Mapping[str, Family] = {**families.FAMILIES, "metamorphic": metamorphic.FAMILY}

ATTEMPTS = 2
"""An engine that dies is started again, once a record."""


def judge_all(engine: Engine, records: Sequence[Record]) -> Iterator[tuple[Record, Judgement]]:
    """Every record, in order."""
    return ((record, judge(engine, record)) for record in records)


def judge(engine: Engine, record: Record) -> Judgement:
    """The verdict on an engine's answer. What is no answer at all is a harness error or a timeout."""
    for crashes in range(ATTEMPTS):
        try:
            answer = ask(engine, record)
            description = engine.describe()
            judgement = compare(record, answer, description)
            evidence = fingerprint(observe(record, answer, description))
            return replace(judgement, crashes=crashes, evidence=evidence)
        except EngineDiedError as error:
            last_death = error
        except HarnessError as error:
            verdict = Verdict.TIMEOUT if error.is_timeout else Verdict.HARNESS_ERROR
            return Judgement(verdict, str(error), crashes=crashes, evidence=unanswered(error.is_timeout))
    sentence = f"died at both attempts; {last_death}"
    return Judgement(Verdict.HARNESS_ERROR, sentence, crashes=ATTEMPTS, evidence=unanswered())


def ask(engine: Engine, record: Record) -> Answer:
    """The engine's answer: a result, unsupported, refused or an error of its own. Raises: HarnessError."""
    try:
        if record.is_seed:
            return Answer(reproduce(record.family, engine, record.expected))
        if "model" in record.input:
            engine.load(MODELS / record.input["model"])
        return Answer(JUDGES[record.family].ask(engine, record.input))
    except HarnessError:
        raise
    except Exception as error:  # the run goes on
        return Answer(error=error)


def compare(record: Record, answer: Answer, engine: Description) -> Judgement:
    """The verdict on an answer of the engine that describes itself so."""
    match answer.error:
        case UnsupportedError(feature=feature):
            if feature in engine.claims:
                return fail(f"the engine claims {feature} and answers that it has none")
            return Judgement(Verdict.UNSUPPORTED, f"the engine has no {feature}")
        case RefusedError(reason=reason) as error:
            if record.expected.get("refusal") == reason:
                return PASS
            return fail(f"refused with {reason}: {error}")
        case Exception() as error:
            if record.expected.get("refusal") in (Refusal.CHECKPOINT_INVALID, Refusal.CONFIG_INVALID):
                return Judgement(Verdict.PASS, f"refused in the engine's own words: {type(error).__name__}: {error}")
            return fail(f"the engine raised {type(error).__name__}: {error}")
    if record.is_seed:
        return compare_fields(*answer.value)
    if "refusal" in record.expected:
        return fail(f"expected a refusal ({record.expected['refusal']}), got an answer")
    try:
        judgement = _compare(record, answer, engine, measure_of(engine.precision))
        if judgement.verdict in BAD and engine.precision in MEASURED_LATE:
            judgement = _compare(record, answer, engine, measure_of(engine.precision, is_late=True))
        return judgement
    except (AttributeError, TypeError, ValueError, RefusedError) as error:
        return fail(f"the answer has no form that can be compared: {type(error).__name__}: {error}")


def _compare(record: Record, answer: Answer, engine: Description, measure: Measure) -> Judgement:
    return JUDGES[record.family].compare(answer.value, record.input, record.expected, engine, measure)
