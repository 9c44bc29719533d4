"""Draft and target in a loop: the tokens of plain decoding, caches rolled back, and every way to end."""

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from reference.decoding.generate import Generation, StopRule, choose_greedily, generate
from reference.decoding.sampling import distribution
from reference.decoding.speculation import (
    Sampling,
    SpeculativeGeneration,
    Step,
    StepCoins,
    emit,
    generate_speculatively,
    propose,
)
from reference.errors import Array, Refusal, RefusedError
from reference.model.cache import empty_cache
from reference.model.config import ModelConfig
from reference.model.transformer import forward
from reference.model.weights import Layer, Model, Weights
from tests.models import ROPES, TINY, perturbed_model, random_model, random_tokens, rope_config

GAMMAS = range(1, 9)
DRAFTS = {
    "bad": lambda config: random_model(config, seed=2),
    "good": perturbed_model,
    "identical": random_model,
    "smaller": lambda config: random_model(replace(config, num_hidden_layers=1, num_key_value_heads=1), seed=3),
}


def successor_model(successors: tuple[int, ...], context: int = 32) -> Model:
    """After token t comes successors[t]: embeddings are unit vectors, the layer adds nothing, the head looks up."""
    size = len(successors)
    config = ModelConfig(size, size, 1, 1, 1, 1, 2, max_position_embeddings=context)
    layer = Layer(
        input_norm=np.ones(size),
        q_proj=np.zeros((size, 2)),
        k_proj=np.zeros((size, 2)),
        v_proj=np.zeros((size, 2)),
        o_proj=np.zeros((2, size)),
        post_attention_norm=np.ones(size),
        gate_proj=np.zeros((size, 1)),
        up_proj=np.zeros((size, 1)),
        down_proj=np.zeros((1, size)),
    )
    return Model(config, Weights(np.eye(size), (layer,), np.ones(size), np.eye(size)[list(successors)]))


# The target counts modulo 6. The draft counts too, but takes 0 after 3: it errs at every fourth token.
TARGET = successor_model((1, 2, 3, 4, 5, 0))
ERRING = successor_model((1, 2, 3, 0, 5, 0))


# Greedy


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_greedy_tokens_are_those_of_plain_decoding(gamma, draft):
    target, stop = random_model(), StopRule(30, (), 64)
    plain = generate(target, random_tokens(5), stop, choose_greedily)
    speculative = generate_speculatively(target, DRAFTS[draft](TINY), random_tokens(5), stop, gamma)

    assert plain == Generation(speculative.tokens, speculative.finish_reason)


@pytest.mark.parametrize("rope_type", ROPES)
def test_greedy_tokens_are_those_of_plain_decoding_with_every_rope_type(rope_type):
    """Within longrope's original 16 tokens: beyond, the split into forwards is part of the result."""
    config, stop = rope_config(rope_type), StopRule(30, (), 16)
    plain = generate(random_model(config), random_tokens(4), stop, choose_greedily)
    speculative = generate_speculatively(random_model(config), perturbed_model(config), random_tokens(4), stop, 3)

    assert plain == Generation(speculative.tokens, speculative.finish_reason)


def test_the_drafts_of_these_tests_agree_never_sometimes_and_always():
    """Else the tests above would not see a rollback of every length."""
    stop = StopRule(30, (), 64)
    accepted = {
        name: {
            step.num_accepted
            for step in generate_speculatively(random_model(), draft(TINY), random_tokens(5), stop, 4).steps[:-1]
        }
        for name, draft in DRAFTS.items()
    }

    assert accepted["identical"] == {4}
    assert 0 in accepted["bad"]
    assert len(accepted["good"]) > 2


def test_steps_and_cache_lengths_of_a_draft_that_errs_at_every_fourth_token():
    """Prompt 1; the draft errs after 3. Both caches lack the newest token; the draft's also its own last draft
    when all were accepted: it was never fed.
    """
    steps = (
        # [1]: drafts 2, 3; both right, bonus 4. Tokens 1 2 3 4: target has 1 2 3, draft 1 2.
        Step((2, 3), 2, (2, 3, 4), target_cached=3, draft_cached=2),
        # Draft is fed 3 4 and gives 5, 0; both right, bonus 1. Tokens 1 .. 4 5 0 1.
        Step((5, 0), 2, (5, 0, 1), target_cached=6, draft_cached=5),
        # 2, 3 right, bonus 4: 10 tokens.
        Step((2, 3), 2, (2, 3, 4), target_cached=9, draft_cached=8),
    )
    expected = SpeculativeGeneration((2, 3, 4, 5, 0, 1, 2, 3, 4), "length", steps)

    assert expected == generate_speculatively(TARGET, ERRING, (1,), StopRule(9, (), 32), gamma=2)


