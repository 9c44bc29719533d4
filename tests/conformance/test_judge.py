"""The judge, judged: lying engines are caught, honest ones pass, and what an engine lacks is no failure.

The records are made here, by the specification, about two tiny checkpoints.
"""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from reference.conformance import exact, families
from reference.conformance import judge as judge_module
from reference.conformance import records as records_module
from reference.conformance.artifacts import to_plain
from reference.conformance.compare import PASS, Verdict
from reference.conformance.engines import find_engine
from reference.conformance.judge import JUDGES, judge, judge_all
from reference.conformance.records import FAMILIES, Record, load_record, load_records
from reference.conformance.table import failures, is_good, verdict_table
from reference.decoding.sampling import draw
from reference.decoding.verification import accept_probability, verify
from reference.engine import POLICIES, Description, Engine, Output, ReferenceEngine, Verified
from reference.errors import Refusal, RefusedError, UnsupportedError
from reference.model import transformer
from reference.model.checkpoint import save_model
from reference.serving.cost_model import ForwardCost
from reference.serving.loop import serve
from reference.serving.policies import Limits, Plan, budgeted
from reference.serving.session import Decode, Prefill, Request
from tests.models import TINY, perturbed_model, random_model, random_tensors

PROMPT = (3, 1, 4, 1, 5)
REQUESTS = (Request("a", 0, (1, 2, 3), 4), Request("b", 0, (4, 5), 3), Request("c", 2, (6, 7, 8, 9), 2))
TARGET, DRAFT = ForwardCost(22.0, 0.42, 32), ForwardCost(2.6, 0.045, 32)
P, Q = (0.1, 0.48, 0.18, 0.24), (0.05, 0.15, 0.6, 0.2)


def moved_tensors(seed: int) -> dict[str, np.ndarray]:
    """Tensors of perturbed_model, as it makes them."""
    random = np.random.default_rng(seed + 1000)
    return {name: one + (random.random(one.shape) < 0.1) / 64 for name, one in random_tensors(TINY, seed).items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    save_model(directory / "tiny", TINY, random_tensors(TINY, 1))
    save_model(directory / "draft", TINY, moved_tensors(1))
    return directory


@pytest.fixture(autouse=True)
def _here(models, monkeypatch):
    for module in (judge_module, families, exact):
        monkeypatch.setattr(module, "MODELS", models)


def record(id_: str, asked: dict, expected: dict) -> Record:
    """As it comes out of a file."""
    plain = json.loads(json.dumps(to_plain({"input": asked, "expected": expected})))
    return Record(id_, id_.partition("/")[0], plain["input"], plain["expected"])


@pytest.fixture(scope="module")
def records(models):
    """One record a question."""
    spec = ReferenceEngine()
    spec.load(models / "tiny")
    (output,) = spec.generate([PROMPT], 6, ())
    eos = output.tokens[3]
    (ended,) = spec.generate([PROMPT], 6, (eos,))
    margins = [1.0] * 6
    steps = [
        {"op": "open", "session": "a"},
        {"op": "extend", "session": "a", "tokens": [3, 1, 4]},
        {"op": "fork", "session": "a", "into": "b"},
        {"op": "extend", "session": "b", "tokens": [9, 9]},
        {"op": "extend", "session": "a", "tokens": [1, 5]},
        {"op": "truncate", "session": "b", "num_tokens": 3},
        {"op": "extend", "session": "b", "tokens": [1, 5]},
        {"op": "close", "session": "a"},
    ]
    long, other = spec.score(PROMPT), spec.score((3, 1, 4, 9, 9))
    rows = [*long[:3], *other[3:], *long[3:], *long[3:]]
    limits = {"capacity": 2, "prefill_token_budget": 4}
    served = spec.serve(REQUESTS, "budgeted", limits)
    generating = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6}
    step = {"p": [P, P], "q": [Q], "drafts": [2], "final_coin": 0.5}
    loop = {"kind": "loop", "model": "tiny", "draft": "draft", "prompt": PROMPT, "gamma": 3, "max_tokens": 7}
    costs = {"gamma": 4, "alphas": [0.8], "target": TARGET, "draft": DRAFT}
    accepted = spec.verify(np.array([P, P]), np.array([Q]), [2], [0.2], 0.5)
    drafted = spec.speculate(models / "draft", PROMPT, 3, 7, ())
    made = [
        record("forward/five", {"model": "tiny", "prompt": PROMPT}, {"logits": long}),
        record(
            "generate/plain",
            {**generating, "eos_ids": ()},
            {"tokens": output.tokens, "finish_reason": "length", "margins": margins},
        ),
        record(
            "generate/eos",
            {**generating, "eos_ids": (eos,)},
            {"tokens": ended.tokens, "finish_reason": "stop", "margins": margins[: len(ended.tokens)]},
        ),
        record("cache/fork", {"model": "tiny", "steps": steps}, {"logits": rows}),
        record(
            "sweep/three",
            {"model": "tiny", "policy": "budgeted", "requests": REQUESTS, "limits": limits},
            {"tokens": served.tokens, "trace": served.trace},
        ),
        record(
            "speculation/accepted",
            {"kind": "verify", **step, "accept_coins": [0.2]},
            {"num_accepted": accepted.num_accepted, "tokens": accepted.tokens},
        ),
        record(
            "speculation/refused",
            {"kind": "verify", **step, "q": [[0.5, 0.5, 0.0, 0.0]], "accept_coins": [0.2]},
            {"refusal": Refusal.DRAFT_IMPOSSIBLE},
        ),
        record("speculation/law", {"kind": "law", "p": P, "q": Q}, {"tv_distance": 0.0}),
        record(
            "speculation/loop",
            {**loop, "eos_ids": ()},
            {name: getattr(drafted, name) for name in ("tokens", "finish_reason", "steps")},
        ),
        record(
            "crossover/two",
            {"batch_sizes": [1, 64], **costs},
            {"rows": [spec.crossover(size, 4, [0.8], TARGET, DRAFT) for size in (1, 64)]},
        ),
    ]
    return {one.id: one for one in made}


