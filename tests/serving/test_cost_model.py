"""The recorded crossover, from its coefficients."""

import pytest

from reference.errors import Refusal, RefusedError
from reference.serving.cost_model import Crossover, ForwardCost, crossover

TARGET, DRAFT = ForwardCost(22.0, 0.42, 32), ForwardCost(2.6, 0.045, 32)


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [
        (1, (5, 22.0, 32.4, 9.64, 2.28, 18.16, 1.21)),
        (8, (40, 22.0, 35.76, 10.64, 2.07, 20.04, 1.1)),
        (16, (80, 22.0, 52.56, 15.64, 1.41, 29.45, 0.75)),
        (32, (160, 22.0, 86.16, 25.63, 0.86, 48.28, 0.46)),
        (64, (320, 35.44, 159.12, 47.33, 0.75, 89.16, 0.4)),
    ],
)
def test_the_recorded_rows(batch_size: int, expected: tuple[float, ...]) -> None:
    row = crossover(batch_size, 4, (0.80, 0.45), TARGET, DRAFT)

    assert (3.3616, 1.7846) == tuple(round(tokens, 4) for tokens in row.expected_tokens)
    assert expected == (
        row.verify_tokens,
        round(row.standard_ms, 2),
        round(row.cycle_ms, 2),
        round(row.speculative_ms[0], 2),
        round(row.speedup[0], 2),
        round(row.speculative_ms[1], 2),
        round(row.speedup[1], 2),
    )


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        crossover(0, 4, (0.5,), TARGET, DRAFT)

    assert Refusal.CAPACITY_NOT_POSITIVE == caught.value.reason


def test_a_forward_is_flat_up_to_its_free_tokens_and_then_linear() -> None:
    """34 tokens are two beyond 32, 160 are 128 beyond."""
    cost = ForwardCost(22.0, 0.5, 32)

    assert [22.0, 22.0, 23.0, 86.0] == [cost.ms(num_tokens) for num_tokens in (0, 32, 34, 160)]


def test_a_crossover_by_hand() -> None:
    """Batch 2, gamma 1: cycle = draft(2) + target(4) = 1 + 8. Alpha 1/2 gives 3/2 tokens a step, alpha 1 gives 2."""
    target, draft = ForwardCost(4.0, 2.0, 2), ForwardCost(1.0, 1.0, 2)
    expected = Crossover(
        batch_size=2,
        verify_tokens=4,
        standard_ms=4.0,
        cycle_ms=9.0,
        expected_tokens=(1.5, 2.0),
        speculative_ms=(6.0, 4.5),
        speedup=(4.0 / 6.0, 4.0 / 4.5),
    )

    assert expected == crossover(2, 1, (0.5, 1.0), target, draft)


@pytest.mark.parametrize(
    ("gamma", "alpha", "reason"),
    [
        (0, 0.5, Refusal.LIMIT_NOT_POSITIVE),
        (4, 1.5, Refusal.NOT_A_DISTRIBUTION),
        (4, -0.1, Refusal.NOT_A_DISTRIBUTION),
        (4, float("nan"), Refusal.NOT_A_DISTRIBUTION),
    ],
)
def test_what_is_no_speculation_is_refused(gamma: int, alpha: float, reason: Refusal) -> None:
    with pytest.raises(RefusedError) as caught:
        crossover(1, gamma, (0.5, alpha), TARGET, DRAFT)

    assert reason == caught.value.reason