def test_rejected_drafts_leave_both_caches():
    """Prompt 3: the draft says 0 and goes on 1, 2; the target says 4. One token is kept: 3; the newest, 4, is not
    computed. Then 5, 0, 1 all accepted and 2 as bonus. Then two drafts fit: 3 right, 0 after it wrong: 4 instead.
    """
    steps = (
        Step((0, 1, 2), 0, (4,), target_cached=1, draft_cached=1),
        Step((5, 0, 1), 3, (5, 0, 1, 2), target_cached=5, draft_cached=4),
        Step((3, 0), 1, (3, 4), target_cached=7, draft_cached=7),
        # One token is left: no draft fits beside it. The draft's cache stays where it was.
        Step((), 0, (5,), target_cached=8, draft_cached=7),
    )
    expected = SpeculativeGeneration((4, 5, 0, 1, 2, 3, 4, 5), "length", steps)

    assert expected == generate_speculatively(TARGET, ERRING, (3,), StopRule(8, (), 32), gamma=3)


def run(
    stop: StopRule, gamma: int = 4, prompt: tuple[int, ...] = (0,), draft: Model = TARGET
) -> SpeculativeGeneration:
    return generate_speculatively(TARGET, draft, prompt, stop, gamma)


@pytest.mark.parametrize(
    ("stop", "tokens", "reason"),
    [
        (StopRule(20, (2,), 32), (1, 2), "stop"),  # inside the accepted run
        (StopRule(20, (1,), 32), (1,), "stop"),  # its first token
        (StopRule(20, (4,), 32), (1, 2, 3, 4), "stop"),  # the last draft
        (StopRule(20, (5,), 32), (1, 2, 3, 4, 5), "stop"),  # the bonus token
        (StopRule(20, (4, 2), 32), (1, 2), "stop"),
        (StopRule(2, (2,), 32), (1, 2), "stop"),  # eos as the max_tokens-th token
        (StopRule(20, (2,), 3), (1, 2), "stop"),  # eos as the token that fills the context
        (StopRule(2, (3,), 32), (1, 2), "length"),  # eos one too late
        (StopRule(1, (), 32), (1,), "length"),
        (StopRule(3, (), 32), (1, 2, 3), "length"),  # max_tokens inside the run
        (StopRule(5, (), 32), (1, 2, 3, 4, 5), "length"),  # exactly one step
        (StopRule(6, (), 32), (1, 2, 3, 4, 5, 0), "length"),
        (StopRule(20, (), 4), (1, 2, 3), "length"),  # context inside the run
        (StopRule(20, (), 2), (1,), "length"),
    ],
)
@pytest.mark.parametrize("draft", [TARGET, ERRING])
def test_an_output_ends_inside_a_step_as_plain_decoding_ends(draft, stop, tokens, reason):
    generation = run(stop, draft=draft)

    assert (tokens, reason) == (generation.tokens, generation.finish_reason)
    assert Generation(tokens, reason) == generate(TARGET, (0,), stop, choose_greedily)


def test_a_step_is_recorded_as_verified_even_where_eos_cuts_it():
    """The caches keep 1 + 5 - 1 tokens of the target; the draft has not seen its last draft 4."""
    steps = (Step((1, 2, 3, 4), 4, (1, 2, 3, 4, 5), target_cached=5, draft_cached=4),)

    assert SpeculativeGeneration((1, 2), "stop", steps) == run(StopRule(20, (2,), 32))


@pytest.mark.parametrize(("room", "num_drafts"), [(1, [0]), (2, [1]), (3, [2]), (5, [4]), (6, [4, 0]), (7, [4, 1])])
def test_a_step_drafts_no_more_than_the_output_can_hold(room, num_drafts):
    """Room for n tokens takes at most n - 1 drafts and one token after them; by max_tokens or by context alike."""
    by_max_tokens, by_context = run(StopRule(room, (), 32)), run(StopRule(99, (), 1 + room))

    assert num_drafts == [len(step.drafts) for step in by_max_tokens.steps]
    assert by_max_tokens == by_context


def test_the_whole_context_of_both_models_can_be_used():
    small = successor_model((1, 2, 3, 4, 5, 0), context=8)
    generation = generate_speculatively(small, small, (0, 1), StopRule(99, (), 8), 3)

    assert ((2, 3, 4, 5, 0, 1), "length") == (generation.tokens, generation.finish_reason)


def test_proposals_start_after_what_the_drafts_cache_holds():
    """Two tokens cached of three: the third is fed, then each draft but the last."""
    _, cache = forward(ERRING, (0, 1), empty_cache(ERRING.config))
    drafts, rows, longer = propose(ERRING, cache, (0, 1, 2), 3, None, None)

    assert ((3, 0, 1), (3, 6), 5) == (drafts, rows.shape, len(longer))
    assert len(cache) == 2


# Sampled