IDS = (
    *("forward/five", "generate/plain", "generate/eos", "cache/fork", "sweep/three", "speculation/accepted"),
    *("speculation/refused", "speculation/law", "speculation/loop", "crossover/two"),
)


@pytest.mark.parametrize("id_", IDS)
def test_the_specification_passes(records, id_):
    assert PASS == judge(ReferenceEngine(), records[id_])


@pytest.mark.parametrize("name", ["fast", "fast64"])
@pytest.mark.parametrize("id_", ["forward/five", "generate/plain", "generate/eos", "cache/fork"])
def test_the_fast_twin_passes_what_it_can_answer(records, name, id_):
    assert PASS == judge(find_engine(name), records[id_])


def test_the_checkpoints_are_those_of_the_tiny_models(models):
    engine = ReferenceEngine()
    for name, model in (("tiny", random_model()), ("draft", perturbed_model())):
        engine.load(models / name)
        assert np.array_equal(model.weights.embedding, engine.model.weights.embedding)


class Single(ReferenceEngine):
    """Compared as float32, so that a lie is not caught by its last bit."""

    def describe(self):
        return Description("single", "1", "f32")


class OneLogitOff(Single):
    def score(self, tokens):
        logits = super().score(tokens).copy()
        logits[3, 6] += 1e-3
        return logits


class NotANumber(Single):
    def score(self, tokens):
        return super().score(tokens) * np.nan

    def extend(self, session, tokens):
        return super().extend(session, tokens) * np.nan


class LastRowOnly(Single):
    def score(self, tokens):
        return super().score(tokens)[-1:]


class SharedStorage(Single):
    """A fork is another name of the same session."""

    def fork(self, session):
        return session


class NoRollback(Single):
    def truncate(self, session, num_tokens):
        pass


class ForgetfulCache(Single):
    """Each chunk is computed as if it were the first."""

    def extend(self, session, tokens):
        self._sessions[session] = self._sessions[session].truncate(0)
        return super().extend(session, tokens)


class Changing(Single):
    """Changes every output."""

    def generate(self, prompts, max_tokens, eos_ids, logprobs=False):
        outputs = super().generate(prompts, max_tokens, eos_ids)
        return [self.change(output, prompt, eos_ids) for output, prompt in zip(outputs, prompts, strict=True)]


class EosDropped(Changing):
    def change(self, output, prompt, eos_ids):
        return replace(output, tokens=tuple(token for token in output.tokens if token not in eos_ids))


