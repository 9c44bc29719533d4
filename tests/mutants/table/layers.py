"""Mutants of norms and MLP."""

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
        reports=("mlxlm-swiglu-arg-order",),
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
    Mutant(
        id="eps-after-reciprocal",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "normed: Array = x / np.sqrt(mean_square + eps) * weight",
                "normed: Array = x * (1.0 / np.sqrt(mean_square) + eps) * weight",
            ),
        ),
        effect="eps is added to the reciprocal of the root",
        shows="activations that eps matters to, or a row of zeros, which becomes NaN",
        reports=("tilelang-rmsnorm-eps-outside-sqrt",),
    ),
    Mutant(
        id="eps-constant-1e-5",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "normed: Array = x / np.sqrt(mean_square + eps) * weight",
                "normed: Array = x / np.sqrt(mean_square + 1e-5) * weight",
            ),
        ),
        effect="eps is 1e-5, whatever the config says",
        shows="an eps far from 1e-5, activations that it matters to",
        reports=("candle-llama-eps",),
    ),
    Mutant(
        id="eps-constant-1e-6",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "normed: Array = x / np.sqrt(mean_square + eps) * weight",
                "normed: Array = x / np.sqrt(mean_square + 1e-6) * weight",
            ),
        ),
        effect="eps is 1e-6, whatever the config says",
        shows="an eps far from 1e-6, activations that it matters to",
        reports=("tvm-rmsnorm-eps-hardcoded",),
    ),
    Mutant(
        id="eps-default-1e-5",
        area="norm",
        edits=(
            Edit(
                "reference/model/config.py",
                "rms_norm_eps: float = 1e-6",
                "rms_norm_eps: float = 1e-5",
            ),
        ),
        effect="a config without an eps means 1e-5",
        shows="a config without an eps, small activations",
        reports=("litllama-eps-default",),
    ),
    Mutant(
        id="eps-after-rescale",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "mean_square = sum_last(x * x)[:, None] / E",
                "largest = np.abs(x).max(axis=-1, keepdims=True)\n"
                "    x = x / largest\n"
                "    mean_square = sum_last(x * x)[:, None] / E",
            ),
        ),
        effect="rows are divided by their largest number before eps is added",
        shows="a large eps, outliers, or a row of zeros, which becomes NaN",
        reports=("coremltools-rmsnorm-eps-after-rescale",),
    ),
    Mutant(
        id="norm-twice",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "mean_square = sum_last(x * x)[:, None] / E",
                "x = x / np.sqrt(sum_last(x * x)[:, None] / E + eps)\n    mean_square = sum_last(x * x)[:, None] / E",
            ),
        ),
        effect="rows are normalised twice; the second time changes little",
        shows="an eps as large as the activations' mean square",
        reports=("llamacpp-rmsnorm-twice",),
    ),
    Mutant(
        id="norm-rounded-before-weight",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "normed: Array = x / np.sqrt(mean_square + eps) * weight",
                'normed: Array = (x / np.sqrt(mean_square + eps)).astype("bfloat16").astype(float) * weight',
            ),
        ),
        effect="the normalised row is rounded to bfloat16 before it is weighed",
        shows="any forward pass",
        reports=("te-rmsnorm-cast-after-weight",),
    ),
    Mutant(
        id="norm-squares-in-float16",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "mean_square = sum_last(x * x)[:, None] / E",
                "mean_square = sum_last((x * x).astype(np.float16)).astype(np.float64)[:, None] / E",
            ),
        ),
        effect="squares, and the sum of them, are kept in float16",
        shows="any forward pass; activations above 256 overflow",
        reports=("thunder-rmsnorm-no-upcast", "tvm-topi-rmsnorm-fp16-reduce"),
    ),
    Mutant(
        id="norm-of-rounded-sum",
        area="norm",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    _, E = x.shape\n    mean",
                '    _, E = x.shape\n    x = x.astype("bfloat16").astype(float)\n    mean',
            ),
        ),
        effect="the sum with the residual is rounded to bfloat16 before the norm",
        shows="any forward pass",
        reports=("vllm-fused-add-norm-rounds-sum",),
    ),
    Mutant(
        id="gate-gelu-tanh",
        area="mlp",
        edits=(
            Edit(
                "reference/numerics.py",
                "gated: Array = x / (1.0 + exp(-x))",
                "gated: Array = 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))",
            ),
        ),
        effect="the gate is GELU by tanh instead of SiLU",
        shows="any forward pass",
        reports=("candle-gemma3-silu", "trtmc-gemma-silu"),
    ),
    Mutant(
        id="silu-nan-for-large-gates",
        area="mlp",
        edits=(
            Edit(
                "reference/numerics.py",
                "gated: Array = x / (1.0 + exp(-x))",
                "gated: Array = x * exp(x) / (1.0 + exp(x))",
            ),
        ),
        effect="SiLU is x exp(x) / (1 + exp(x)), infinity over infinity for a large gate",
        shows="gates above 710",
        reports=("ds4-silu-nan-large-gate",),
    ),
)
