"""Mutants of speculation: verification, its KV, drafts and batches."""

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="no-residual",
        area="spec-verify",
        edits=(
            Edit(
                "reference/decoding/verification.py",
                "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
                "token = x if is_accepted else draw(p[i], final_coin)",
            ),
        ),
        effect="a rejected draft is replaced by a draw from p",
        shows="a rejection where p and q overlap",
    ),
    Mutant(
        id="bonus-from-last-draft",
        area="spec-verify",
        edits=(
            Edit(
                "reference/decoding/verification.py",
                "bonus = draw(p[-1], final_coin)",
                "bonus = draw(p[-2], final_coin)",
            ),
        ),
        effect="the bonus token comes from the row of the last draft",
        shows="all drafts accepted",
    ),
    Mutant(
        id="rollback-keeps-rejected",
        area="spec-kv",
        edits=(
            Edit(
                "reference/decoding/speculation.py",
                "draft_cache = draft_cache.truncate(min(num_kept, len(draft_cache)))",
                "draft_cache = draft_cache.truncate(min(num_kept + 1, len(draft_cache)))",
            ),
        ),
        effect="the draft's cache keeps the keys of a rejected draft",
        shows="a rejected draft and steps after it",
    ),
    Mutant(
        id="expected-without-bonus",
        area="spec-verify",
        edits=(
            Edit(
                "reference/decoding/verification.py",
                "return (1 - math.prod([alpha] * (gamma + 1))) / (1 - alpha)",
                "return (1 - math.prod([alpha] * gamma)) / (1 - alpha)",
            ),
        ),
        effect="expected tokens leave out the bonus token",
        shows="the cost model",
    ),
)
