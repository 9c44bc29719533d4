"""Mutants of stop conditions and logprobs."""

from tests.mutants.mutant import Edit, Mutant

ENGINE = "reference/engine.py"
GENERATE = "reference/decoding/generate.py"
SPECULATION = "reference/decoding/speculation.py"
LOOKUP = "tests/mutants/shapes/prompt_lookup.py"
SCORES = "tests/mutants/shapes/prefix_scores.py"

TOLD = "told.append(float(log_softmax(logits)[token]))"
"""The logprob of an output token, in the specification's engine."""

STEP_ENDS = """\
        for token in emitted:
            output.append(token)
            reason = finish_reason(len(prompt), output, stop)
            if reason is not None:
                return SpeculativeGeneration(tuple(output), reason, tuple(steps))
"""

STOPS: tuple[Mutant, ...] = (
    Mutant(
        id="length-before-eos",
        area="stop",
        edits=(
            Edit(
                GENERATE,
                "    if output[-1] in stop.eos_ids:\n",
                "    if output[-1] in stop.eos_ids and len(output) < stop.max_tokens:\n",
            ),
        ),
        effect="a token that is both eos and the last allowed one ends with 'length'",
        shows="an eos at the last allowed token",
        reports=("vllm-length-before-stop",),
    ),
    Mutant(
        id="finish-is-always-stop",
        area="stop",
        edits=(Edit(GENERATE, 'return "length"', 'return "stop"'),),
        effect="an output that max_tokens ended is told to have stopped",
        shows="an output ended by max_tokens",
        reports=("fastdeploy-finish-reason-max-tokens",),
    ),
    Mutant(
        id="eos-first-only",
        area="stop",
        edits=(Edit(GENERATE, "if output[-1] in stop.eos_ids:", "if output[-1] in stop.eos_ids[:1]:"),),
        effect="of several eos ids only the first counts",
        shows="an output that ends at the second of two eos ids",
        reports=("sglang-min-new-tokens-eos-set",),
    ),
    Mutant(
        id="max-tokens-checked-late",
        area="stop",
        edits=(Edit(GENERATE, "if len(output) >= stop.max_tokens or", "if len(output) > stop.max_tokens or"),),
        effect="max_tokens is checked before the last token is counted, so one more is sampled",
        shows="an output ended by max_tokens",
        reports=("lattice-zero-budget",),
    ),
    Mutant(
        id="eos-in-prompt-masked",
        area="stop",
        edits=(
            Edit(
                GENERATE,
                "    logits, cache = forward(model, prompt, empty_cache(model.config))\n",
                "    seen = [token for token in prompt if token not in stop.eos_ids]\n"
                "    logits, cache = forward(model, seen, empty_cache(model.config))\n",
            ),
        ),
        effect="an eos in the prompt is taken for padding: masked, and no position is counted for it",
        shows="a prompt with an eos inside",
        reports=("ortgenai-pad-eos-mask",),
    ),
    Mutant(
        id="stop-flushes-lookahead",
        area="stop",
        edits=(
            Edit(
                GENERATE,
                "        output.append(choose(logits[-1], len(output)))\n"
                "    return Generation(tuple(output), reason)",
                "        output.append(choose(logits[-1], len(output)))\n"
                '    if reason == "stop" and len(prompt) + len(output) < stop.context_length:\n'
                "        logits, cache = forward(model, output[-1:], cache)\n"
                "        output.append(choose(logits[-1], len(output)))\n"
                "    return Generation(tuple(output), reason)",
            ),
        ),
        effect="the token that was decoded ahead of the stop is flushed at the end",
        shows="an output that ends at an eos",
        reports=("vmlx-stop-tail-flush",),
    ),
    Mutant(
        id="eos-at-run-end-only",
        area="stop",
        edits=(
            Edit(
                SPECULATION,
                STEP_ENDS,
                "        output += emitted\n"
                "        reason = finish_reason(len(prompt), output, stop)\n"
                "        if reason is not None:\n"
                "            return SpeculativeGeneration(tuple(output), reason, tuple(steps))\n",
            ),
        ),
        effect="only the last token of a step is compared with the eos ids",
        shows="an eos inside an accepted run",
        reports=("hf-eos-accepted-mid-block", "koboldcpp-eos-mid-draft", "vllm-stop-string-token-boundary"),
    ),
    Mutant(
        id="run-not-cut-at-eos",
        area="stop",
        edits=(
            Edit(
                SPECULATION,
                STEP_ENDS,
                "        start = len(output)\n"
                "        output += emitted\n"
                "        for end in range(start + 1, len(output) + 1):\n"
                "            reason = finish_reason(len(prompt), output[:end], stop)\n"
                "            if reason is not None:\n"
                "                return SpeculativeGeneration(tuple(output), reason, tuple(steps))\n",
            ),
        ),
        effect="an eos inside a step ends the output, and the whole step is emitted",
        shows="an eos inside an accepted run",
        reports=("sglang-spec-stop-string-boundary",),
    ),
    Mutant(
        id="length-before-eos-in-run",
        area="stop",
        edits=(
            Edit(
                SPECULATION,
                STEP_ENDS,
                "        if len(output) + len(emitted) >= stop.max_tokens:\n"
                "            output += emitted[: stop.max_tokens - len(output)]\n"
                '            return SpeculativeGeneration(tuple(output), "length", tuple(steps))\n' + STEP_ENDS,
            ),
        ),
        effect="a step that reaches max_tokens ends with 'length', and an eos inside it is not looked for",
        shows="an eos inside a run that also reaches max_tokens",
        reports=("sglang-length-before-stop-in-accept-run",),
    ),
    Mutant(
        id="run-not-clamped",
        area="stop",
        edits=(
            Edit(
                SPECULATION, "num_drafts = min(gamma, room - 1)", "num_drafts = min(gamma, max(room, gamma + 1) - 1)"
            ),
            Edit(
                SPECULATION,
                STEP_ENDS,
                "        for token in emitted:\n"
                "            output.append(token)\n"
                "            if token in stop.eos_ids:\n"
                '                return SpeculativeGeneration(tuple(output), "stop", tuple(steps))\n'
                "        if len(output) >= stop.max_tokens:\n"
                '            return SpeculativeGeneration(tuple(output), "length", tuple(steps))\n',
            ),
        ),
        effect="max_tokens is checked between steps, and a step is never shortened",
        shows="a max_tokens inside an accepted run",
        reports=("lattice-max-new-tokens-overrun",),
    ),
    Mutant(
        id="budget-underflows",
        area="stop",
        edits=(
            Edit(LOOKUP, "lookup(tokens, min(NUM_DRAFTS, room - 1))", "lookup(tokens, NUM_DRAFTS)"),
            Edit(
                LOOKUP,
                "            reason = finish_reason(len(prompt), output, stop)\n            if reason is not None:\n",
                '            reason = "stop" if output[-1] in stop.eos_ids else "length"\n'
                '            if reason == "stop" or len(output) == stop.max_tokens:\n',
            ),
        ),
        effect="the budget is compared with zero, which a run of several tokens can pass",
        shows="a max_tokens inside an accepted run",
        reports=("atlas-budget-underflow-runaway",),
        shape="prompt-lookup",
    ),
    Mutant(
        id="lookup-capped-by-place",
        area="stop",
        edits=(
            Edit(
                LOOKUP,
                "drafts = lookup(tokens, min(NUM_DRAFTS, room - 1)) if is_drafted else ()",
                "drafts = lookup(tokens[: len(prompt) + stop.max_tokens], NUM_DRAFTS) if is_drafted else ()",
            ),
        ),
        effect="drafts are capped where the copied text would pass the maximum, not the text that they continue",
        shows="a max_tokens inside an accepted run",
        reports=("hf-prompt-lookup-past-max-length",),
        shape="prompt-lookup",
    ),
    Mutant(
        id="lookup-copies-eos",
        area="stop",
        edits=(
            Edit(
                LOOKUP,
                "run = until_eos(verify_greedy(rows, drafts), stop.eos_ids)",
                "run = verify_greedy(rows, drafts)",
            ),
        ),
        effect="an eos that was copied from the prompt and accepted does not end the output",
        shows="a prompt with the bigram that ends the output",
        reports=("hf-prompt-lookup-copies-eos",),
        shape="prompt-lookup",
    ),
)

