"""The judge: ask the engine what the record asks, compare, give a verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from reference.conformance import families, metamorphic
from reference.conformance.artifacts import MODELS
from reference.conformance.channel import EngineDiedError, HarnessError
from reference.conformance.compare import PASS, Judgement, Verdict, compare_fields, fail
from reference.conformance.experiments import reproduce
from reference.conformance.families import Family
from reference.conformance.records import Record
from reference.engine import Engine
from reference.errors import RefusedError, UnsupportedError

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
            return replace(_judge(engine, record), crashes=crashes)
        except EngineDiedError as error:
            last_death = error
        except HarnessError as error:
            verdict = Verdict.TIMEOUT if error.is_timeout else Verdict.HARNESS_ERROR
            return Judgement(verdict, str(error), crashes=crashes)
    return Judgement(Verdict.HARNESS_ERROR, f"died at both attempts; {last_death}", crashes=ATTEMPTS)


def _judge(engine: Engine, record: Record) -> Judgement:
    """An answer is a result, unsupported, refused or an error; an engine's own error is its answer."""
    try:
        if record.is_seed:
            return compare_fields(*reproduce(record.family, engine, record.expected))
        if "model" in record.input:
            engine.load(MODELS / record.input["model"])
        answered = JUDGES[record.family].ask(engine, record.input)
    except UnsupportedError as error:
        if error.feature in engine.describe().claims:
            return fail(f"the engine claims {error.feature} and answers that it has none")
        return Judgement(Verdict.UNSUPPORTED, f"the engine has no {error.feature}")
    except RefusedError as error:
        if record.expected.get("refusal") == error.reason:
            return PASS
        return fail(f"refused with {error.reason}: {error}")
    except HarnessError:
        raise
    except Exception as error:  # the run goes on
        return fail(f"the engine raised {type(error).__name__}: {error}")
    if "refusal" in record.expected:
        return fail(f"expected a refusal ({record.expected['refusal']}), got an answer")
    try:
        return JUDGES[record.family].compare(answered, record.input, record.expected, engine.describe())
    except (AttributeError, TypeError, ValueError, RefusedError) as error:
        return fail(f"the answer has no form that can be compared: {type(error).__name__}: {error}")
