"""Mutants of stop conditions and logprobs."""

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="length-before-eos",
        area="stop",
        edits=(
            Edit(
                "reference/decoding/generate.py",
                "    if output[-1] in stop.eos_ids:\n",
                "    if output[-1] in stop.eos_ids and len(output) < stop.max_tokens:\n",
            ),
        ),
        effect="a token that is both eos and the last allowed one ends with 'length'",
        shows="an eos at the last allowed token",
    ),
)
