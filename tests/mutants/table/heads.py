"""Mutants of the embedding, the output head and grouped heads."""

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
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
        reports=("jaxjs-gqa-tile", "onnx-gqa-tile"),
    ),
    Mutant(
        id="head-always-tied",
        area="embedding",
        edits=(
            Edit(
                "reference/model/weights.py",
                "head = tensors[EMBEDDING if config.tie_word_embeddings else LM_HEAD]",
                "head = tensors[EMBEDDING]",
            ),
        ),
        effect="the head is the embedding where the config does not tie them",
        shows="a head that differs from the embedding",
        reports=("candle-qwen3-tie-inverted", "deepspeed-head-always-tied", "pegainfer-untied-head-reuses-embed"),
    ),
    Mutant(
        id="tied-head-not-filled",
        area="embedding",
        edits=(
            Edit(
                "reference/model/weights.py",
                "head = tensors[EMBEDDING if config.tie_word_embeddings else LM_HEAD]",
                "shape = tensors[EMBEDDING].shape\n"
                "    head = tensors.get(LM_HEAD, np.sin(np.arange(shape[0] * shape[1])).reshape(shape))",
            ),
        ),
        effect="the head of a tied model keeps the numbers it was initialised with",
        shows="a tied model",
        reports=("hf-mistral3-untied-random-head", "vllm-nemotron-parse-lm-head-random"),
    ),
    Mutant(
        id="missing-head-not-noticed",
        area="embedding",
        edits=(
            Edit(
                "reference/model/checkpoint.py",
                "sorted(shapes.keys() - tensors.keys())",
                "sorted(shapes.keys() - tensors.keys() - {LM_HEAD})",
            ),
            Edit(
                "reference/model/checkpoint.py",
                "    for name, shape in shapes.items():\n        if tensors",
                "    tensors.setdefault(LM_HEAD, np.zeros(tensors[EMBEDDING].shape))\n"
                "    for name, shape in shapes.items():\n"
                "        if tensors",
            ),
        ),
        effect="an untied model without a head keeps the zeros it was initialised with",
        shows="an untied model without a head: it must be refused",
        reports=("hf-mistral3-untied-random-head", "vllm-tied-config-discards-real-head"),
    ),
    Mutant(
        id="differing-head-dropped",
        area="embedding",
        edits=(
            Edit(
                "reference/model/checkpoint.py",
                "if not np.array_equal(head, tensors[EMBEDDING]):",
                "if head.shape != tensors[EMBEDDING].shape:",
            ),
        ),
        effect="a tied config drops the head in the file without a look at it",
        shows="a tied config with a head of its own: it must be refused",
        reports=("vllm-tied-config-discards-real-head",),
    ),
    Mutant(
        id="padded-vocabulary-wins",
        area="embedding",
        edits=(
            Edit(
                "reference/decoding/sampling.py",
                "    return argmax(logits)\n",
                "    return argmax(np.pad(logits, (0, -len(logits) % 64)))\n",
            ),
        ),
        effect="the head is padded to 64 columns and a padded logit of 0 may be the largest",
        shows="a step whose logits are all below zero",
        reports=("mirage-zero-padded-vocab-wins",),
    ),
    Mutant(
        id="padded-vocabulary-counted",
        area="embedding",
        edits=(
            Edit(
                "reference/decoding/sampling.py",
                "return softmax(logits / temperature)",
                "unused = np.zeros((*logits.shape[:-1], -logits.shape[-1] % 64))\n"
                "    return softmax(np.concatenate((logits, unused), axis=-1) / temperature)",
            ),
            Edit(
                "reference/numerics.py",
                "logprobs: Array = shifted - log(sum_last(exp(shifted)))[..., None]",
                "padded = exp(-np.max(x, axis=-1)) * (-x.shape[-1] % 64)\n"
                "        logprobs: Array = shifted - log(sum_last(exp(shifted)) + padded)[..., None]",
            ),
        ),
        effect="the padded columns of the head, logits of 0, are part of the softmax",
        shows="logprobs, or a coin near the end",
        reports=("ttmetal-padded-vocab-not-masked",),
    ),
    Mutant(
        id="logits-capped",
        area="embedding",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "weights.lm_head)  # [T, V]",
                "weights.lm_head)  # [T, V]\n    logits = 30.0 * np.tanh(logits / 30.0)",
            ),
        ),
        effect="logits are capped at 30, as in Gemma 2",
        shows="large logits",
    ),
    Mutant(
        id="gqa-tile-crosses-group",
        area="gqa",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    S, K, _ = keys.shape\n",
                "    S, K, _ = keys.shape\n"
                "    heads = np.arange(H) // 2 * 2 // (H // K)\n"
                "    keys, values, K = keys[:, heads], values[:, heads], H\n",
            ),
        ),
        effect="two query heads at a time read the key-value head of the first",
        shows="groups of an odd size",
        reports=("freetoken-gqa-tile-crosses-group",),
    ),
    Mutant(
        id="gqa-divided-by-kv-heads",
        area="gqa",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    S, K, _ = keys.shape\n",
                "    S, K, _ = keys.shape\n"
                "    heads = np.minimum(np.arange(H) // K, K - 1)\n"
                "    keys, values, K = keys[:, heads], values[:, heads], H\n",
            ),
        ),
        effect="query head h reads key-value head h / K instead of h / G",
        shows="a group size that is not the number of key-value heads",
        reports=("onnxim-kv-head-idx-divisor",),
    ),
    Mutant(
        id="gqa-past-by-modulo",
        area="gqa",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    S, K, _ = keys.shape\n",
                "    S, K, _ = keys.shape\n"
                "    cached, heads = S - T, np.arange(H)\n"
                "    keys = np.concatenate((keys[:cached, heads % K], keys[cached:, heads * K // H]))\n"
                "    values = np.concatenate((values[:cached, heads % K], values[cached:, heads * K // H]))\n"
                "    K = H\n",
            ),
        ),
        effect="cached entries of key-value head h mod K are read by query head h, new ones rightly",
        shows="grouped heads, decoding",
        reports=("sglang-replicated-kv-head-modulo",),
    ),
    Mutant(
        id="gqa-cache-by-query-heads",
        area="gqa",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    S, K, _ = keys.shape\n",
                "    S, K, _ = keys.shape\n"
                "    unused = ((0, 0), (0, H - K), (0, 0))\n"
                "    keys, values, K = np.pad(keys, unused), np.pad(values, unused), H\n",
            ),
        ),
        effect="the cache has a head for each query head, of which only the first K are written",
        shows="grouped heads",
        reports=("tinygrad-kvcache-n-kv-heads",),
    ),
    Mutant(
        id="gqa-fused-head-size",
        area="gqa",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    return q, k, v\n",
                "    fused = np.concatenate([part.reshape(T, -1) for part in (q, k, v)], axis=1)\n"
                "    H, size = q.shape[1], fused.shape[1] // q.shape[1]\n"
                "    q = np.stack([fused[:, h * size : h * size + D] for h in range(H)], axis=1)\n"
                "    return q, k, v\n",
            ),
        ),
        effect="the head size of a fused projection is its whole width over the query heads",
        shows="two query heads",
        reports=("ttmetal-fused-head-size",),
    ),
    Mutant(
        id="gqa-scale-by-quotient",
        area="gqa",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    return q, k, v\n",
                "    quotient = config.hidden_size / config.num_attention_heads\n"
                "    q = q * math.sqrt(D / quotient)\n"
                "    return q, k, v\n",
            ),
        ),
        effect="scores are divided by the root of hidden / heads",
        shows="a head_dim that is not hidden / heads",
        reports=("vllm-head-dim-from-quotient",),
    ),
    Mutant(
        id="gqa-cache-overlaps",
        area="gqa",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "cache.append(np.stack(keys), np.stack(values))",
                "cache.append(overlapping(np.stack(keys), config), overlapping(np.stack(values), config))",
            ),
            Edit(
                "reference/model/transformer.py",
                "def rms_norm(",
                "def overlapping(entries: Array, config: ModelConfig) -> Array:\n"
                "    stride = config.hidden_size // config.num_attention_heads\n"
                "    written = entries.copy()\n"
                "    for head in range(1, config.num_key_value_heads):\n"
                "        end = written[..., head - 1, stride:].shape[-1]\n"
                "        written[..., head - 1, stride:] = entries[..., head, :end]\n"
                "    return written\n"
                "\n"
                "\n"
                "def rms_norm(",
            ),
        ),
        effect="cached heads lie hidden / heads apart, so each overwrites the end of the one before",
        shows="a head_dim above hidden / heads, decoding",
        reports=("vllm-head-dim-from-quotient",),
    ),
    Mutant(
        id="gqa-fork-copies-one-head",
        area="gqa",
        edits=(
            Edit(
                "reference/model/cache.py",
                "        return self\n",
                "        is_first = (np.arange(self.keys.shape[2]) == 0)[:, None]\n"
                "        return KVCache(self.keys * is_first, self.values * is_first)\n",
            ),
        ),
        effect="a copy of the cache for another session holds its first head only",
        shows="several key-value heads, a fork",
        reports=("vllm-mooncake-replicated-gather",),
    ),
)
