"""Mutants of RoPE: types, frequencies, parameters and the rotation."""

from tests.mutants.mutant import Edit, Mutant

ROPE = "reference/model/rope.py"
PARAMETERS = "reference/model/rope_parameters.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="rope-interleaved",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "first, second = x[..., : D // 2], x[..., D // 2 :]",
                "first, second = x[..., 0::2], x[..., 1::2]",
            ),
        ),
        effect="pairs (2i, 2i + 1) are rotated instead of (i, i + D/2)",
        shows="two positions",
        reports=("shainet-rope-interleaved",),
    ),
    Mutant(
        id="rope-backwards",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "np.concatenate((first * c - second * s, second * c + first * s), axis=-1)",
                "np.concatenate((first * c + second * s, second * c - first * s), axis=-1)",
            ),
        ),
        effect="the rotated half has the sign of the other: (second, -first) instead of (-second, first)",
        shows="two positions, peaked attention",
        reports=("kornia-smolvlm2-weak-goldens",),
    ),
    Mutant(
        id="rope-overwrites-its-input",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "return np.concatenate((first * c - second * s, second * c + first * s), axis=-1)",
                "first = first * c - second * s\n    return np.concatenate((first, second * c + first * s), axis=-1)",
            ),
        ),
        effect="the rotation is done in place, and the second half reads the first one after it has changed",
        shows="any position above 0",
        reports=("mlx-rope-donated-stride",),
    ),
    Mutant(
        id="rope-heads-as-time",
        area="rope",
        edits=(
            Edit(
                "reference/model/transformer.py",
                "q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)",
                "q, k = (\n"
                "            np.concatenate(\n"
                "                [rotate(x[:, [h]], *rotation(config, len(cache) + h, len(tokens)))\n"
                "                 for h in range(x.shape[1])], axis=1)\n"
                "            for x in (q, k)\n"
                "        )",
            ),
        ),
        effect="head h is rotated as if it stood h positions later",
        shows="fewer KV heads than query heads: otherwise query and key shift alike",
        reports=("emlx-rope-heads-as-time",),
    ),
    Mutant(
        id="rope-exponent-over-half",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "return power(theta, -(2.0 * np.arange(head_dim // 2)) / head_dim)",
                "return power(theta, -(2.0 * np.arange(head_dim // 2)) / (head_dim // 2))",
            ),
        ),
        effect="frequencies fall twice as fast: the exponent is over half the head",
        shows="two positions",
        reports=("kornia-smolvlm2-weak-goldens",),
    ),
    Mutant(
        id="rope-theta-ignored",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "return power(theta, -(2.0 * np.arange(head_dim // 2)) / head_dim)",
                "return power(10000.0, -(2.0 * np.arange(head_dim // 2)) / head_dim)",
            ),
        ),
        effect="theta is always 10000",
        shows="a theta far from 10000",
        reports=(
            "airllm-rope-theta-dropped",
            "gemmacpp-rope-theta-hardcoded",
            "gptfast-llama3-rope-base-name",
            "trtllm-qwen-rotary-base-not-passed",
        ),
    ),
    Mutant(
        id="rope-theta-from-context",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "return base_frequencies(rope.rope_theta, size), 1.0",
                "theta = 10000.0 if config.max_position_embeddings <= 2048 else 1e6\n"
                "            return base_frequencies(theta, size), 1.0",
            ),
        ),
        effect="without scaling, theta is guessed from the length of the context instead of read",
        shows="a theta that the context does not suggest",
        reports=("koboldcpp-codellama-base",),
    ),
    Mutant(
        id="rope-theta-top-level-only",
        area="rope",
        edits=(
            Edit(
                PARAMETERS,
                'theta = given.pop("rope_theta", present.get("rope_theta", 10000.0))',
                'given.pop("rope_theta", None)\n    theta = present.get("rope_theta", 10000.0)',
            ),
        ),
        effect="rope_theta is read at the top of the config, where transformers 5 does not write it",
        shows="a config with rope_parameters only",
        reports=("slime-rope-theta-nested",),
    ),
    Mutant(
        id="rope-scaling-ignored",
        area="rope",
        edits=(
            Edit(
                PARAMETERS,
                "return RopeParameters(rope_type=rope_type, rope_theta=theta, **{**given, **lists})",
                "return RopeParameters(rope_theta=theta)",
            ),
        ),
        effect="theta is read and everything else about RoPE is not",
        shows="any RoPE type but the default",
        reports=("aneforge-llama3-scaling-ignored",),
    ),
    Mutant(
        id="rope-type-by-old-key-only",
        area="rope",
        edits=(
            Edit(
                PARAMETERS,
                'old_name = given.pop("type", given.get("rope_type", "default"))\n'
                '    rope_type: Any = given.pop("rope_type", old_name)',
                'old_name = given.pop("type", "default")\n'
                '    given.pop("rope_type", None)\n'
                "    rope_type: Any = old_name\n"
                '    given = given if rope_type != "default" else {}',
            ),
        ),
        effect="the type is looked up as `type`; a config that says `rope_type` has no scaling",
        shows="a config that says rope_type",
        reports=("mlxcel-llama3-scaling-parsed-unused",),
    ),
    Mutant(
        id="rope-type-by-new-key-only",
        area="rope",
        edits=(
            Edit(
                PARAMETERS,
                'old_name = given.pop("type", given.get("rope_type", "default"))',
                'old_name = given.get("rope_type", "default")\n    given = given if "type" not in given else {}',
            ),
        ),
        effect="the type is looked up as `rope_type`; a config that says `type` has no scaling",
        shows="a config that says type",
        reports=("mlxcel-llama3-scaling-parsed-unused",),
    ),
    Mutant(
        id="unknown-rope-type-is-none",
        area="rope",
        edits=(
            Edit(
                PARAMETERS,
                'refuse_field(f"{field}.rope_type", rope_type, f"one of {\', \'.join(get_args(RopeType))}")',
                'given, rope_type = {}, "default"',
            ),
        ),
        effect="a RoPE type that the engine does not know is taken for none, without a word",
        shows="a config that must be refused",
        reports=("trtmc-llama3-rope-unscaled",),
    ),
    Mutant(
        id="linear-scaling-ignored",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "return base_frequencies(rope.rope_theta, size) / _given(rope.factor), 1.0",
                "return base_frequencies(rope.rope_theta, size), 1.0",
            ),
        ),
        effect="linear scaling is lost",
        shows="linear scaling",
        reports=("trtllm-linear-scaling-missing",),
    ),
    Mutant(
        id="dynamic-from-head-count",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "return dynamic(rope, size, config.max_position_embeddings, num_tokens), 1.0",
                "return dynamic(rope, size, config.max_position_embeddings, config.num_attention_heads), 1.0",
            ),
        ),
        effect="the number of heads is taken for the session's length, so dynamic scaling never begins",
        shows="a dynamic model beyond its original context",
        reports=("mlxlm-dynamic-ntk-seq-axis",),
    ),
    Mutant(
        id="dynamic-for-longest",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "    length = max(num_tokens, trained)\n",
                "    length = trained * _given(rope.factor)\n",
            ),
        ),
        effect="theta is that of the longest session from the first token on",
        shows="a dynamic model within its original context",
        reports=("vllm-dynamic-ntk-static",),
    ),
    Mutant(
        id="dynamic-keys-follow",
        area="rope",
        edits=(
            Edit(
                "reference/decoding/generate.py",
                "logits, cache = forward(model, output[-1:], cache)",
                "logits, _ = forward(model, [*prompt, *output], cache.truncate(0))",
            ),
        ),
        effect="cached keys take the angles of the session's present length; in transformers they keep their own",
        shows="a dynamic model that decodes beyond its original context",
        reports=("hf-dynamic-ntk-mixed-bases-in-cache",),
    ),
    Mutant(
        id="yarn-attention-factor-ignored",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "    if rope.attention_factor is not None:\n"
                "        return rope.attention_factor\n"
                "    if rope.mscale is not None",
                "    if rope.mscale is not None",
            ),
        ),
        effect="a given attention_factor is replaced by 0.1 ln(factor) + 1",
        shows="a yarn config with an attention_factor",
        reports=("mlxlm-yarn-attention-factor-ignored",),
    ),
    Mutant(
        id="yarn-mscale-alone",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "return _mscale(rope, rope.mscale) / _mscale(rope, rope.mscale_all_dim)",
                "return _mscale(rope, rope.mscale) / _mscale(rope, rope.mscale)",
            ),
        ),
        effect="mscale is used where mscale_all_dim is meant",
        shows="a yarn config whose mscale and mscale_all_dim differ",
        reports=("megatron-yarn-mscale-vs-all-dim",),
    ),
    Mutant(
        id="llama3-scaling-ignored",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "return np.where(wavelength < trained / high, kept, stretched)",
                "return np.where(wavelength > 0.0, kept, stretched)",
            ),
        ),
        effect="llama3 scaling is read and not applied",
        shows="wavelengths beyond the original context",
        reports=(
            "ctranslate2-llama3-scaling",
            "hf-llama31-inv-freq-result-discarded",
            "llamacpp-rope-factors-missing",
            "mlxcel-llama3-scaling-parsed-unused",
            "tinyvllm-llama3-rope-scaling-missing",
            "trtmc-llama3-rope-unscaled",
        ),
    ),
    Mutant(
        id="llama3-multiplies",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "stretched = np.where(wavelength > trained / low, kept / _given(rope.factor), blended)",
                "stretched = np.where(wavelength > trained / low, kept * _given(rope.factor), blended)",
            ),
        ),
        effect="slow pairs are multiplied by the factor that should divide them",
        shows="wavelengths beyond the original context",
        reports=("llamacpp-rope-factors-missing",),
    ),
    Mutant(
        id="llama3-ramp-in-wavelength",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "smooth = (trained / wavelength - low) / (high - low)",
                "smooth = (trained / low - wavelength) / (trained / low - trained / high)",
            ),
        ),
        effect="between the bands llama3 interpolates in the wavelength instead of its inverse",
        shows="pairs in the middle band",
        reports=("mlxswift-llama3-rope-wrong",),
    ),
    Mutant(
        id="llama3-factor-eight",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "    low, high = _given(rope.low_freq_factor), _given(rope.high_freq_factor)\n"
                "    smooth = (trained / wavelength - low) / (high - low)\n"
                "    blended = (1.0 - smooth) * kept / _given(rope.factor) + smooth * kept\n"
                "    stretched = np.where(wavelength > trained / low, kept / _given(rope.factor), blended)",
                "    low, high = _given(rope.low_freq_factor), _given(rope.high_freq_factor)\n"
                "    smooth = (trained / wavelength - low) / (high - low)\n"
                "    blended = (1.0 - smooth) * kept / 8.0 + smooth * kept\n"
                "    stretched = np.where(wavelength > trained / low, kept / 8.0, blended)",
            ),
        ),
        effect="the llama3 factor is always 8, that of Llama 3.1",
        shows="a llama3 factor other than 8",
        reports=("transformerlens-llama3-factor",),
    ),
    Mutant(
        id="prefill-table-unscaled",
        area="rope",
        edits=(
            Edit(
                ROPE,
                "    positions = np.arange(start, start + num_tokens, dtype=np.float64)\n",
                "    if num_tokens > 1:\n"
                "        frequency = base_frequencies(config.rope.rope_theta, config.head_dim)\n"
                "    positions = np.arange(start, start + num_tokens, dtype=np.float64)\n",
            ),
        ),
        effect="prefill has the unscaled table of angles, decode the scaled one",
        shows="any RoPE type but the default",
        reports=("mlirair-prefill-decode-table-mismatch",),
    ),
)
