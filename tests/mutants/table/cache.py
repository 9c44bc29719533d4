"""Mutants of the KV cache and batches."""

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="truncate-keeps-one-more",
        area="kv-cache",
        edits=(
            Edit(
                "reference/model/cache.py",
                "return KVCache(self.keys[:, :num_tokens].copy(), self.values[:, :num_tokens].copy())",
                "return KVCache(self.keys[:, : num_tokens + 1].copy(), self.values[:, : num_tokens + 1].copy())",
            ),
        ),
        effect="a rollback leaves one stale entry",
        shows="a rollback and tokens after it",
    ),
)
