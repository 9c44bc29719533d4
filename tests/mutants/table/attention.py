"""Mutants of attention, its mask and padding."""

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="scale-by-hidden",
        area="attention",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "keys.transpose(1, 2, 0)) / math.sqrt(D)",
                "keys.transpose(1, 2, 0)) / math.sqrt(H * D)",
            ),
        ),
        effect="scores are divided by the root of all heads' size",
        shows="several heads, scores that matter",
    ),
    Mutant(
        id="mask-sees-next",
        area="mask",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "positions = np.arange(num_context - num_queries, num_context)",
                "positions = np.arange(num_context - num_queries, num_context) + 1",
            ),
        ),
        effect="a token sees the one after it",
        shows="two positions in one pass",
    ),
    Mutant(
        id="mask-chunk-alone",
        area="mask",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "positions = np.arange(num_context - num_queries, num_context)",
                "positions = np.arange(num_queries)",
            ),
        ),
        effect="a chunk's mask is aligned to the start of the context",
        shows="a chunk of two tokens that has a past",
    ),
    Mutant(
        id="attention-bias-dropped",
        area="weights",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "q = linear(x, layer.q_proj, layer.q_bias).reshape(T, config.num_attention_heads, D)",
                "q = linear(x, layer.q_proj, None).reshape(T, config.num_attention_heads, D)",
            ),
        ),
        effect="the bias of the query projection is not added",
        shows="attention biases",
    ),
)
