"""The one way in which a config field is refused: field, value and what would be right."""

from typing import NoReturn

from reference.errors import Refusal, RefusedError


def check_number(name: str, given: object, *, minimum: float, whole: bool = False, is_open: bool = False) -> None:
    kind = "a whole number" if whole else "a finite number"
    right = f"{kind} {'above' if is_open else 'of at least'} {minimum:g}"
    if isinstance(given, bool) or not isinstance(given, int if whole else int | float):
        refuse_field(name, given, right)
    assert isinstance(given, int | float)
    if not minimum <= given < float("inf") or (is_open and given == minimum):
        refuse_field(name, given, right)


def refuse_field(field: str, given: object, right: str) -> NoReturn:
    raise RefusedError(Refusal.CONFIG_INVALID, f"config field {field} is {given!r}; it must be {right}")