def coins(random: np.random.Generator, gamma: int) -> StepCoins:
    return StepCoins(
        tuple(random.random(gamma).tolist()), tuple(random.random(gamma).tolist()), float(random.random())
    )


def test_a_draft_equal_to_the_target_is_always_accepted():
    random = np.random.default_rng(1)
    sampling = Sampling(1.5, [coins(random, 3) for _ in range(10)])
    generation = generate_speculatively(
        random_model(), random_model(), random_tokens(4), StopRule(24, (), 64), 3, sampling
    )

    assert [3] * 6 == [step.num_accepted for step in generation.steps]
    assert len(set(generation.tokens)) > 5


def test_a_shortened_step_uses_the_first_of_its_coins():
    """Four drafts and a bonus, then room for two tokens: one draft, though coins for four are given."""
    random = np.random.default_rng(2)
    sampling = Sampling(1.5, [coins(random, 4) for _ in range(2)])
    one_fits = Sampling(1.5, [sampling.coins[0], replace(sampling.coins[1], draft=sampling.coins[1].draft[:1])])
    stop = StopRule(7, (), 64)
    generations = [
        generate_speculatively(random_model(), random_model(), random_tokens(4), stop, 4, given)
        for given in (sampling, one_fits)
    ]

    assert [4, 1] == [step.num_accepted for step in generations[0].steps]
    assert generations[0] == generations[1]


def test_draft_coins_accept_coins_and_the_final_coin_have_their_own_uses():
    """Laws at temperature sqrt(6) / ln 5: the successor has 5/10, each other token 1/10 (logits sqrt(6) and 0).

    Token 3: the target follows with 4, the draft with 0. Draft coin 0.3 is draft token 0 (q up to .5);
    p(0)/q(0) = 1/5, so accept coin 0.21 rejects; residual p - q is 4/10 at token 4 alone.
    Token 4: both follow with 5. Draft coin 0.95 is token 5; accepted by any coin. Bonus after 5 is 0 with
    5/10: final coin 0.55 is the next token, 1.
    """
    sampling = Sampling(
        math.sqrt(6) / math.log(5), [StepCoins((0.3,), (0.21,), 0.99), StepCoins((0.95,), (0.999,), 0.55)]
    )
    generation = generate_speculatively(TARGET, ERRING, (3,), StopRule(3, (), 32), 1, sampling)
    steps = (Step((0,), 0, (4,), 1, 1), Step((5,), 1, (5, 1), 3, 2))

    assert SpeculativeGeneration((4, 5, 1), "length", steps) == generation


def test_the_accept_coin_decides_at_the_ratio_of_target_and_draft():
    """As above: p(0)/q(0) = 1/5, and the residual is token 4 but for what rounding leaves elsewhere."""
    stop = StopRule(2, (), 32)
    first = [
        generate_speculatively(
            TARGET,
            ERRING,
            (3,),
            stop,
            1,
            Sampling(math.sqrt(6) / math.log(5), [StepCoins((0.3,), (coin,), 0.5), StepCoins((), (), 0.5)]),
        ).tokens[0]
        for coin in (0.199, 0.201)
    ]

    assert [0, 4] == first


def test_a_step_without_drafts_draws_from_the_target_with_its_final_coin():
    """The successor of 3 is 4: cumulative 1/10, .., 4/10, 9/10, 1."""
    drawn = [
        generate_speculatively(
            TARGET,
            ERRING,
            (3,),
            StopRule(1, (), 32),
            2,
            Sampling(math.sqrt(6) / math.log(5), [StepCoins((), (), coin)]),
        ).tokens
        for coin in (0.05, 0.35, 0.45, 0.85, 0.95)
    ]

    assert [(0,), (3,), (4,), (4,), (5,)] == drawn


def cells_of(p: Array) -> list[tuple[float, float]]:
    """(midpoint, width) of the coins that an inverse CDF takes to one token."""
    ends = np.concatenate([[0.0], np.cumsum(p)])
    return [((low + high) / 2, high - low) for low, high in pairwise(ends.tolist())]


def next_law(model: Model, tokens: tuple[int, ...], temperature: float) -> Array:
    return distribution(forward(model, tokens, empty_cache(model.config))[0][-1], temperature)


