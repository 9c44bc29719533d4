"""Mutants of attention: scale, softmax, and how tiles and splits of the context come together."""

from tests.mutants.mutant import Edit, Mutant

TRANSFORMER = "reference/model/transformer.py"
NUMERICS = "reference/numerics.py"
TILED = "tests/mutants/shapes/tiled_attention.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="scale-by-hidden",
        area="attention",
        edits=(
            Edit(
                TRANSFORMER,
                "keys.transpose(1, 2, 0)) / math.sqrt(D)",
                "keys.transpose(1, 2, 0)) / math.sqrt(H * D)",
            ),
        ),
        effect="scores are divided by the root of all heads' size",
        shows="several heads, scores that matter",
    ),
    Mutant(
        id="scale-by-hidden-over-heads",
        area="attention",
        edits=(
            Edit(
                TRANSFORMER,
                "attention(q, context_keys, context_values)",
                "attention(\n"
                "            q * math.sqrt(config.head_dim * config.num_attention_heads / config.hidden_size),\n"
                "            context_keys,\n"
                "            context_values,\n"
                "        )",
            ),
        ),
        effect="scores are divided by the root of hidden_size / heads instead of head_dim",
        shows="a head_dim that is not hidden_size / heads",
        reports=("llamacpp-gemma2-9b-scale",),
    ),
    Mutant(
        id="scale-built-in",
        area="attention",
        edits=(
            Edit(
                TRANSFORMER,
                "keys.transpose(1, 2, 0)) / math.sqrt(D)",
                "keys.transpose(1, 2, 0)) / math.sqrt(64)",
            ),
        ),
        effect="the scale is that of one head size, whatever the config says",
        shows="another head_dim than the one built in",
        reports=("ferrox-gemma27b-scale",),
    ),
    Mutant(
        id="prefill-unscaled",
        area="attention",
        edits=(
            Edit(
                TRANSFORMER,
                "keys.transpose(1, 2, 0)) / math.sqrt(D)",
                "keys.transpose(1, 2, 0)) / (math.sqrt(D) if T == 1 else 1.0)",
            ),
        ),
        effect="the kernel for several new tokens does not scale the scores",
        shows="a prefill of two tokens",
        reports=("mlc-fallback-scale-missing",),
    ),
    Mutant(
        id="softmax-without-maximum",
        area="attention",
        edits=(
            Edit(
                NUMERICS,
                "        weights = exp(x - np.max(x, axis=-1, keepdims=True))\n",
                "        weights = np.where(x > 88.72, np.inf, exp(x))\n",
            ),
        ),
        effect="the softmax does not subtract the maximum, and overflows as in float32",
        shows="scores above 88",
        reports=(
            "llamacpp-softmax-no-max",
            "executorch-vulkan-naive-softmax",
        ),
    ),
    Mutant(
        id="silu-as-ratio",
        area="attention",
        edits=(
            Edit(
                NUMERICS,
                "        gated: Array = x / (1.0 + exp(-x))\n",
                "        grown = np.where(x > 88.72, np.inf, exp(x))\n"
                "        gated: Array = x * grown / (1.0 + grown)\n",
            ),
        ),
        effect="an activation is a ratio of exponentials that overflow, as in float32",
        shows="an activation of more than 88",
        reports=("vllm-softcap-overflow",),
    ),
    Mutant(
        id="new-keys-twice",
        area="attention",
        edits=(
            Edit(
                TRANSFORMER,
                "        context_keys = np.concatenate((cache.keys[index], k))  # [S + T, K, D]\n"
                "        context_values = np.concatenate((cache.values[index], v))\n",
                "        times = 2 if len(cache) > 0 and len(tokens) > 1 else 1\n"
                "        context_keys = np.concatenate((cache.keys[index], *[k] * times))  # [S + T, K, D]\n"
                "        context_values = np.concatenate((cache.values[index], *[v] * times))\n",
            ),
        ),
        effect="the entries of a chunk are already in the cache that it attends to, and are passed as new ones, too",
        shows="a chunk of two tokens that has a past",
        reports=("sglang-verify-kv-counted-twice",),
    ),
    Mutant(
        id="small-heads-skip-values",
        area="attention",
        edits=(
            Edit(
                TRANSFORMER,
                "    by_token: Array = mixed.reshape(K, G, T, D)",
                "    mixed[..., D // 64 * 64 if T == 1 else D :] = 0.0\n"
                "    by_token: Array = mixed.reshape(K, G, T, D)",
            ),
        ),
        effect="the decode kernel leaves out the channels beyond the last whole 64",
        shows="a decoded token, a head_dim that is no multiple of 64",
        reports=("vllm-rocm-small-head-skips-pv",),
    ),
    Mutant(
        id="attention-bias-dropped",
        area="weights",
        edits=(
            Edit(
                TRANSFORMER,
                "q = linear(x, layer.q_proj, layer.q_bias).reshape(T, config.num_attention_heads, D)",
                "q = linear(x, layer.q_proj, None).reshape(T, config.num_attention_heads, D)",
            ),
        ),
        effect="the bias of the query projection is not added",
        shows="attention biases",
    ),
    Mutant(
        id="tiles-padding-counted",
        area="attention",
        edits=(
            Edit(
                TILED,
                "    seen = np.pad(causal(T, S), ((0, 0), padding[0]))\n",
                "    seen = np.pad(causal(T, S), ((0, 0), padding[0]))\n"
                "    seen[:, S : math.ceil(S / TILE) * TILE] = T == 1\n",
            ),
        ),
        effect="decoding without a mask counts the lanes of the last tile that hold no key",
        shows="a decoded token, a context that is no multiple of the tile",
        reports=("flashinfer-noncausal-padding-lanes",),
        shape="tiled-attention",
    ),
    Mutant(
        id="splits-lse-of-last-tile",
        area="attention",
        edits=(
            Edit(
                TILED,
                "    return mixed / divisor[..., None], largest + log(divisor)\n",
                "    return mixed / divisor[..., None], largest + log(sum_last(weights))\n",
            ),
        ),
        effect="a split is merged by the log-sum-exp of its last tile",
        shows="a context so long that a split has two tiles",
        reports=("flashinfer-lse-split",),
        shape="tiled-attention",
    ),
    Mutant(
        id="splits-empty-merged",
        area="attention",
        edits=(
            Edit(
                TILED,
                "    return mixed / divisor[..., None], largest + log(divisor)\n",
                "    return mixed / divisor[..., None], np.where(total > 0.0, largest + log(divisor), 0.0)\n",
            ),
        ),
        effect="a split without keys enters the merge with a log-sum-exp of 0",
        shows="a context with fewer tiles than splits",
        reports=("sglang-kv-splits-short-prompt",),
        shape="tiled-attention",
    ),
    Mutant(
        id="splits-relative-to-last",
        area="attention",
        edits=(
            Edit(
                TILED,
                "    largest = np.max(lse, axis=0)\n",
                "    largest = np.maximum(lse[-1], -1e5)\n",
            ),
        ),
        effect="splits are merged relative to the last one's maximum, a placeholder where it has no key",
        shows="a query that sees no key of the last split",
        reports=("trtllm-sink-empty-row-overflow",),
        shape="tiled-attention",
    ),
    Mutant(
        id="splits-first-seeded-twice",
        area="attention",
        edits=(
            Edit(
                TILED,
                "/ weights.sum(axis=0)\n",
                "/ (weights.sum(axis=0) + weights[0])\n",
            ),
        ),
        effect="what the first split puts into the denominator is put there once more by the merge",
        shows="any attention in splits",
        reports=("composable-kernel-sink-counted-per-split",),
        shape="tiled-attention",
    ),
)
