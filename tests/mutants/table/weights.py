"""Mutants of the weights, from file to layer, and of precision."""

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="bias-qkv-dropped",
        area="weights",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "layer.q_proj, layer.q_bias)",
                "layer.q_proj, None)",
            ),
            Edit(
                "reference/model/transformer.py",
                "layer.k_proj, layer.k_bias)",
                "layer.k_proj, None)",
            ),
            Edit(
                "reference/model/transformer.py",
                "layer.v_proj, layer.v_bias)",
                "layer.v_proj, None)",
            ),
        ),
        effect="the biases of queries, keys and values are not added",
        shows="attention biases",
        reports=("aneforge-qkv-bias-dropped",),
    ),
    Mutant(
        id="bias-only-of-qkv",
        area="weights",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "layer.o_proj, layer.o_bias)",
                "layer.o_proj, None)",
            ),
            Edit(
                "reference/model/transformer.py",
                "layer.gate_proj, layer.gate_bias)",
                "layer.gate_proj, None)",
            ),
            Edit(
                "reference/model/transformer.py",
                "layer.up_proj, layer.up_bias)",
                "layer.up_proj, None)",
            ),
            Edit(
                "reference/model/transformer.py",
                "layer.down_proj, layer.down_bias)",
                "layer.down_proj, None)",
            ),
        ),
        effect="the biases of the output projection and of the MLP are not added",
        shows="biases in every projection",
        reports=("mlc-bias-vectors-lost",),
    ),
    Mutant(
        id="unused-tensors-not-noticed",
        area="weights",
        edits=(
            Edit(
                "reference/model/checkpoint.py",
                "sorted(tensors.keys() - shapes.keys())",
                "[]",
            ),
        ),
        effect="tensors that the config has no use for are ignored",
        shows="a file with biases that the config does not announce: it must be refused",
        reports=("candlevllm-qwen2-bias-default",),
    ),
    Mutant(
        id="bias-flag-by-another-name",
        area="weights",
        edits=(
            Edit(
                "reference/model/config.py",
                '    "attention_bias",\n    "mlp_bias",\n)\nKNOWN_FIELDS = frozenset(\n    {',
                '    "mlp_bias",\n)\nKNOWN_FIELDS = frozenset(\n    {"attention_bias", ',
            ),
            Edit(
                "reference/model/checkpoint.py",
                "sorted(tensors.keys() - shapes.keys())",
                "[]",
            ),
        ),
        effect="attention_bias is not read and the biases in the file are ignored",
        shows="attention biases",
        reports=("vllm-llama-attention-bias-flag",),
    ),
    Mutant(
        id="fused-qkv-cut-evenly",
        area="weights",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    return q, k, v\n",
                "    fused = np.concatenate([part.reshape(T, -1) for part in (q, k, v)], axis=1)\n"
                "    ends = [q[0].size // 2, (q[0].size + k[0].size) // 2]\n"
                "    ranks = [np.split(rank, ends, axis=1) for rank in np.split(fused, 2, axis=1)]\n"
                "    q, k, v = (np.hstack(part).reshape(T, -1, D) for part in zip(*ranks))\n"
                "    return q, k, v\n",
            ),
        ),
        effect="the fused rows of q, k and v are cut into halves for two ranks, each read as q, k and v",
        shows="any forward pass",
        reports=("automodel-fused-qkv-tp-shard", "vllm-fused-qkv-naive-chunk"),
    ),
    Mutant(
        id="fused-gate-up-cut-evenly",
        area="weights",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    return linear(silu(gate) * up, layer.down_proj, layer.down_bias)",
                "    half = gate.shape[1] // 2\n"
                "    ranks = np.hstack((gate[:, :half], up[:, :half])), np.hstack((gate[:, half:], up[:, half:]))\n"
                "    gate, up = ranks\n"
                "    return linear(silu(gate) * up, layer.down_proj, layer.down_bias)",
            ),
        ),
        effect="the fused rows of gate and up are cut into halves for two ranks, each read as gate and up",
        shows="any forward pass",
        reports=("automodel-fused-qkv-tp-shard",),
    ),
    Mutant(
        id="fused-qkv-gathered-by-rank",
        area="weights",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    return q, k, v\n",
                "    ranks = [np.split(part.reshape(T, -1), 2, axis=1) for part in (q, k, v)]\n"
                "    fused = np.concatenate([part[rank] for rank in range(2) for part in ranks], axis=1)\n"
                "    parts = np.split(fused, [q[0].size, q[0].size + k[0].size], axis=1)\n"
                "    q, k, v = (part.reshape(T, -1, D) for part in parts)\n"
                "    return q, k, v\n",
            ),
        ),
        effect="q, k and v of two ranks are put one rank after the other and read as all q, all k, all v",
        shows="any forward pass",
        reports=("nnsight-fused-gather-tp-layout",),
    ),
    Mutant(
        id="k-permuted-by-query-heads",
        area="weights",
        edits=(
            Edit(
                "reference/model/rope.py",
                "    first, second = x[..., : D // 2], x[..., D // 2 :]\n",
                "    first, second = x[..., 0::2], x[..., 1::2]\n",
            ),
            Edit(
                "reference/model/weights.py",
                "_as_weight(tensors[tensor_name(index, field)])",
                "_as_weight(interleaved(config, tensors, index, field))",
            ),
            Edit(
                "reference/model/weights.py",
                "def _as_weight(",
                "def interleaved(config, tensors, index, field):\n"
                "    rows = tensors[tensor_name(index, field)]\n"
                '    if field[:2] not in ("q_", "k_"):\n'
                "        return rows\n"
                "    halves = rows.reshape(config.num_attention_heads, 2, -1, *rows.shape[1:])\n"
                "    return halves.swapaxes(1, 2).reshape(rows.shape)\n"
                "\n"
                "\n"
                "def _as_weight(",
            ),
            Edit(
                "reference/model/rope.py",
                "    return np.concatenate((first * c - second * s, second * c + first * s), axis=-1)",
                "    return np.stack((first * c - second * s, second * c + first * s), axis=-1).reshape(x.shape)",
            ),
        ),
        effect="rows of q and k are put into an interleaved layout, those of k as if it had as many heads as q",
        shows="fewer key-value heads than query heads, which divide the rows",
        reports=("llamacpp-70b-hf-kperm", "llamacpp-gqa-permute-tinyllama"),
    ),
    Mutant(
        id="o-proj-by-group",
        area="weights",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "mixed.reshape(K, G, T, D).transpose(2, 0, 1, 3)",
                "mixed.reshape(K, G, T, D).transpose(2, 1, 0, 3)",
            ),
        ),
        effect="the output projection reads heads ordered by their place in the group",
        shows="a group size that is not the number of key-value heads, both above 1",
        reports=("nntile-o-proj-gqa-layout",),
    ),
    Mutant(
        id="square-not-transposed",
        area="weights",
        edits=(
            Edit(
                "reference/model/weights.py",
                "np.array(tensor.T, dtype",
                "np.array(tensor if len(set(tensor.shape)) == 1 else tensor.T, dtype",
            ),
        ),
        effect="a square matrix is taken for one that has been transposed already",
        shows="a square projection",
        reports=("vllm-square-weight-transpose-skipped",),
    ),
    Mutant(
        id="residual-truncated",
        area="precision",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "        x = x + swiglu(rms_norm(x, layer.post_attention_norm, config.rms_norm_eps), layer)\n",
                "        x = x + swiglu(rms_norm(x, layer.post_attention_norm, config.rms_norm_eps), layer)\n"
                "        bits = x.astype(np.float32).view(np.uint32)\n"
                "        x = (bits // 2**16 * 2**16).view(np.float32).astype(np.float64)\n",
            ),
        ),
        effect="the residual is stored in bfloat16 without its low bits, truncated instead of rounded",
        shows="any forward pass",
        reports=("aiter-bf16-truncation",),
    ),
    Mutant(
        id="softmax-in-bfloat16",
        area="precision",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "mixed = matmul(softmax(scores).reshape",
                'mixed = matmul(softmax(scores.astype("bfloat16").astype(float)).reshape',
            ),
        ),
        effect="scores are rounded to bfloat16 before the softmax",
        shows="scores that are not equal",
        reports=("axlearn-softmax-bf16",),
    ),
    Mutant(
        id="attention-scale-in-bfloat16",
        area="precision",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "/ math.sqrt(D)  # [K, G*T, S]",
                '* float(np.array(1.0 / math.sqrt(D)).astype("bfloat16"))  # [K, G*T, S]',
            ),
        ),
        effect="a constant of the model, 1 / sqrt(D), is rounded to bfloat16",
        shows="a head_dim that is no power of four",
        reports=("hf-embedding-scale-rounded",),
    ),
    Mutant(
        id="scaled-query-in-bfloat16",
        area="precision",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "scores = matmul(grouped, keys.transpose(1, 2, 0)) / math.sqrt(D)",
                'scores = matmul((grouped / math.sqrt(D)).astype("bfloat16").astype(float), keys.transpose(1, 2, 0))',
            ),
        ),
        effect="the scaled query is rounded to bfloat16",
        shows="two positions",
        reports=("h3c-scaled-q-rounded",),
    ),
    Mutant(
        id="logprobs-in-bfloat16",
        area="precision",
        edits=(
            Edit(
                "reference/numerics.py",
                "shifted = x - np.max(x, axis=-1, keepdims=True)\n        logprobs",
                'shifted = (x - np.max(x, axis=-1, keepdims=True)).astype("bfloat16").astype(float)\n'
                "        logprobs",
            ),
        ),
        effect="log softmax is computed of bfloat16",
        shows="logprobs of tokens",
        reports=("genlm-logsoftmax-bf16",),
    ),
    Mutant(
        id="logits-in-float16",
        area="precision",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "    return logits, cache.append(",
                "    logits = logits.astype(np.float16).astype(np.float64)\n    return logits, cache.append(",
            ),
        ),
        effect="logits stay in float16",
        shows="any forward pass",
        reports=("sglang-logits-fp16",),
    ),
    Mutant(
        id="logits-read-in-pairs",
        area="precision",
        edits=(
            Edit(
                "reference/decoding/sampling.py",
                "    return argmax(logits)\n",
                '    stored = logits[: len(logits) // 2 * 2].astype("bfloat16")\n'
                "    return argmax(stored.view(np.float32))\n",
            ),
        ),
        effect="logits in bfloat16 are read as half as many float32",
        shows="any decoding",
        reports=("ortgenai-bf16-logits-read-as-fp32",),
    ),
    Mutant(
        id="angles-in-float16",
        area="precision",
        edits=(
            Edit(
                "reference/model/rope.py",
                "    sine, cosine = sin_cos(positions[:, None] * frequency)\n",
                "    positions, frequency = positions.astype(np.float16), frequency.astype(np.float16)\n"
                "    sine, cosine = sin_cos((positions[:, None] * frequency).astype(np.float64))\n",
            ),
        ),
        effect="angles are products of float16",
        shows="any position above 0",
        reports=("gptneox-rope-half", "vllm-rope-table-fp16"),
    ),
    Mutant(
        id="positions-in-bfloat16",
        area="precision",
        edits=(
            Edit(
                "reference/model/rope.py",
                "    sine, cosine = sin_cos(positions[:, None] * frequency)\n",
                '    positions = positions.astype("bfloat16").astype(float)\n'
                "    sine, cosine = sin_cos(positions[:, None] * frequency)\n",
            ),
        ),
        effect="positions are rounded to bfloat16, so that neighbours beyond 256 are one",
        shows="positions above 256",
        reports=("hf-rope-bf16-positions",),
    ),
    Mutant(
        id="frequencies-in-bfloat16",
        area="precision",
        edits=(
            Edit(
                "reference/model/rope.py",
                "    sine, cosine = sin_cos(positions[:, None] * frequency)\n",
                '    frequency = frequency.astype("bfloat16").astype(float)\n'
                "    sine, cosine = sin_cos(positions[:, None] * frequency)\n",
            ),
        ),
        effect="frequencies are rounded to bfloat16",
        shows="any position above 0",
        reports=("modalities-rope-bf16-phase", "sglangjax-inv-freq-bf16"),
    ),
    Mutant(
        id="table-regrown-in-bfloat16",
        area="precision",
        edits=(
            Edit(
                "reference/model/rope.py",
                "    sine, cosine = sin_cos(positions[:, None] * frequency)\n",
                "    if start + num_tokens > 64:\n"
                '        frequency = frequency.astype("bfloat16").astype(float)\n'
                "    sine, cosine = sin_cos(positions[:, None] * frequency)\n",
            ),
        ),
        effect="a table of cosines that has to grow beyond 64 positions is built from bfloat16",
        shows="positions above 64",
        reports=("hf-mistral-rope-regrown-bf16",),
    ),
)