def test_two_sampled_tokens_have_the_targets_law():
    """The whole loop, once for every cell of every coin, on random models of four tokens; law of both tokens."""
    config = replace(TINY, vocab_size=4)
    target, draft = random_model(config, seed=5), random_model(config, seed=6)
    prompt, temperature, stop = (1, 3), 2.0, StopRule(2, (), 64)
    p, q = next_law(target, prompt, temperature), next_law(draft, prompt, temperature)
    law = np.zeros((4, 4))

    def add(weight: float, *steps: StepCoins) -> None:
        sampling = Sampling(temperature, steps)
        law[generate_speculatively(target, draft, prompt, stop, 1, sampling).tokens] += weight

    for x, (draft_coin, draft_width) in enumerate(cells_of(q)):
        accept = min(1.0, p[x] / q[x])
        for final_coin, width in cells_of(next_law(target, (*prompt, x), temperature)):
            add(draft_width * accept * width, StepCoins((draft_coin,), (accept / 2,), final_coin))
        if accept == 1.0:
            continue
        surplus = np.maximum(0.0, p - q)
        replacements = cells_of(surplus / surplus.sum())
        for (y, (final_coin, width)), second in product(enumerate(replacements), range(4)):
            second_coin, second_width = cells_of(next_law(target, (*prompt, y), temperature))[second]
            add(
                draft_width * (1 - accept) * width * second_width,
                StepCoins((draft_coin,), ((1 + accept) / 2,), final_coin),
                StepCoins((), (), second_coin),
            )
    expected = np.array([p[x] * next_law(target, (*prompt, x), temperature) for x in range(4)])

    np.testing.assert_allclose(law, expected, rtol=1e-12)
    assert np.abs(p - q).sum() > 0.2


def test_emit_without_drafts_is_the_targets_own_choice():
    logits = np.array([[0.0, 5.0, 1.0]])

    assert (1,) == emit(logits, np.zeros((0, 3)), (), None, None)


# Refusals


def refusal(reason: Refusal, **changes) -> str:
    given = {
        "target": TARGET,
        "draft": ERRING,
        "prompt": (0,),
        "stop": StopRule(8, (), 32),
        "gamma": 2,
        "sampling": None,
        **changes,
    }
    with pytest.raises(RefusedError) as refused:
        generate_speculatively(**given)

    assert refused.value.reason is reason
    return str(refused.value)


@pytest.mark.parametrize("gamma", [0, -1])
def test_a_gamma_below_one_is_refused(gamma):
    expected = f"gamma is {gamma}; at least one draft is needed"

    assert expected == refusal(Refusal.LIMIT_NOT_POSITIVE, gamma=gamma)


def test_models_of_different_vocabularies_are_refused():
    expected = "vocab_size of target and draft differ: 6, 5"

    assert expected == refusal(Refusal.CONFIG_INVALID, draft=successor_model((1, 2, 3, 4, 0)))


def test_a_draft_with_a_shorter_context_is_refused():
    expected = "a context of 32 exceeds the draft's 31"

    assert expected == refusal(Refusal.CONTEXT_EXCEEDED, draft=successor_model((1, 2, 3, 4, 5, 0), context=31))


@pytest.mark.parametrize(
    ("changes", "reason", "sentence"),
    [
        ({"stop": StopRule(0, (), 32)}, Refusal.LIMIT_NOT_POSITIVE, "max_tokens is 0; at least 1 is needed"),
        ({"stop": StopRule(8, (), 33)}, Refusal.CONTEXT_EXCEEDED, "a context of 33 exceeds the model's 32"),
        ({"prompt": ()}, Refusal.PROMPT_EMPTY, "at least one token is needed to compute logits"),
        ({"prompt": (), "stop": StopRule(1, (), 32)}, Refusal.PROMPT_EMPTY, "at least one token is needed"),
        ({"prompt": (6,)}, Refusal.TOKEN_OUT_OF_RANGE, "token 6 at position 0 is not in 0 .. 5"),
    ],
)
def test_what_plain_decoding_refuses_is_refused(changes, reason, sentence):
    assert refusal(reason, **changes).startswith(sentence)


@pytest.mark.parametrize(
    ("step_coins", "sentence"),
    [
        ([], "step 0 has no coins; 0 steps have"),
        ([StepCoins((0.1,), (0.1, 0.1), 0.1)], "step 0 needs 2 draft and accept coins"),
        ([StepCoins((0.1, 0.1), (0.1,), 0.1)], "step 0 needs 2 draft and accept coins"),
        ([StepCoins((0.1, 0.1), (0.1, 0.1), 0.1)], "step 1 has no coins; 1 steps have"),
        ([StepCoins((0.1, 1.0), (0.1, 0.1), 0.1)], "coin 1.0 is not in [0, 1)"),
        ([StepCoins((0.1, 0.1), (0.1, 0.1), -0.5)], "coin -0.5 is not in [0, 1)"),
    ],
)
def test_coins_that_are_missing_or_no_coins_are_refused(step_coins, sentence):
    assert sentence == refusal(Refusal.COIN_OUT_OF_RANGE, sampling=Sampling(1.0, step_coins))


def test_a_temperature_of_zero_is_refused():
    sampling = Sampling(0.0, [StepCoins((0.1, 0.1), (0.1, 0.1), 0.1)])

    assert "temperature 0.0 must be above 0 and finite" == refusal(Refusal.LIMIT_NOT_POSITIVE, sampling=sampling)