class EosIgnored(Single):
    def generate(self, prompts, max_tokens, eos_ids, logprobs=False):
        return super().generate(prompts, max_tokens, (), logprobs)


class AlwaysLength(Changing):
    def change(self, output, prompt, eos_ids):
        return replace(output, finish_reason="length")


class TooFewTokens(Changing):
    def change(self, output, prompt, eos_ids):
        return replace(output, tokens=output.tokens[:-1])


class NoTokens(Changing):
    def change(self, output, prompt, eos_ids):
        return Output((), "length")


class PromptCounted(Changing):
    def change(self, output, prompt, eos_ids):
        return replace(output, tokens=(*prompt, *output.tokens))


class Raising(Single):
    def score(self, tokens):
        raise ZeroDivisionError("division by zero")


class Nothing(Single):
    def score(self, tokens):
        return None


class RefusesTheRight(Single):
    def score(self, tokens):
        raise RefusedError(Refusal.CONTEXT_EXCEEDED, "too long")


class RefusesForAnotherReason(Single):
    def verify(self, p, q, drafts, accept_coins, final_coin):
        raise RefusedError(Refusal.NOT_A_DISTRIBUTION, "q")


class AnswersTheWrong(Single):
    """A draft of probability 0 is accepted."""

    def verify(self, p, q, drafts, accept_coins, final_coin):
        return Verified(1, (drafts[0], 1))


class WithoutResidual(Single):
    """A rejected draft is replaced by a draw from the target."""

    def verify(self, p, q, drafts, accept_coins, final_coin):
        kept = verify(p, q, drafts, accept_coins, final_coin)
        if kept.num_accepted == len(drafts):
            return kept
        token = draw(p[kept.num_accepted], final_coin)
        return Verified(kept.num_accepted, (*kept.tokens[:-1], token))


class CoinUsedTwice(Single):
    """The coin that rejected a draft also draws its replacement."""

    def verify(self, p, q, drafts, accept_coins, final_coin):
        if accept_coins[0] <= accept_probability(p[0][drafts[0]], q[0][drafts[0]]):
            return super().verify(p, q, drafts, accept_coins, final_coin)
        return super().verify(p, q, drafts, accept_coins, accept_coins[0])


def eager(waiting, running, limits):
    """Budgeted, but a session decodes in the tick of its prefill."""
    plan = budgeted(waiting, running, limits)
    new = [Decode(one.request.id) for one in plan.operations if isinstance(one, Prefill)]
    return Plan((*plan.operations, *new), plan.refused, plan.num_taken)


class DecodesInPrefillTick(Single):
    def serve(self, requests, policy, limits, max_ticks=None):
        return serve(self.model, requests, eager, Limits(**limits), max_ticks)


class OtherPolicy(Single):
    def serve(self, requests, policy, limits, max_ticks=None):
        return serve(self.model, requests, POLICIES["static"], Limits(capacity=limits["capacity"]), max_ticks)


class LosesARequest(Single):
    def serve(self, requests, policy, limits, max_ticks=None):
        return super().serve(requests[:-1], policy, limits, max_ticks)


class OtherDraft(Single):
    """The drafts show in the output."""

    def speculate(self, draft_dir, prompt, gamma, max_tokens, eos_ids):
        loop = super().speculate(draft_dir, prompt, gamma, max_tokens, eos_ids)
        return replace(loop, tokens=tuple((token + 1) % 17 for token in loop.tokens))


class NoBonus(Single):
    def crossover(self, batch_size, gamma, alphas, target, draft):
        return super().crossover(batch_size, gamma - 1, alphas, target, draft)


class WrongDraftCache(Single):
    """The right tokens by steps that are not those of the rule."""

    def speculate(self, draft_dir, prompt, gamma, max_tokens, eos_ids):
        return replace(super().speculate(draft_dir, prompt, gamma, max_tokens, eos_ids), steps=())


