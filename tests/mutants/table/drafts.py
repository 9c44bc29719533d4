"""Mutants of speculation: drafts and their laws, the KV caches, batches."""

from tests.mutants.mutant import Edit, Mutant

VERIFICATION = "reference/decoding/verification.py"
LOOP = "reference/decoding/speculation.py"
SAMPLING = "reference/decoding/sampling.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="one-stream-of-coins",
        area="spec-draft",
        edits=(
            Edit(
                VERIFICATION,
                "is_accepted = bool(coin <= accept_prob) and accept_prob > 0",
                "is_accepted = bool(final_coin <= accept_prob) and accept_prob > 0",
            ),
        ),
        effect="drafts are judged by a coin that also draws a token",
        shows="coins that decide differently",
        reports=("localinf-draft-noise-shared",),
    ),
    Mutant(
        id="final-coin-ignored",
        area="spec-batch",
        edits=(
            Edit(
                VERIFICATION,
                "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
                "token = x if is_accepted else draw(residual(p[i], q[i]), 0.0)",
            ),
        ),
        effect="the replacement of a request without a seed is not drawn: always the first token of the residual",
        shows="a final coin away from 0",
        reports=("vllm-spec-seed-none-mixed",),
    ),
    Mutant(
        id="draft-law-one-hot",
        area="spec-draft",
        edits=(
            Edit(
                VERIFICATION,
                "accept_prob = accept_probability(p[i, x], q[i, x])",
                "accept_prob = accept_probability(p[i, x], 1.0)",
            ),
        ),
        effect="drafts that were drawn are judged as if their law were certain",
        shows="a draft of a probability below 1",
        reports=("vllm-draft-probs-none-fallback",),
    ),
    Mutant(
        id="draft-law-smoothed",
        area="spec-draft",
        edits=(
            Edit(
                VERIFICATION,
                "_check_step(p, q, drafts, accept_coins, final_coin)\n    verdicts",
                "_check_step(p, q, drafts, accept_coins, final_coin)\n    q = softmax(q)\n    verdicts",
            ),
            Edit(
                VERIFICATION,
                "from reference.numerics import sum_last",
                "from reference.numerics import softmax, sum_last",
            ),
        ),
        effect="a greedy draft is judged by a softmax instead of its one-hot law",
        shows="a one-hot draft law",
        reports=("rtp-greedy-draft-q-softmax", "xllm-greedy-vs-probabilistic-draft", "hf-assistant-forced-greedy"),
    ),
    Mutant(
        id="draft-law-before-filter",
        area="spec-draft",
        edits=(
            Edit(
                VERIFICATION,
                "accept_prob = accept_probability(p[i, x], q[i, x])",
                "accept_prob = accept_probability(p[i, x], 0.8 * q[i, x])",
            ),
        ),
        effect="the draft's law is that before its filter: too small by the mass that was kept",
        shows="a ratio a little below 1",
        reports=("hf-candidate-q-raw-not-processed",),
    ),
    Mutant(
        id="draft-law-overwritten",
        area="spec-draft",
        edits=(
            Edit(
                VERIFICATION,
                "_check_step(p, q, drafts, accept_coins, final_coin)\n    verdicts",
                "_check_step(p, q, drafts, accept_coins, final_coin)\n"
                "    q = q / np.arange(1.0, 1.0 + q.shape[1])\n"
                "    verdicts",
            ),
        ),
        effect="drawing a draft divides its law in place, and what is left is the law that verifies",
        shows="a draft that is not token 0",
        reports=("vllm-draft-probs-inplace",),
    ),
    Mutant(
        id="draft-law-rounded",
        area="spec-draft",
        edits=(
            Edit(
                VERIFICATION,
                "accept_prob = accept_probability(p[i, x], q[i, x])",
                "accept_prob = accept_probability(p[i, x], float(np.float16(q[i, x])))",
            ),
        ),
        effect="the law that verifies is rounded otherwise than the one that drafted",
        shows="a coin at the ratio itself",
        reports=("deepspec-draft-sample-vs-verify-dtype",),
    ),
    Mutant(
        id="greedy-drafts-by-ratio",
        area="spec-draft",
        edits=(
            Edit(
                VERIFICATION,
                "        if greedy(row) != x:",
                "        if greedy(row) != x and softmax(row)[x] < 0.05:",
            ),
            Edit(
                VERIFICATION,
                "from reference.numerics import sum_last",
                "from reference.numerics import softmax, sum_last",
            ),
        ),
        effect="greedy drafts are accepted for a probability, not for being the most likely token",
        shows="a draft that the target finds likely, but not the most",
        reports=("jaymody-greedy-argmax-draft",),
    ),
    Mutant(
        id="draft-vocabulary-unchecked",
        area="spec-draft",
        edits=(
            Edit(
                LOOP,
                "if target.config.vocab_size != draft.config.vocab_size:",
                "if target.config.vocab_size < draft.config.vocab_size:",
            ),
        ),
        effect="ids of a draft with a vocabulary of its own are taken for the target's",
        shows="a draft of a smaller vocabulary",
        reports=("automodel-d2t-missing", "verl-d2t-offset-vs-absolute"),
    ),
    Mutant(
        id="draft-context-doubled",
        area="spec-draft",
        edits=(
            Edit(
                LOOP,
                "propose(draft, draft_cache, tokens, num_drafts, temperature, coins)",
                "propose(draft, draft_cache, (*tokens, tokens[-1]), num_drafts, temperature, coins)",
            ),
        ),
        effect="the last token is appended to the draft's context twice",
        shows="steps that tell their drafts",
        reports=("ascend-ngram-double-append",),
    ),
    Mutant(
        id="rollback-keeps-rejected",
        area="spec-kv",
        edits=(
            Edit(
                LOOP,
                "draft_cache = draft_cache.truncate(min(num_kept, len(draft_cache)))",
                "draft_cache = draft_cache.truncate(min(num_kept + 1, len(draft_cache)))",
            ),
        ),
        effect="the draft's cache keeps the keys of a rejected draft",
        shows="a rejected draft and steps after it",
    ),
    Mutant(
        id="rollback-skipped",
        area="spec-kv",
        edits=(
            Edit(LOOP, "target_cache = target_cache.truncate(num_kept)", "target_cache.truncate(num_kept)"),
            Edit(
                LOOP, "(*tokens[len(target_cache) :], *drafts)", "(*(tokens if not steps else tokens[-1:]), *drafts)"
            ),
        ),
        effect="the target's cache is not rolled back: the entries of rejected drafts stay",
        shows="a rejected draft and steps after it",
        reports=("mlx-lm-spec-nontrimmable-cache", "hf-static-cache-crop-copy"),
    ),
    Mutant(
        id="position-advances-by-one",
        area="spec-kv",
        edits=(
            Edit(LOOP, "num_kept = len(tokens) + len(emitted) - 1", "num_kept = len(tokens)"),
            Edit(
                LOOP, "(*tokens[len(target_cache) :], *drafts)", "(*(tokens if not steps else tokens[-1:]), *drafts)"
            ),
        ),
        effect="the target's position advances by one a step, whatever was accepted",
        shows="an accepted draft and steps after it",
        reports=("hf-cache-position-one-token",),
    ),
    Mutant(
        id="rejected-drafts-emitted",
        area="spec-kv",
        edits=(Edit(LOOP, "for token in emitted:", "for token in (*drafts, emitted[-1]):"),),
        effect="all drafts enter the output before they are verified and stay",
        shows="a rejected draft",
        reports=("lucidrains-spec-out-not-reverted",),
    ),
    Mutant(
        id="drafts-fill-the-room",
        area="spec-batch",
        edits=(Edit(LOOP, "num_drafts = min(gamma, room - 1)", "num_drafts = min(gamma, room)"),),
        effect="drafts are capped without room for the token after them",
        shows="a limit inside a step",
        reports=("vllm-resumed-pad-past-max-len",),
    ),
    Mutant(
        id="temperature-zero-divides",
        area="spec-batch",
        edits=(Edit(SAMPLING, "if not 0.0 < temperature < np.inf:", "if not 0.0 <= temperature < np.inf:"),),
        effect="a greedy request among sampled ones is divided by its temperature of 0",
        shows="a temperature of 0",
        reports=("sglang-spec-t0-nan-mixed",),
    ),
    Mutant(
        id="padded-draft-judged",
        area="spec-batch",
        edits=(
            Edit(VERIFICATION, "        if not 0 <= x < p.shape[1]:", "        if x < 0:"),
            Edit(
                VERIFICATION,
                "for i, (x, coin) in enumerate(zip(drafts, accept_coins, strict=True)):",
                "for i, (x, coin) in enumerate(zip((y % p.shape[1] for y in drafts), accept_coins, strict=True)):",
            ),
        ),
        effect="the padding of a shorter row of drafts is judged like a token of the vocabulary",
        shows="a draft that is no token",
        reports=("flashinfer-chain-emitted-exceeds",),
    ),
)
