"""Engines that are broken on purpose are found out, and the same engines unbroken are not (docs/trials.md)."""

import re

import pytest

from reference.conformance.artifacts import ROOT
from reference.conformance.compare import PASS, Verdict
from reference.conformance.engines import HOSTED, VENVS, Options, find_engine
from reference.conformance.judge import judge_all
from reference.conformance.records import find_records

BROKEN = ROOT / "tests" / "trials" / "broken.py"
SLOW_TO_START = ("transformers", "onnxruntime-genai")
ENGINES = ("llama.cpp", "mlx", "ctranslate2", *SLOW_TO_START)

# All five load this checkpoint and have no known failure on it.
ONE_TOKEN, SHORT = "forward/zoo-grouped-one-token", "forward/zoo-grouped-short"
EOS_ENDS = "generate/eos-ends-grouped"
RECORDS = (ONE_TOKEN, SHORT, EOS_ENDS)

# Trial -> the record that fails, and how its sentence begins. Logits and logprobs diverge most at other tokens.
CAUGHT = {
    "WrongScale": (SHORT, r"first divergence at position 1: log(it|prob) of token 10 is "),
    "WrongTheta": (SHORT, r"first divergence at position 1: log(it|prob) of token (5|10) is "),
    "IgnoresEos": (EOS_ENDS, r"first divergence at output token 3: \d+, expected the output to end; .* got 4$"),
    "DropsEos": (EOS_ENDS, r"first divergence at output token 2: the output ends, expected \d+; .* got 2$"),
}
# One token attends to itself alone, at position 0; and logits know no eos.
CANNOT_SHOW = {
    "WrongScale": (ONE_TOKEN,),
    "WrongTheta": (ONE_TOKEN,),
    "IgnoresEos": (ONE_TOKEN, SHORT),
    "DropsEos": (ONE_TOKEN, SHORT),
}

# The scale is patched differently in each engine. The other defects are the same code everywhere.
TRIALS = [(name, trial) for name in ENGINES for trial in CAUGHT if trial == "WrongScale" or name not in SLOW_TO_START]


def judgements(engine, trial=None):
    """Record id -> judgement on an installed engine, broken or not, of three records."""
    hosted = HOSTED[engine]
    if not hosted.own_python.exists():
        pytest.skip(f"{VENVS.name}/{hosted.folder} is missing; make conform ENGINE={engine} makes it")
    asked = find_records(("forward", "generate"), RECORDS)
    found = find_engine(engine if trial is None else f"{BROKEN}:{trial}", Options(str(hosted.own_python)))
    try:
        return {record.id: judgement for record, judgement in judge_all(found, asked)}
    finally:
        found.bye()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unbroken_engine_passes(engine):
    """The control: without it a failure would say nothing about the defect."""
    assert dict.fromkeys(RECORDS, PASS) == judgements(engine)


@pytest.mark.parametrize(("engine", "trial"), TRIALS)
def test_a_broken_engine_is_found_out(engine, trial):
    """The record of the defect's family says what diverges first; where the defect cannot show, all is well."""
    record, sentence = CAUGHT[trial]

    judged = judgements(engine, trial)

    assert Verdict.FAIL == judged[record].verdict
    assert re.match(sentence, judged[record].sentence)
    assert dict.fromkeys(CANNOT_SHOW[trial], PASS) == {name: judged[name] for name in CANNOT_SHOW[trial]}