LIARS = [
    (OneLogitOff, "forward/five", "first divergence at position 3: logit of token 6 is "),
    (NotANumber, "forward/five", "first divergence at position 0: logit of token 0 is nan"),
    (NotANumber, "cache/fork", "step 1 (extend a): first divergence at position 0"),
    (LastRowOnly, "forward/five", "expected logits [5, 17], got [1, 17]"),
    (SharedStorage, "cache/fork", "step 4 (extend a): first divergence at position 0"),
    (NoRollback, "cache/fork", "step 6 (extend b): first divergence at position 0"),
    (ForgetfulCache, "cache/fork", "step 3 (extend b): first divergence at position 0"),
    (EosDropped, "generate/eos", "tokens, got "),
    (EosIgnored, "generate/eos", "expected "),
    (AlwaysLength, "generate/eos", "finish reason 'length', expected 'stop'"),
    (TooFewTokens, "generate/plain", "expected 6 tokens, got 5"),
    (NoTokens, "generate/plain", "expected 6 tokens, got 0"),
    (PromptCounted, "generate/plain", "first divergence at output token 0: 3 (reference logit "),
    (Raising, "forward/five", "the engine raised ZeroDivisionError: division by zero"),
    (Nothing, "forward/five", "the answer has no form that can be compared"),
    (RefusesTheRight, "forward/five", "refused with context_exceeded: too long"),
    (RefusesForAnotherReason, "speculation/refused", "refused with not_a_distribution: q"),
    (AnswersTheWrong, "speculation/refused", "expected a refusal (draft_impossible), got an answer"),
    (WithoutResidual, "speculation/law", "the law of the first token is 0.1364"),
    (CoinUsedTwice, "speculation/law", "the law of the first token is "),
    (DecodesInPrefillTick, "sweep/three", "$.trace has "),
    (OtherPolicy, "sweep/three", "$.trace"),
    (LosesARequest, "sweep/three", "request c: expected 2 tokens, got 0"),
    (NoBonus, "crossover/two", "$[0]."),
    (OtherDraft, "speculation/loop", "first divergence at output token 0: "),
    (WrongDraftCache, "speculation/loop", "$.steps has 0 entries"),
]


@pytest.mark.parametrize(("liar", "id_", "sentence"), LIARS, ids=[f"{liar.__name__}-{id_}" for liar, id_, _ in LIARS])
def test_a_lying_engine_is_caught(records, liar, id_, sentence):
    judgement = judge(liar(), records[id_])

    assert Verdict.FAIL is judgement.verdict
    assert sentence in judgement.sentence


def test_positions_that_are_off_by_one_after_the_first_chunk_are_caught(records, monkeypatch):
    """A shift of all positions changes nothing in a Llama; one that begins with the second chunk does."""
    right = transformer.rotation
    monkeypatch.setattr(
        transformer, "rotation", lambda config, start, length: right(config, start + (start > 0), length)
    )
    judgement = judge(Single(), records["cache/fork"])

    assert PASS == judge(Single(), records["forward/five"])
    assert Verdict.FAIL is judgement.verdict
    assert "step 3 (extend b): first divergence at position 0" in judgement.sentence


def test_the_distance_without_the_residual_is_the_recorded_one(records):
    sentence = judge(WithoutResidual(), records["speculation/law"]).sentence
    (distance,) = re.findall(r"is ([0-9.]+) from", sentence)

    assert 0.1364 == round(float(distance), 4)


class Wordless(Engine):
    """An engine without any verb."""

    def describe(self):
        return Description("wordless", "0", "f32")

    def load(self, model_dir):
        pass


def test_an_engine_without_verbs_only_lacks_and_is_not_good(records):
    judged = [(one, judge(Wordless(), one)) for one in records.values()]

    assert {Verdict.UNSUPPORTED} == {judgement.verdict for _, judgement in judged}
    assert not is_good(judged)
    assert all(one.id in failures(judged) for one in records.values())
    assert "wordless 0 (compared as f32)" in verdict_table(Wordless().describe(), judged)


def test_an_error_of_its_own_refuses_a_checkpoint_but_nothing_else():
    class Cautious(ReferenceEngine):
        def load(self, model_dir):
            raise KeyError("lm_head.weight")

    asked = {"model": "tiny", "prompt": [1]}
    reasons = (Refusal.CHECKPOINT_INVALID, Refusal.CONTEXT_EXCEEDED)
    verdicts = [judge(Cautious(), record("forward/no", asked, {"refusal": reason})).verdict for reason in reasons]

    assert [Verdict.PASS, Verdict.FAIL] == verdicts


