"""Mutants of norms, MLP, embedding, weights, grouped heads and precision."""

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="eps-outside-root",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "normed: Array = x / np.sqrt(mean_square + eps) * weight",
                "normed: Array = x / (np.sqrt(mean_square) + eps) * weight",
            ),
        ),
        effect="eps is added to the root instead of the mean square",
        shows="activations that eps matters to",
    ),
    Mutant(
        id="norm-one-plus-weight",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "normed: Array = x / np.sqrt(mean_square + eps) * weight",
                "normed: Array = x / np.sqrt(mean_square + eps) * (1.0 + weight)",
            ),
        ),
        effect="the norm's weight is an offset from one, as in Gemma",
        shows="any forward pass",
    ),
    Mutant(
        id="gqa-tiled",
        area="gqa",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "grouped = q.reshape(T, K, G, D).transpose(1, 2, 0, 3).reshape(K, G * T, D)",
                "grouped = q.reshape(T, G, K, D).transpose(2, 1, 0, 3).reshape(K, G * T, D)",
            ),
        ),
        effect="query head h reads key-value head h mod K",
        shows="several query heads on several key-value heads",
    ),
    Mutant(
        id="gelu-like-gate",
        area="mlp",
        edits=(
            Edit(
                "reference/numerics.py",
                "gated: Array = x / (1.0 + exp(-x))",
                "gated: Array = x / (1.0 + exp(-1.702 * x))",
            ),
        ),
        effect="the gate is the sigmoid form of GELU instead of SiLU",
        shows="any forward pass",
    ),
    Mutant(
        id="gate-and-up-swapped",
        area="mlp",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "return linear(silu(gate) * up, layer.down_proj, layer.down_bias)",
                "return linear(gate * silu(up), layer.down_proj, layer.down_bias)",
            ),
        ),
        effect="the activation is on the up projection",
        shows="any forward pass",
    ),
    Mutant(
        id="residual-after-norm",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "x = x + swiglu(rms_norm(x, layer.post_attention_norm, config.rms_norm_eps), layer)",
                "x = rms_norm(x, layer.post_attention_norm, config.rms_norm_eps)\n        x = x + swiglu(x, layer)",
            ),
        ),
        effect="the residual is taken after the norm",
        shows="any forward pass",
    ),
)
