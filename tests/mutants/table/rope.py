"""Mutants of RoPE and positions."""

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="rope-interleaved",
        area="rope",
        edits=(
            Edit(
                "reference/model/rope.py",
                "first, second = x[..., : D // 2], x[..., D // 2 :]",
                "first, second = x[..., 0::2], x[..., 1::2]",
            ),
        ),
        effect="pairs (2i, 2i + 1) are rotated instead of (i, i + D/2)",
        shows="two positions",
    ),
    Mutant(
        id="rope-positions-stretched",
        area="positions",
        edits=(
            Edit(
                "reference/model/rope.py",
                "positions = np.arange(start, start + num_tokens, dtype=np.float64)",
                "positions = np.arange(start, start + num_tokens, dtype=np.float64) * 1.01",
            ),
        ),
        effect="positions are stretched by a hundredth",
        shows="any position above 0",
    ),
    Mutant(
        id="rope-chunk-from-zero",
        area="positions",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "cosine, sine = rotation(config, len(cache), len(tokens))",
                "cosine, sine = rotation(config, 0, len(tokens))",
            ),
        ),
        effect="every chunk is rotated as if it began the session",
        shows="a second chunk or a decoded token",
    ),
    Mutant(
        id="rope-theta-ignored",
        area="rope",
        edits=(
            Edit(
                "reference/model/rope.py",
                "return power(theta, -(2.0 * np.arange(head_dim // 2)) / head_dim)",
                "return power(10000.0, -(2.0 * np.arange(head_dim // 2)) / head_dim)",
            ),
        ),
        effect="theta is always 10000",
        shows="a theta far from 10000",
    ),
    Mutant(
        id="llama3-scaling-ignored",
        area="rope",
        edits=(
            Edit(
                "reference/model/rope.py",
                "return np.where(wavelength < trained / high, kept, stretched)",
                "return np.where(wavelength > 0.0, kept, stretched)",
            ),
        ),
        effect="llama3 scaling is read and not applied",
        shows="wavelengths beyond the original context",
    ),
)