@pytest.mark.parametrize(
    ("ask", "feature"),
    [
        (lambda engine: engine.score([1]), "score"),
        (lambda engine: engine.generate([[1]], 1, ()), "generate"),
        (lambda engine: engine.speculate(None, [1], 1, 1, ()), "speculate"),
        (lambda engine: engine.verify(np.ones((2, 1)), np.ones((1, 1)), [0], [0.5], 0.5), "verify"),
        (lambda engine: engine.serve([], "static", {"capacity": 1}), "serve"),
        (lambda engine: engine.crossover(1, 1, [0.5], TARGET, DRAFT), "crossover"),
        (lambda engine: engine.sample(np.ones(1), 1.0, 0.5), "sample"),
        (lambda engine: engine.open(), "open"),
        (lambda engine: engine.extend(0, [1]), "extend"),
        (lambda engine: engine.truncate(0, 0), "truncate"),
        (lambda engine: engine.fork(0), "fork"),
        (lambda engine: engine.kv_bytes(0), "kv_bytes"),
        (lambda engine: engine.close(0), "close"),
    ],
)
def test_a_verb_that_is_not_overridden_is_unsupported_by_name(ask, feature):
    with pytest.raises(UnsupportedError) as unsupported:
        ask(Wordless())

    assert feature == unsupported.value.feature


def test_an_engine_must_describe_itself_and_load():
    with pytest.raises(NotImplementedError):
        Engine().describe()
    with pytest.raises(NotImplementedError):
        Engine().load(None)


def test_sessions_of_the_specification_end_with_close_and_with_load(models):
    engine = ReferenceEngine()
    engine.load(models / "tiny")
    first = engine.open()
    second = engine.open()
    engine.close(first)
    with pytest.raises(KeyError):
        engine.extend(first, [1])
    engine.load(models / "tiny")
    with pytest.raises(KeyError):
        engine.extend(second, [1])


def test_an_evicting_policy_serves_the_same_tokens_with_another_trace(models):
    engine = ReferenceEngine()
    engine.load(models / "tiny")
    limits = {"capacity": 3, "prefill_token_budget": 9, "kv_pressure": "evict"}
    roomy, tight = (engine.serve(REQUESTS, "budgeted", {**limits, "kv_budget_bytes": size}) for size in (99, 7))

    assert roomy.tokens == tight.tokens
    assert roomy.trace != tight.trace
    assert any(row.evicted for row in tight.trace)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A golden tree with one valid record and schemas that accept anything."""
    monkeypatch.setattr(records_module, "DATA", tmp_path)
    monkeypatch.setattr(records_module, "validate", lambda _content, _schema, _where: None)
    (tmp_path / "forward").mkdir()
    content = {"id": "forward/a", "input": {"model": "tiny", "prompt": [1]}, "expected": {"logits": [[0.0] * 17]}}
    content |= {"rules": ["FWD-1"], "catches": "anything"}
    (tmp_path / "forward" / "a.json").write_text(json.dumps(content))
    return tmp_path


def test_records_are_read_from_the_directory_of_their_family(data):
    expected = Record("forward/a", "forward", {"model": "tiny", "prompt": [1]}, {"logits": [[0.0] * 17]})
    expected = replace(expected, rules=("FWD-1",), catches="anything")

    assert [expected] == load_records("forward")
    assert [(expected, Verdict.FAIL)] == [
        (one, judgement.verdict) for one, judgement in judge_all(ReferenceEngine(), load_records("forward"))
    ]


def test_a_link_is_no_record(data):
    (data / "forward" / "link.json").symlink_to("/dev/zero")

    with pytest.raises(RefusedError, match=r"link\.json is a link; a record is a file of its own"):
        load_records("forward")


def test_a_seed_is_its_own_expectation(data):
    (data / "forward" / "seed.json").write_text('{"jobs": 3}')

    assert Record("forward/seed", "forward", {}, {"jobs": 3}) == load_record(
        "forward", data / "forward" / "seed.json"
    )


@pytest.mark.parametrize("family", ["cache", "unheard-of"])
def test_a_family_without_records_is_refused(data, family):
    (data / "cache").mkdir()
    with pytest.raises(RefusedError) as refused:
        load_records(family)

    assert Refusal.NOT_FOUND is refused.value.reason
    assert f"family {family} has no record in" in str(refused.value)


def test_there_is_a_judge_for_every_family():
    assert set(FAMILIES) == set(JUDGES)
