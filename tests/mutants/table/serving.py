"""Mutants of schedulers; their reports wait for their specification."""

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="static-fills-slots",
        area="scheduler",
        edits=(
            Edit(
                "reference/serving/policies.py",
                "    if len(running) > 0:\n",
                "    if len(running) >= limits.max_running:\n",
            ),
        ),
        effect="a fixed batch admits into free slots",
        shows="a batch whose sessions end at different ticks",
    ),
    Mutant(
        id="prefill-lost",
        area="scheduler",
        edits=(
            Edit(
                "reference/serving/policies.py",
                "operations: tuple[Operation, ...] = (*prefills, *(Decode(session.id) for session in running))",
                "operations: tuple[Operation, ...] = (*prefills[:1], *(Decode(session.id) for session in running))",
            ),
        ),
        effect="of several prefills in a tick only the first is computed",
        shows="two prefills in one tick",
    ),
    Mutant(
        id="evicts-most-recent",
        area="scheduler",
        edits=(Edit("reference/serving/policies.py", "coldest = next(iter(hot))", "coldest = next(reversed(hot))"),),
        effect="the most recently used session is evicted",
        shows="evictions under pressure",
    ),
    Mutant(
        id="budget-not-checked",
        area="scheduler",
        edits=(
            Edit(
                "reference/serving/policies.py",
                "    if budget is not None and len(request.prompt) > budget:\n",
                "    if budget is not None and len(request.prompt) > budget + 99:\n",
            ),
        ),
        effect="a prompt longer than any tick's budget blocks the queue",
        shows="a prompt beyond the budget",
    ),
)
