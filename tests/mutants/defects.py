"""Defects of the specification made by hand: each is an edit, and a family of goldens that must notice it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """`before` stands exactly once in reference/<file>; with `after` in its place a record of `family` must fail."""

    id: str
    file: str
    before: str
    after: str
    family: str
    effect: str


DEFECTS = (
    Defect(
        "rope-interleaved",
        "model/rope.py",
        "first, second = x[..., : D // 2], x[..., D // 2 :]",
        "first, second = x[..., 0::2], x[..., 1::2]",
        "forward",
        "pairs (2i, 2i + 1) are rotated instead of (i, i + D/2)",
    ),
    Defect(
        "rope-positions-stretched",
        "model/rope.py",
        "positions = np.arange(start, start + num_tokens, dtype=np.float64)",
        "positions = np.arange(start, start + num_tokens, dtype=np.float64) * 1.01",
        "forward",
        "positions are stretched by a hundredth",
    ),
    Defect(
        "rope-chunk-from-zero",
        "model/transformer.py",
        "cosine, sine = rotation(config, len(cache), len(tokens))",
        "cosine, sine = rotation(config, 0, len(tokens))",
        "cache",
        "every chunk is rotated as if it began the session",
    ),
    Defect(
        "rope-theta-ignored",
        "model/rope.py",
        "return power(theta, -(2.0 * np.arange(head_dim // 2)) / head_dim)",
        "return power(10000.0, -(2.0 * np.arange(head_dim // 2)) / head_dim)",
        "forward",
        "theta is always 10000",
    ),
    Defect(
        "llama3-scaling-ignored",
        "model/rope.py",
        "return np.where(wavelength < trained / high, kept, stretched)",
        "return np.where(wavelength > 0.0, kept, stretched)",
        "forward",
        "llama3 scaling is read and not applied",
    ),
    Defect(
        "eps-outside-root",
        "model/transformer.py",
        "normed: Array = x / np.sqrt(mean_square + eps) * weight",
        "normed: Array = x / (np.sqrt(mean_square) + eps) * weight",
        "forward",
        "eps is added to the root instead of the mean square",
    ),
    Defect(
        "norm-one-plus-weight",
        "model/transformer.py",
        "normed: Array = x / np.sqrt(mean_square + eps) * weight",
        "normed: Array = x / np.sqrt(mean_square + eps) * (1.0 + weight)",
        "forward",
        "the norm's weight is an offset from one, as in Gemma",
    ),
    Defect(
        "scale-by-hidden",
        "model/transformer.py",
        "keys.transpose(1, 2, 0)) / math.sqrt(D)",
        "keys.transpose(1, 2, 0)) / math.sqrt(H * D)",
        "forward",
        "scores are divided by the root of all heads' size",
    ),
    Defect(
        "mask-sees-next",
        "model/transformer.py",
        "positions = np.arange(num_context - num_queries, num_context)",
        "positions = np.arange(num_context - num_queries, num_context) + 1",
        "forward",
        "a token sees the one after it",
    ),
    Defect(
        "mask-chunk-alone",
        "model/transformer.py",
        "positions = np.arange(num_context - num_queries, num_context)",
        "positions = np.arange(num_queries)",
        "cache",
        "a chunk's mask is aligned to the start of the context",
    ),
    Defect(
        "gqa-tiled",
        "model/transformer.py",
        "grouped = q.reshape(T, K, G, D).transpose(1, 2, 0, 3).reshape(K, G * T, D)",
        "grouped = q.reshape(T, G, K, D).transpose(2, 1, 0, 3).reshape(K, G * T, D)",
        "forward",
        "query head h reads key-value head h mod K",
    ),
    Defect(
        "attention-bias-dropped",
        "model/transformer.py",
        "q = linear(x, layer.q_proj, layer.q_bias).reshape(T, config.num_attention_heads, D)",
        "q = linear(x, layer.q_proj, None).reshape(T, config.num_attention_heads, D)",
        "forward",
        "the bias of the query projection is not added",
    ),
    Defect(
        "gelu-like-gate",
        "numerics.py",
        "gated: Array = x / (1.0 + exp(-x))",
        "gated: Array = x / (1.0 + exp(-1.702 * x))",
        "forward",
        "the gate is the sigmoid form of GELU instead of SiLU",
    ),
    Defect(
        "gate-and-up-swapped",
        "model/transformer.py",
        "return linear(silu(gate) * up, layer.down_proj, layer.down_bias)",
        "return linear(gate * silu(up), layer.down_proj, layer.down_bias)",
        "forward",
        "the activation is on the up projection",
    ),
    Defect(
        "residual-after-norm",
        "model/transformer.py",
        "x = x + swiglu(rms_norm(x, layer.post_attention_norm, config.rms_norm_eps), layer)",
        "x = rms_norm(x, layer.post_attention_norm, config.rms_norm_eps)\n        x = x + swiglu(x, layer)",
        "forward",
        "the residual is taken after the norm",
    ),
    Defect(
        "truncate-keeps-one-more",
        "model/cache.py",
        "return KVCache(self.keys[:, :num_tokens].copy(), self.values[:, :num_tokens].copy())",
        "return KVCache(self.keys[:, : num_tokens + 1].copy(), self.values[:, : num_tokens + 1].copy())",
        "cache",
        "a rollback leaves one stale entry",
    ),
    Defect(
        "length-before-eos",
        "decoding/generate.py",
        "    if output[-1] in stop.eos_ids:\n",
        "    if output[-1] in stop.eos_ids and len(output) < stop.max_tokens:\n",
        "generate",
        "a token that is both eos and the last allowed one ends with 'length'",
    ),
    Defect(
        "no-residual",
        "decoding/verification.py",
        "token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)",
        "token = x if is_accepted else draw(p[i], final_coin)",
        "speculation",
        "a rejected draft is replaced by a draw from p",
    ),
    Defect(
        "bonus-from-last-draft",
        "decoding/verification.py",
        "bonus = draw(p[-1], final_coin)",
        "bonus = draw(p[-2], final_coin)",
        "speculation",
        "the bonus token comes from the row of the last draft",
    ),
    Defect(
        "rollback-keeps-rejected",
        "decoding/speculation.py",
        "draft_cache = draft_cache.truncate(min(num_kept, len(draft_cache)))",
        "draft_cache = draft_cache.truncate(min(num_kept + 1, len(draft_cache)))",
        "speculation",
        "the draft's cache keeps the keys of a rejected draft",
    ),
    Defect(
        "static-fills-slots",
        "serving/policies.py",
        "    if len(running) > 0:\n",
        "    if len(running) >= limits.max_running:\n",
        "batching",
        "a fixed batch admits into free slots",
    ),
    Defect(
        "prefill-lost",
        "serving/policies.py",
        "operations: tuple[Operation, ...] = (*prefills, *(Decode(session.id) for session in running))",
        "operations: tuple[Operation, ...] = (*prefills[:1], *(Decode(session.id) for session in running))",
        "sweep",
        "of several prefills in a tick only the first is computed",
    ),
    Defect(
        "evicts-most-recent",
        "serving/policies.py",
        "coldest = next(iter(hot))",
        "coldest = next(reversed(hot))",
        "sweep",
        "the most recently used session is evicted",
    ),
    Defect(
        "budget-not-checked",
        "serving/policies.py",
        "    if budget is not None and len(request.prompt) > budget:\n",
        "    if budget is not None and len(request.prompt) > budget + 99:\n",
        "sweep",
        "a prompt longer than any tick's budget blocks the queue",
    ),
    Defect(
        "expected-without-bonus",
        "decoding/verification.py",
        "return (1 - math.prod([alpha] * (gamma + 1))) / (1 - alpha)",
        "return (1 - math.prod([alpha] * gamma)) / (1 - alpha)",
        "crossover",
        "expected tokens leave out the bonus token",
    ),
)
