"""Two ways must agree: an engine in which they differ is caught, and one that takes one way alone passes nothing."""

from dataclasses import replace

import numpy as np
import pytest

from reference.conformance.compare import Verdict
from reference.conformance.judge import judge
from reference.conformance.records import find_records
from reference.engine import Description, Output, ReferenceEngine

RECORDS = {record.id.partition("/")[2]: record for record in find_records(["metamorphic"])}


class Both(ReferenceEngine):
    """Tells that it has taken every way, and computes like the specification, in the class of float32."""

    def describe(self):
        claims = super().describe().claims
        return Description("both", "1", "f32", claims=claims)

    def generate(self, prompts, max_tokens, eos_ids, logprobs=False):
        outputs = super().generate(prompts, max_tokens, eos_ids, logprobs)
        return [replace(output, batch_size=len(prompts), cached_tokens=1) for output in outputs]


class Changed(Both):
    """Changes the outputs of some calls of generate."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def generate(self, prompts, max_tokens, eos_ids, logprobs=False):
        outputs = super().generate(prompts, max_tokens, eos_ids, logprobs)
        self.calls += 1
        return [self.change(output, row, len(outputs)) for row, output in enumerate(outputs)]

    def change(self, output, row, num_rows):
        raise NotImplementedError


def other_end(output: Output) -> Output:
    """The last token is another one of the vocabulary."""
    return replace(output, tokens=(*output.tokens[:-1], (output.tokens[-1] + 1) % 40))


class PaddingLeaks(Changed):
    def change(self, output, row, num_rows):
        return other_end(output) if num_rows > 1 and row == 1 else output


class ReasonOfTheBatch(Changed):
    def change(self, output, row, num_rows):
        return replace(output, finish_reason="stop") if num_rows > 1 else output


class StaleCache(Changed):
    def change(self, output, row, num_rows):
        return other_end(output) if self.calls == 2 else output


class Tiring(Changed):
    def change(self, output, row, num_rows):
        return other_end(output) if self.calls == 3 else output


class Forgetful(Changed):
    """The answer depends on how many questions came before."""

    def change(self, output, row, num_rows):
        return other_end(output) if self.calls > 3 else output


class OtherText(Both):
    def speculate(self, draft_dir, prompt, gamma, max_tokens, eos_ids):
        return other_end(super().speculate(draft_dir, prompt, gamma, max_tokens, eos_ids))


class ChunkPositions(Both):
    """Every chunk starts at position 0."""

    def extend(self, session, tokens):
        self._sessions[session] = self._sessions[session].truncate(0)
        return super().extend(session, tokens)


class LosesARow(Both):
    def extend(self, session, tokens):
        return super().extend(session, tokens)[:-1] if len(tokens) > 1 else super().extend(session, tokens)


class OtherLogprobs(Both):
    def generate(self, prompts, max_tokens, eos_ids, logprobs=False):
        outputs = super().generate(prompts, max_tokens, eos_ids, logprobs)
        return [
            replace(output, logprobs=tuple(np.array(output.logprobs) + 0.01)) if logprobs else output
            for output in outputs
        ]


class ScoresGoOn(Both):
    """Takes a prompt for the continuation of all that it scored before."""

    past = ()

    def score(self, tokens):
        self.past = (*self.past, *tokens)[-40:]
        return super().score(self.past)[-len(tokens) :]


@pytest.mark.parametrize("name", RECORDS)
def test_an_engine_in_which_all_ways_agree_passes(name):
    assert Verdict.PASS is judge(Both(), RECORDS[name]).verdict


@pytest.mark.parametrize(
    ("liar", "name", "sentence"),
    [
        (PaddingLeaks, "batched-sweep", "prompt 1: in a batch differs from alone (here: expected): first divergence"),
        (ReasonOfTheBatch, "batched-sweep", "prompt 0: finish reasons 'length' and 'stop'"),
        (StaleCache, "warm-batching", "prompt 0: warm differs from cold"),
        (Tiring, "repeated-batching", "prompt 0: the third run differs from the first run"),
        (Forgetful, "order", "in another order differs from in order"),
        (OtherText, "speculation-s5", "prompt 0: speculative differs from plain"),
        (ChunkPositions, "chunked-uneven-sweep", "the whole prompt and in chunks differ by "),
        (ChunkPositions, "chunked-single-batching", "the whole prompt and in chunks differ by "),
        (LosesARow, "chunked-uneven-batching", "the whole prompt gives "),
        (ScoresGoOn, "rescored-sweep", "scored first and scored again differ by "),
        (OtherLogprobs, "decoded-sweep", "by prefill and as decoded differ by 0.01"),
    ],
)
def test_two_ways_that_differ_are_a_failure(liar, name, sentence):
    judgement = judge(liar(), RECORDS[name])

    assert Verdict.FAIL is judgement.verdict
    assert sentence in judgement.sentence


class Alone(Both):
    def generate(self, prompts, max_tokens, eos_ids, logprobs=False):
        return [replace(one, batch_size=1) for one in super().generate(prompts, max_tokens, eos_ids, logprobs)]


class Cold(Both):
    def generate(self, prompts, max_tokens, eos_ids, logprobs=False):
        return [replace(one, cached_tokens=0) for one in super().generate(prompts, max_tokens, eos_ids, logprobs)]


class AlwaysRight(Both):
    """Its drafts are never rejected, so that no cache is rolled back."""

    def speculate(self, draft_dir, prompt, gamma, max_tokens, eos_ids):
        return replace(super().speculate(draft_dir, prompt, gamma, max_tokens, eos_ids), num_rejected=0)


class Wordless(Both):
    def describe(self):
        told = super().describe()
        return replace(told, claims=told.claims - {"logprobs"})


@pytest.mark.parametrize(
    ("engine", "name", "feature"),
    [
        (Alone, "batched-sweep", "evidence of a batch"),
        (Cold, "warm-sweep", "evidence of a prefix cache"),
        (AlwaysRight, "speculation-s6", "evidence of drafts"),
        (Wordless, "decoded-batching", "logprobs of output tokens"),
    ],
)
def test_without_evidence_that_both_ways_were_taken_nothing_is_passed(engine, name, feature):
    judgement = judge(engine(), RECORDS[name])

    assert Verdict.UNSUPPORTED is judgement.verdict
    assert feature in judgement.sentence
