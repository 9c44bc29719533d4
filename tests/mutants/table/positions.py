"""Mutants of positions: which angle a token of a chunk, a decode step or a batch is given."""

from tests.mutants.mutant import Edit, Mutant

FORWARD = "reference/model/transformer.py"
ROPE = "reference/model/rope.py"
CHUNKED = "tests/mutants/shapes/chunked_prefill.py"
ROTATES = "q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="rope-positions-stretched",
        area="positions",
        edits=(
            Edit(
                ROPE,
                "positions = np.arange(start, start + num_tokens, dtype=np.float64)",
                "positions = np.arange(start, start + num_tokens, dtype=np.float64) * 1.01",
            ),
        ),
        effect="positions are stretched by a hundredth",
        shows="any position above 0",
    ),
    Mutant(
        id="rope-positions-doubled",
        area="positions",
        edits=(
            Edit(
                ROPE,
                "    sine, cosine = sin_cos(positions[:, None] * frequency)\n",
                '    scale = 1.0 if config.rope.rope_type == "linear" else 2.0\n'
                "    sine, cosine = sin_cos(positions[:, None] * scale * frequency)\n",
            ),
        ),
        effect="a scale for positions that linear RoPE needs defaults to 2 elsewhere",
        shows="any position above 0",
        reports=("mlxlm-internlm-position-scale-two", "mlxcel-golden-captured-from-buggy-engine"),
    ),
    Mutant(
        id="rope-chunk-from-zero",
        area="positions",
        edits=(
            Edit(
                FORWARD,
                "cosine, sine = rotation(config, len(cache), len(tokens))",
                "cosine, sine = rotation(config, 0, len(tokens))",
            ),
        ),
        effect="every chunk is rotated as if it began the session",
        shows="a second chunk or a decoded token",
        reports=("mlxvlm-decode-position-zero",),
    ),
    Mutant(
        id="prefill-from-minus-one",
        area="positions",
        edits=(
            Edit(
                FORWARD,
                "cosine, sine = rotation(config, len(cache), len(tokens))",
                "cosine, sine = rotation(config, len(cache) or -1, len(tokens))",
            ),
        ),
        effect="a pass without a past is rotated from -1, the mark of 'no step yet', and decoding goes on rightly",
        shows="tokens after the first pass: alone, it is only shifted",
        reports=("ctranslate2-forward-batch-step-minus-one",),
    ),
    Mutant(
        id="score-goes-on",
        area="positions",
        edits=(
            Edit(
                "reference/engine.py",
                "logits, _ = forward(self.model, tokens, empty_cache(self.model.config))",
                "cache = self._sessions.get(-1, empty_cache(self.model.config))\n"
                "        logits, self._sessions[-1] = forward(self.model, tokens, cache)",
            ),
        ),
        effect="scoring takes itself for a decode step and goes on with the cache of the prompt scored before",
        shows="a checkpoint that scores two prompts",
        reports=("ctranslate2-forward-batch-step-minus-one",),
    ),
    Mutant(
        id="upper-layers-one-pass-ahead",
        area="positions",
        edits=(
            Edit(
                FORWARD,
                ROTATES,
                ROTATES + "\n        cosine, sine = rotation(config, len(cache) + len(tokens), len(tokens))",
            ),
        ),
        effect="the first layer advances the session's length, and the layers above take it for the start",
        shows="two layers, and passes of different lengths",
        reports=("fla-seen-tokens-early",),
    ),
    Mutant(
        id="query-after-update",
        area="positions",
        edits=(
            Edit(
                FORWARD,
                ROTATES,
                "k = rotate(k, cosine, sine)\n"
                "        q = rotate(q, *rotation(config, len(cache) + len(tokens), len(tokens)))",
            ),
        ),
        effect="queries are rotated by the offset that the cache has after it took the keys",
        shows="two positions",
        reports=("mlxlm-offset-alias-mutated",),
    ),
    Mutant(
        id="query-from-zero",
        area="positions",
        edits=(
            Edit(
                FORWARD,
                ROTATES,
                "q, k = rotate(q, *rotation(config, 0, len(tokens))), rotate(k, cosine, sine)",
            ),
        ),
        effect="the queries of every pass are rotated from position 0, the keys rightly",
        shows="a second chunk or a decoded token",
        reports=("moeut-rope-offset-before-concat",),
    ),
    Mutant(
        id="query-from-block-length",
        area="positions",
        edits=(
            Edit(
                FORWARD,
                ROTATES,
                "at_end = -(-(len(cache) + 1) // 16) * 16 - 1\n"
                "        start = at_end if len(tokens) == 1 else len(cache)\n"
                "        q, k = rotate(q, *rotation(config, start, len(tokens))), rotate(k, cosine, sine)",
            ),
        ),
        effect="decode takes a query's position from the length of its blocks of keys, not from what it is told",
        shows="a decoded token that does not end a block",
        reports=("flashinfer-decode-q-rope-offset",),
    ),
    Mutant(
        id="long-prefill-tail-not-rotated",
        area="positions",
        edits=(
            Edit(
                FORWARD,
                ROTATES,
                "q, k = rotate(q, cosine, sine), np.concatenate((rotate(k, cosine, sine)[:16], k[16:]))",
            ),
        ),
        effect="of a pass longer than a block, the keys beyond it are copied to the cache without their rotation",
        shows="a pass of more than 16 tokens",
        reports=("hf-sinkcache-no-rerotate-long-prefill",),
    ),
    Mutant(
        id="last-prompt-token-replayed",
        area="positions",
        edits=(
            Edit(
                "reference/decoding/generate.py",
                "    logits, cache = forward(model, prompt, empty_cache(model.config))\n",
                "    _, cache = forward(model, prompt, empty_cache(model.config))\n"
                "    logits, cache = forward(model, prompt[-1:], cache)\n",
            ),
        ),
        effect="a prompt's last token is fed again for its logits, one position too far, after all of it was cached",
        shows="any decoding",
        reports=("llamacpp-session-last-token-pos",),
    ),
    Mutant(
        id="decode-without-past",
        area="positions",
        edits=(
            Edit(
                "reference/decoding/generate.py",
                "logits, cache = forward(model, output[-1:], cache)",
                "logits, cache = forward(model, output[-1:], empty_cache(model.config))",
            ),
        ),
        effect="with the cache off, decode still feeds the newest token only",
        shows="two decoded tokens",
        reports=("mistralrs-no-kv-cache-positions",),
    ),
    Mutant(
        id="verified-rows-collapse",
        area="positions",
        edits=(
            Edit(
                "reference/decoding/speculation.py",
                "emit(logits[-len(drafts) - 1 :], q, drafts, temperature, coins)",
                "emit(\n"
                "            np.repeat(logits[[-len(drafts) - 1]], len(drafts) + 1, axis=0),\n"
                "            q, drafts, temperature, coins)",
            ),
        ),
        effect="of the last n rows only the n-th from the end is taken, for all",
        shows="two logit rows that are asked for at once",
        reports=("nousnet-logits-index-not-slice",),
    ),
    Mutant(
        id="chunk-takes-last-positions",
        area="positions",
        edits=(
            Edit(
                CHUNKED,
                "return prompt_positions[self.num_seen : self.num_seen + len(self.segment())]",
                "return prompt_positions[-len(self.segment()) :]",
            ),
        ),
        effect="every chunk of a prompt is given the positions of its last one",
        shows="a prompt of two chunks",
        reports=("mistralrs-chunk-suffix-positions",),
        shape="chunked-prefill",
    ),
    Mutant(
        id="chunk-takes-all-positions",
        area="positions",
        edits=(
            Edit(
                CHUNKED,
                "return prompt_positions[self.num_seen : self.num_seen + len(self.segment())]",
                "return prompt_positions[self.num_seen :]",
            ),
            Edit(
                CHUNKED,
                "positions = np.concatenate([session.positions() for session in sessions])",
                "positions = np.concatenate([one.positions() for one in sessions])[: len(tokens)]",
            ),
        ),
        effect="a chunk brings the positions of all the rest of its prompt, which push away those of other sessions",
        shows="a batch whose first prompt takes two chunks",
        reports=("vllm-mrope-no-right-slice",),
        shape="chunked-prefill",
    ),
    Mutant(
        id="prompt-counted-twice",
        area="positions",
        edits=(
            Edit(
                CHUNKED,
                "self.num_seen += len(self.segment())",
                "self.num_seen += len(self.prompt) if len(self.output) == 1 else len(self.segment())",
            ),
        ),
        effect="after the first decode step the offset advances by the prompt's length once more",
        shows="three decoded tokens",
        reports=("tinyllm-offset-adds-prompt-twice",),
        shape="chunked-prefill",
    ),
)
