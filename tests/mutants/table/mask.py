"""Mutants of the mask and of padding."""

from tests.mutants.mutant import Edit, Mutant

TRANSFORMER = "reference/model/transformer.py"
PADDED = "tests/mutants/shapes/padded_batch.py"
PACKED = "tests/mutants/shapes/packed_batch.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="mask-sees-next",
        area="mask",
        edits=(
            Edit(
                TRANSFORMER,
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
                TRANSFORMER,
                "positions = np.arange(num_context - num_queries, num_context)",
                "positions = np.arange(num_queries)",
            ),
        ),
        effect="a chunk's mask is aligned to the start of the context: a decoded token sees the first key only",
        shows="a decoded token, or a chunk that has a past",
        reports=(
            "xtransformers-sdpa-causal-cache",
            "executorch-reference-causal-upper-left",
            "ort-causal-alignment-cpu-vs-cuda",
            "llmsfs-mask-square-with-cache",
        ),
    ),
    Mutant(
        id="mask-top-left-in-chunks",
        area="mask",
        edits=(
            Edit(
                TRANSFORMER,
                "    positions = np.arange(num_context - num_queries, num_context)\n",
                "    first = num_context - num_queries if num_queries == 1 else 0\n"
                "    positions = np.arange(first, first + num_queries)\n",
            ),
        ),
        effect="a chunk's mask compares its own indices of queries with those of the context; decoding has no mask",
        shows="a chunk of two tokens that has a past",
        reports=(
            "sparkinfer-causal-top-left",
            "onnx-attention-causal-top-left",
            "vllm-fa4-mask-local-qidx",
        ),
    ),
    Mutant(
        id="mask-hides-past",
        area="mask",
        edits=(
            Edit(
                TRANSFORMER,
                "    return np.arange(num_context)[None, :] <= positions[:, None]\n",
                "    is_hidden = np.arange(num_context) < (num_context - num_queries if num_queries > 1 else 0)\n"
                "    return (np.arange(num_context)[None, :] <= positions[:, None]) & ~is_hidden\n",
            ),
        ),
        effect="the mask of a chunk is a square over its own tokens, and the keys before it are not covered",
        shows="a chunk of two tokens that has a past",
        reports=("candle-qwen2-mask-tgt-tgt",),
    ),
    Mutant(
        id="mask-first-key-lost",
        area="mask",
        edits=(
            Edit(
                TRANSFORMER,
                "    return np.arange(num_context)[None, :] <= positions[:, None]\n",
                "    keys = np.arange(num_context)[None, :]\n"
                "    return (keys <= positions[:, None]) & (keys >= (num_context > num_queries))\n",
            ),
        ),
        effect="the range of keys starts one too late once the cache is in use",
        shows="a decoded token, or a chunk that has a past",
        reports=("hf-llama4-chunk-offset",),
    ),
    Mutant(
        id="mask-missing-in-prefill",
        area="mask",
        edits=(
            Edit(
                TRANSFORMER,
                "    return np.arange(num_context)[None, :] <= positions[:, None]\n",
                "    visible = np.arange(num_context)[None, :] <= positions[:, None]\n"
                "    return visible | (num_context == num_queries)\n",
            ),
        ),
        effect="the first pass of a session has no mask",
        shows="two positions in the first pass",
        reports=("tinygrad-gpt2-start-pos-zero",),
    ),
    Mutant(
        id="mask-adds-one",
        area="mask",
        edits=(
            Edit(
                TRANSFORMER,
                "    scores = np.where(causal(T, S), scores.reshape(K, G, T, S), -np.inf)\n",
                "    scores = np.where(causal(T, S), scores.reshape(K, G, T, S) + 1.0, -np.inf)\n",
            ),
        ),
        effect="the mask adds one, not zero, to the scores that it lets through",
        shows="a comparison of bits: what all scores have in common cancels in the softmax, up to rounding",
        reports=("tinygrad-causal-mask-plus-one",),
    ),
    Mutant(
        id="position-on-the-model",
        area="mask",
        edits=(
            Edit(
                TRANSFORMER,
                "    cosine, sine = rotation(config, len(cache), len(tokens))\n",
                "    cosine, sine = rotation(config, advance(len(cache), len(tokens)), len(tokens))\n",
            ),
            Edit(
                TRANSFORMER,
                "def rms_norm(x: Array, weight: Array, eps: float) -> Array:\n",
                "COUNTER = [0]\n"
                "\n"
                "\n"
                "def advance(num_cached: int, num_new: int) -> int:\n"
                "    COUNTER[0] = num_new + (COUNTER[0] if num_cached > 0 else 0)\n"
                "    return COUNTER[0] - num_new\n"
                "\n"
                "\n"
                "def rms_norm(x: Array, weight: Array, eps: float) -> Array:\n",
            ),
        ),
        effect="the position is counted on the model, not with the session: it is shared and never rolls back",
        shows="two sessions by turns, or a rollback",
        reports=("llmsfs-mask-row-selection",),
    ),
    Mutant(
        id="mask-finite-and-summed",
        area="mask",
        edits=(
            Edit(
                PADDED,
                "    visible: Booleans = (slots <= queries) & (held[:, None, :] | (slots == queries))\n",
                "    too_late = np.where(slots <= queries, 0.0, -1e4)\n"
                "    visible = too_late + np.where(held[:, None, :], 0.0, -1e4)\n",
            ),
            Edit(
                PADDED,
                "    scores = np.where(visible[:, None, None], scores.reshape(B, K, G, T, S), -np.inf)\n",
                "    scores = scores.reshape(B, K, G, T, S) + visible[:, None, None]\n",
            ),
        ),
        effect="the masks of order and of padding are finite numbers, and are added",
        shows="scores that differ by more than 10000",
        reports=("ort-additive-masks-stack",),
        shape="padded-batch",
    ),
    Mutant(
        id="mask-in-float16",
        area="mask",
        edits=(
            Edit(
                PADDED,
                "    visible: Booleans = (slots <= queries) & (held[:, None, :] | (slots == queries))\n",
                "    visible: Booleans = (slots <= queries) & held[:, None, :]\n",
            ),
            Edit(
                PADDED,
                "    scores = np.where(visible[:, None, None], scores.reshape(B, K, G, T, S), -np.inf)\n",
                "    masked = scores.reshape(B, K, G, T, S) + np.where(visible[:, None, None], 0.0, -65504.0)\n"
                "    scores = masked.astype(np.float16)\n",
            ),
        ),
        effect="float16's lowest number is added to hidden scores, so that all of a pad's overflow to -inf",
        shows="scores beyond -16 in a padded row, or logprobs",
        reports=("hf-fp16-finfo-min-mask",),
        shape="padded-batch",
    ),
    Mutant(
        id="mask-nan-in-unused-slots",
        area="mask",
        edits=(
            Edit(
                PADDED,
                "    return BatchCache(np.zeros(shape), np.zeros(shape))\n",
                "    return BatchCache(np.full(shape, np.nan), np.full(shape, np.nan))\n",
            ),
            Edit(
                PADDED,
                "    scores = np.where(visible[:, None, None], scores.reshape(B, K, G, T, S), -np.inf)\n",
                "    scores = scores.reshape(B, K, G, T, S) + np.where(visible[:, None, None], 0.0, -np.inf)\n",
            ),
        ),
        effect="memory of unused slots is never set and hidden by adding -inf: NaN stays NaN",
        shows="any batch",
        reports=("wan2gp-nan-plus-neginf",),
        shape="padded-batch",
    ),
    Mutant(
        id="packed-sees-others",
        area="mask",
        edits=(
            Edit(
                PACKED,
                "    visible: Booleans = (slots <= queries) & (owners == owners[queries])\n",
                "    visible: Booleans = slots <= queries\n",
            ),
        ),
        effect="prompts packed into one sequence have a plain causal mask, so later ones see earlier ones",
        shows="two prompts in one batch",
        reports=("hf-packed-mask-ignored",),
        shape="packed-batch",
    ),
    Mutant(
        id="pads-without-a-key",
        area="padding",
        edits=(
            Edit(
                PADDED,
                "    visible: Booleans = (slots <= queries) & (held[:, None, :] | (slots == queries))\n",
                "    visible: Booleans = (slots <= queries) & held[:, None, :]\n",
            ),
        ),
        effect="a pad has no key to see, its softmax is NaN, and the next layer's 0 * NaN reaches the row's tokens",
        shows="a padded row",
        reports=(
            "unsloth-leftpad-row-nan",
            "mlx-sdpa-fully-masked-nan",
        ),
        shape="padded-batch",
    ),
    Mutant(
        id="positions-count-pads",
        area="padding",
        edits=(
            Edit(
                PADDED,
                "    positions: Integers = np.maximum(np.cumsum(held, axis=1) - 1, 0)\n",
                "    positions: Integers = np.tile(np.arange(held.shape[1]), (len(held), 1))\n",
            ),
        ),
        effect="positions of a padded row are counted from its first pad",
        shows="a padded row under a RoPE type that depends on the length: others see differences of positions only",
        reports=("nnsight-leftpad-no-positions",),
        shape="padded-batch",
    ),
    Mutant(
        id="prefill-positions-count-pads",
        area="padding",
        edits=(
            Edit(
                PADDED,
                "    tables = rotation(model.config, position_ids(held)[:, old:new])\n",
                "    tables = rotation(model.config, position_ids(held | (T > 1))[:, old:new])\n",
            ),
        ),
        effect="positions come from the mask in decoding, but from the tensor's shape in the prefill",
        shows="a padded row and a decoded token",
        reports=("transformerlens-leftpad-positions",),
        shape="padded-batch",
    ),
    Mutant(
        id="pads-at-the-wrong-end",
        area="padding",
        edits=(
            Edit(
                PADDED,
                "    visible: Booleans = (slots <= queries) & (held[:, None, :] | (slots == queries))\n",
                "    pads = held.argmax(axis=1)[:, None, None]\n"
                "    is_key = (slots >= old + num_new - pads) | (pads == 0)\n"
                "    visible: Booleans = (slots <= queries) & (is_key | (slots == queries))\n",
            ),
        ),
        effect="the mask of a left-padded row keeps as many keys at its end as it has pads",
        shows="a padded row",
        reports=("omlx-tq-leftpad-mask",),
        shape="padded-batch",
    ),
    Mutant(
        id="pads-seen-in-decoding",
        area="padding",
        edits=(
            Edit(
                PADDED,
                "(held[:, None, :] | (slots == queries))",
                "(held[:, None, :] | (slots == queries) | (num_new == 1))",
            ),
        ),
        effect="pads are hidden in the prefill only",
        shows="a padded row and a decoded token",
        reports=("unsloth-decode-mask-forgets-pads",),
        shape="padded-batch",
    ),
)