LOGPROBS: tuple[Mutant, ...] = (
    Mutant(
        id="logprob-after-temperature",
        area="logprobs",
        edits=(Edit(ENGINE, TOLD, "told.append(float(log_softmax(logits / 0.7)[token]))"),),
        effect="logprobs are those of the distribution at a default temperature",
        shows="logprobs",
        reports=("vllm-logprobs-processed-vs-raw",),
    ),
    Mutant(
        id="logprob-over-temperature",
        area="logprobs",
        edits=(Edit(ENGINE, TOLD, "told.append(float(log_softmax(logits)[token]) / 0.7)"),),
        effect="logprobs, not logits, are divided by the temperature",
        shows="logprobs",
        reports=("primerl-logprob-divided-by-temp",),
    ),
    Mutant(
        id="logprob-of-greedy-law",
        area="logprobs",
        edits=(Edit(ENGINE, TOLD, "told.append(float(log_softmax(logits / 1e-5)[token]))"),),
        effect="greedy decoding is a temperature near 0, and logprobs are taken after it: all are 0",
        shows="logprobs",
        reports=("sglang-top-logprobs-processed",),
    ),
    Mutant(
        id="draw-from-raw-logits",
        area="logprobs",
        edits=(Edit(ENGINE, "draw(distribution(logits, temperature), coin)", "draw(distribution(logits), coin)"),),
        effect="where the processed distribution is due, that of the raw logits is taken",
        shows="a temperature other than 1",
        reports=("ollama-logprobs-raw",),
    ),
    Mutant(
        id="logprob-of-sorted",
        area="logprobs",
        edits=(Edit(ENGINE, TOLD, "told.append(float(sorted(log_softmax(logits), reverse=True)[token]))"),),
        effect="a token id indexes logprobs that are already sorted",
        shows="logprobs",
        reports=("llamacpppy-token-logprob-after-sort",),
    ),
    Mutant(
        id="logprob-of-runner-up",
        area="logprobs",
        edits=(Edit(ENGINE, TOLD, "told.append(float(sorted(log_softmax(logits))[-2]))"),),
        effect="the token is removed from the list of the most likely, and the entry after it takes its rank",
        shows="logprobs",
        reports=("vllm-topk-logprob-rank-dedup",),
    ),
    Mutant(
        id="logprob-ids-of-first-row",
        area="logprobs",
        edits=(
            Edit(ENGINE, "        outputs = []\n", "        outputs, asked = [], []\n"),
            Edit(
                ENGINE,
                TOLD,
                "asked.append(token)\n                told.append(float(log_softmax(logits)[asked[0]]))",
            ),
        ),
        effect="the token id of one row selects the logprob of every row",
        shows="logprobs of two different tokens",
        reports=("vllm-logprob-token-ids-batch",),
    ),
    Mutant(
        id="logprobs-one-late",
        area="logprobs",
        edits=(Edit(ENGINE, "tuple(told) if logprobs else None", "(0.0, *told[:-1]) if logprobs else None"),),
        effect="logprobs begin with an entry for the token that has none, so each is told of the token after",
        shows="logprobs of two tokens",
        reports=("vllm-prompt-logprobs-first-none",),
    ),
    Mutant(
        id="prompt-rows-one-late",
        area="logprobs",
        edits=(
            Edit(
                ENGINE,
                "return logits\n\n    def generate(",
                "return logits[[0, *range(len(tokens) - 1)]]\n\n    def generate(",
            ),
        ),
        effect="a prompt's scores have an extra row at the start, and all others are one too late",
        shows="the scores of two positions",
        reports=("vllm-prompt-logprobs-first-none",),
    ),
    Mutant(
        id="prefix-rows-not-offset",
        area="logprobs",
        edits=(
            Edit(
                SCORES,
                "self._rows[num_kept : len(tokens)] = logits",
                "self._rows[: len(logits)] = logits",
            ),
        ),
        effect="scores of the tokens after a cached prefix are told of the first tokens",
        shows="scores of a prompt whose start is cached",
        reports=("vllm-prompt-logprobs-offset-cached",),
        shape="prefix-scores",
    ),
    Mutant(
        id="prefix-rows-stale",
        area="logprobs",
        edits=(
            Edit(
                SCORES,
                "        row = self._rows[len(prompt) - 1]\n",
                "        row = self._rows[len(prompt) - 1].copy()\n        self._rows[:] = 0.0\n",
            ),
        ),
        effect="KV entries outlive a request and its scores do not, so a cached prefix has those of an empty buffer",
        shows="scores of a prompt whose start is cached",
        reports=("vllm-prompt-logprobs-prefix-stale",),
        shape="prefix-scores",
    ),
    Mutant(
        id="accepted-logprob-zero",
        area="logprobs",
        edits=(
            Edit(
                LOOKUP,
                "told += [float(log_softmax(row)[token]) for row, token in zip(rows, run, strict=False)]",
                "told += [0.0] * (len(run) - 1) + [float(log_softmax(rows[len(run) - 1])[run[-1]])]",
            ),
        ),
        effect="accepted drafts keep the probability 1 that they began with",
        shows="logprobs of a run that repeats the text before it",
        reports=("llamacpp-spec-logprob-zero",),
        shape="prompt-lookup",
    ),
    Mutant(
        id="run-logprobs-of-first-row",
        area="logprobs",
        edits=(
            Edit(
                LOOKUP,
                "told += [float(log_softmax(row)[token]) for row, token in zip(rows, run, strict=False)]",
                "told += [float(log_softmax(rows[0])[token]) for token in run]",
            ),
        ),
        effect="logprobs are indexed by step instead of by token",
        shows="logprobs of a run that repeats the text before it",
        reports=("sglang-top-logprobs-first-chunk",),
        shape="prompt-lookup",
    ),
)

MUTANTS = (*STOPS, *LOGPROBS)
