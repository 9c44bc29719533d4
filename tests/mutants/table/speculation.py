"""Mutants of speculation: verification."""

from tests.mutants.mutant import Edit, Mutant

VERIFICATION = "reference/decoding/verification.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="no-residual",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
                "token = x if is_accepted else draw(p[i], final_coin)",
            ),
        ),
        effect="a rejected draft is replaced by a draw from p",
        shows="a rejection where p and q overlap",
    ),
    Mutant(
        id="bonus-from-last-draft",
        area="spec-verify",
        edits=(Edit(VERIFICATION, "bonus = draw(p[-1], final_coin)", "bonus = draw(p[-2], final_coin)"),),
        effect="the bonus token comes from the row of the last draft",
        shows="all drafts accepted",
    ),
    Mutant(
        id="expected-without-bonus",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "return (1 - math.prod([alpha] * (gamma + 1))) / (1 - alpha)",
                "return (1 - math.prod([alpha] * gamma)) / (1 - alpha)",
            ),
        ),
        effect="expected tokens leave out the bonus token",
        shows="the cost model",
    ),
    Mutant(
        id="accept-coin-reused",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
                "token = x if is_accepted else draw(residual(p[i], q[i]), coin)",
            ),
        ),
        effect="the coin that rejected a draft also draws its replacement",
        shows="an accept and a final coin that give different tokens",
        reports=("ascend-accept-resample-same-uniform",),
    ),
    Mutant(
        id="one-accept-coin",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "for i, (x, coin) in enumerate(zip(drafts, accept_coins, strict=True)):",
                "for i, (x, coin) in enumerate(zip(drafts, accept_coins[:1] * len(drafts), strict=True)):",
            ),
        ),
        effect="all drafts of a step are judged by the first accept coin",
        shows="accept coins on both sides of a ratio",
        reports=("flashinfer-chain-non-unique-uniforms",),
    ),
    Mutant(
        id="coins-ignored",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "is_accepted = bool(coin <= accept_prob) and accept_prob > 0",
                "is_accepted = bool(0.5 <= accept_prob) and accept_prob > 0",
            ),
        ),
        effect="the request's coins are not used; the engine's own decide",
        shows="an accept coin away from one half",
        reports=("vllm-spec-ignores-seed", "trtllm-spec-shared-seed", "ortgenai-seed-depends-on-spec"),
    ),
    Mutant(
        id="residual-by-softmax",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION, "return surplus / mass if mass > 0 else p", "return softmax(surplus) if mass > 0 else p"
            ),
            Edit(
                VERIFICATION,
                "from reference.numerics import sum_last",
                "from reference.numerics import softmax, sum_last",
            ),
        ),
        effect="the residual goes through a softmax, so that tokens of no surplus have a share",
        shows="a replacement that only a token of no surplus can be",
        reports=("hf-residual-softmax",),
    ),
    Mutant(
        id="ratio-of-next-row",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "accept_prob = accept_probability(p[i, x], q[i, x])",
                "accept_prob = accept_probability(p[i + 1, x], q[i, x])",
            ),
        ),
        effect="the ratio of draft i takes the target's row after it",
        shows="two drafts whose rows differ",
        reports=("hf-speculative-indexing-and-greedy-assistant",),
    ),
    Mutant(
        id="residual-without-guard",
        area="spec-verify",
        edits=(Edit(VERIFICATION, "return surplus / mass if mass > 0 else p", "return surplus / mass"),),
        effect="a residual of no mass is divided by 0",
        shows="p below q nowhere but by rounding, and a coin that rejects",
        reports=("jaymody-residual-nan",),
    ),
    Mutant(
        id="no-bonus",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "return Verification(len(drafts), (*drafts, bonus), tuple(verdicts))",
                "return Verification(len(drafts), tuple(drafts), tuple(verdicts))",
            ),
        ),
        effect="a step of which all drafts are accepted ends without a token of the target",
        shows="all drafts accepted",
        reports=("lattice-full-accept-bonus-dropped",),
    ),
    Mutant(
        id="first-draft-unverified",
        area="spec-verify",
        edits=(Edit(VERIFICATION, "        if greedy(row) != x:", "        if i > 0 and greedy(row) != x:"),),
        effect="the first draft of a step is taken without a look",
        shows="a wrong first draft",
        reports=("lattice-verify-first-draft-unverified",),
    ),
    Mutant(
        id="accepts-what-it-draws",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "is_accepted = bool(coin <= accept_prob) and accept_prob > 0",
                "is_accepted = draw(p[i], coin) == x",
            ),
            Edit(
                VERIFICATION,
                "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
                "token = draw(p[i], coin)",
            ),
        ),
        effect=(
            "a draft is accepted if a draw from p gives it, and the draw is emitted: right in law, but not the rule"
        ),
        shows="coins for which ratio and draw decide differently",
        reports=("mistralrs-match-sampled-not-ratio",),
    ),
    Mutant(
        id="accepts-what-it-draws-then-draws-again",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "is_accepted = bool(coin <= accept_prob) and accept_prob > 0",
                "is_accepted = draw(p[i], coin) == x",
            ),
            Edit(
                VERIFICATION,
                "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
                "token = x if is_accepted else draw(p[i], final_coin)",
            ),
        ),
        effect="a draft is accepted if a draw from p gives it; else p is drawn from anew",
        shows="the law of the first token",
        reports=("mlxswift-sample-match",),
    ),
    Mutant(
        id="replacement-from-next-row",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
                "token = x if is_accepted else draw(p[i + 1], final_coin)",
            ),
        ),
        effect="the token after a rejection comes from the row after the rejected draft",
        shows="a rejection where the rows differ",
        reports=("openvino-late-rejection-handler",),
    ),
    Mutant(
        id="same-token-shortcut",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "is_accepted = bool(coin <= accept_prob) and accept_prob > 0",
                "is_accepted = bool(coin <= accept_prob or draw(p[i], final_coin) == x) and accept_prob > 0",
            ),
        ),
        effect="a draft is accepted by its ratio or because the target draws the same token",
        shows="the law of the first token",
        reports=("rtp-same-token-shortcut",),
    ),
    Mutant(
        id="residual-in-float32",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "surplus = np.maximum(0, p - q)",
                "surplus = np.maximum(0, p.astype(np.float32) - q.astype(np.float32)).astype(np.float64)",
            ),
        ),
        effect="the surplus is a difference of float32 numbers",
        shows="a law compared more closely than to float32",
        reports=("vllm-log-residual-lossy",),
    ),
    Mutant(
        id="no-replacement-after-first",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "return Verification(i, (*drafts[:i], token), tuple(verdicts))",
                "return Verification(i, (*drafts[:i], token)[: max(1, i)], tuple(verdicts))",
            ),
        ),
        effect="a rejection after the first draft emits no replacement",
        shows="a rejection at a later position",
        reports=("vllm-typical-replacement-first-only",),
    ),
    Mutant(
        id="residual-of-drafted-token-only",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
                "only = np.where(np.arange(p.shape[1]) == x, q[i], 0 * q[i])\n"
                "        token = x if is_accepted else draw(residual(p[i], only), final_coin)",
            ),
        ),
        effect="the draft's law is taken off p at the drafted token only",
        shows="a rejection where p and q overlap elsewhere",
        reports=("xllm-residual-single-token",),
    ),
    Mutant(
        id="accepts-after-a-rejection",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "        if not is_accepted:\n            return",
                "        is_later = any(\n"
                "            c <= accept_probability(p[j, y], q[j, y])\n"
                "            for j, (y, c) in enumerate(zip(drafts, accept_coins, strict=True))\n"
                "            if j > i\n"
                "        )\n"
                "        if not is_accepted and not is_later:\n"
                "            return",
            ),
            Edit(
                VERIFICATION,
                "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
                "token = x if i + 1 < len(drafts) or is_accepted else draw(residual(p[i], q[i]), final_coin)",
            ),
        ),
        effect="the accepted length is that of the last draft that passes",
        shows="a rejection with a draft that passes after it",
        reports=("ascend-block-verify-noncontiguous",),
    ),
    Mutant(
        id="ratio-of-the-block",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "accept_prob = accept_probability(p[i, x], q[i, x])",
                "ratio = math.prod(p[j, y] / q[j, y] for j, y in enumerate(drafts[: i + 1]))\n"
                "        accept_prob = min(1.0, ratio)",
            ),
        ),
        effect="draft i is judged by the product of the ratios up to it, with the residual of its own",
        shows="two drafts, the first of a ratio far from 1",
        reports=("ascend-block-verify-wrong",),
    ),
    Mutant(
        id="target-law-spoiled",
        area="spec-verify",
        edits=(
            Edit(
                VERIFICATION,
                "bonus = draw(p[-1], final_coin)",
                "spoiled = np.where(np.isin(np.arange(p.shape[1]), drafts), 0, p[-1])\n"
                "    bonus = draw(spoiled / sum_last(spoiled), final_coin)",
            ),
        ),
        effect="drafted tokens are struck from the target's law in place, which is then used again",
        shows="a bonus that is one of the drafts",
        reports=("ascend-ngram-target-probs-inplace",),
    ),
)
