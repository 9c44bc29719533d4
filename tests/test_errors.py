"""Refusals are data: a reason for programs, a sentence for people."""

import pickle

from reference.errors import Refusal, RefusedError, UnsupportedError


def test_a_refusal_prints_as_its_wire_name():
    assert [reason.value for reason in Refusal] == [str(reason) for reason in Refusal]


def test_wire_names_are_the_member_names_in_lower_case():
    assert [reason.name.lower() for reason in Refusal] == [reason.value for reason in Refusal]


def test_a_refused_error_is_a_value_error_with_reason_and_sentence():
    error = RefusedError(Refusal.CACHE_RANGE, "cannot truncate")

    assert isinstance(error, ValueError)
    assert (Refusal.CACHE_RANGE, "cannot truncate") == (error.reason, str(error))


def test_an_unsupported_error_names_the_feature():
    error = UnsupportedError("fork")

    assert not isinstance(error, ValueError)
    assert ("fork", "fork") == (error.feature, str(error))


def test_a_refusal_travels_between_processes():
    sent = RefusedError(Refusal.NOT_FOUND, "no such thing")

    received = pickle.loads(pickle.dumps(sent))

    assert (RefusedError, Refusal.NOT_FOUND, "no such thing") == (type(received), received.reason, str(received))
