// A dense Llama in one file, behind the protocol of the conformance suite (docs/protocol.md). Node.js alone.
//
//     .venv/bin/python -m reference check --engine 'node examples/llama.mjs' --dtype float64
//
// Top down: the protocol, the verbs, decoding, speculation, the forward pass, RoPE, config.json, safetensors.
// A name in brackets, such as [ROPE-1], is a rule of the specification (reference/). All arithmetic is in float64.
// It refuses less of a wrong config.json than the specification: numbers below zero, say, are not looked at.
// Letters: T new tokens, S tokens in context, L layers, H query heads, K key-value heads, D head_dim, E hidden_size,
// F intermediate_size, V vocab_size. A vector is a Float64Array, a matrix an array of vectors.

import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { createInterface } from "node:readline";
import { isDeepStrictEqual } from "node:util";

/** One line of answer for every line of request, until "bye" or the end of stdin. */
async function main() {
  console.log = console.error; // stdout belongs to the protocol
  for await (const line of createInterface({ input: process.stdin })) {
    const { seq, verb, args } = JSON.parse(line);
    process.stdout.write(JSON.stringify({ seq, ...answer(verb, args) }) + "\n");
    if (verb === "bye") return;
  }
}

/** Exactly one of result, unsupported, refused and error. */
function answer(verb, args) {
  if (!Object.hasOwn(verbs, verb)) return { unsupported: { feature: verb } };
  try {
    return { result: verbs[verb](args) ?? {} };
  } catch (error) {
    if (error instanceof Refused) return { refused: { reason: error.reason, message: error.message } };
    console.error(error);
    return { error: { type: error.name, message: error.message } };
  }
}

/** An input that the specification refuses; `reason` is one of the list in schemas/record.schema.json. */
class Refused extends Error {
  constructor(reason, message) {
    super(message);
    this.reason = reason;
  }
}

function refuseUnless(isRight, reason, message) {
  if (!isRight) throw new Refused(reason, message);
}

/** Vectors of one length as an array of the protocol, [T, V]; the bytes of a little-endian machine. */
function toWire(rows) {
  const bytes = Buffer.concat(rows.map((row) => Buffer.from(row.buffer, row.byteOffset, row.byteLength)));
  return { dtype: "float64", shape: [rows.length, rows[0].length], base64: bytes.toString("base64") };
}

/** An array of the protocol, in base64 or as lists: a vector, or an array of vectors. */
function fromWire(array) {
  if (Array.isArray(array)) return Array.isArray(array[0]) ? array.map(fromWire) : Float64Array.from(array, Number);
  const { buffer } = Uint8Array.from(Buffer.from(array.base64, "base64"));
  const numbers = array.dtype === "float64" ? new Float64Array(buffer) : Float64Array.from(new Float32Array(buffer));
  return array.shape.length === 1 ? numbers : rowsOf(numbers, array.shape);
}

let model = null; // the loaded checkpoint
let sessions = new Map(); // handle -> KVCache
let numOpened = 0;

/** The verbs that this engine has; any other is answered "unsupported". A verb without a result returns nothing. */
const verbs = {
  hello: () => ({
    protocol: 1,
    name: "llama.mjs",
    version: "1.0",
    // The tolerance class for each dtype that load takes. This engine computes in float64 whichever is asked for.
    precisions: { float64: "f64", float32: "f64" },
    verbs: Object.keys(verbs),
    features: ["finish_reason", "logprobs"],
    choices: { arithmetic: "float64 for every dtype", kv_dtype: "float64" },
  }),

  load({ model_dir }) {
    model = loadModel(model_dir);
    sessions = new Map();
  },

  score: ({ tokens }) => ({ rows: toWire(forward(model, tokens, emptyCache(model.config))) }),

  generate({ prompts, max_tokens, eos_ids, logprobs }) {
    const outputs = prompts.map((prompt) => generate(model, prompt, max_tokens, eos_ids));
    // JSON has no NaN and no infinities: they are strings.
    const told = (numbers) => numbers.map((number) => (Number.isFinite(number) ? number : String(number)));
    return { outputs: outputs.map((output) => ({ ...output, logprobs: logprobs ? told(output.logprobs) : null })) };
  },

  sample: ({ logits, temperature, coin }) => ({ token: draw(distribution(fromWire(logits), temperature), coin) }),

  speculate({ draft_dir, prompt, gamma, max_tokens, eos_ids }) {
    const output = speculate(model, loadModel(draft_dir), prompt, gamma, max_tokens, eos_ids);
    const num_accepted = sum(output.steps.map((step) => step.num_accepted));
    const num_drafts = sum(output.steps.map((step) => step.drafts.length));
    return { ...output, num_accepted, num_rejected: num_drafts - num_accepted };
  },

  verify: ({ p, q, drafts, accept_coins, final_coin }) =>
    verify(fromWire(p), fromWire(q), drafts, accept_coins, final_coin),

  open: () => ({ session: keep(emptyCache(model.config)) }),
  extend: ({ session, tokens }) => ({ rows: toWire(forward(model, tokens, cacheOf(session))) }),
  truncate: ({ session, num_tokens }) => cacheOf(session).truncate(num_tokens),
  fork: ({ session }) => ({ session: keep(cacheOf(session).fork()) }),
  kv_bytes: ({ session }) => ({ num_bytes: cacheOf(session).numBytes() }),
  close({ session }) {
    cacheOf(session);
    sessions.delete(session);
  },

  bye() {},
};

/** The handle of a new session. */
function keep(cache) {
  sessions.set(numOpened, cache);
  return numOpened++;
}

function cacheOf(session) {
  if (!sessions.has(session)) throw new Error(`no session ${session} is open`);
  return sessions.get(session);
}

/** [GEN-1] Greedy decoding: the prompt in one forward, then one token a forward. The last token is never fed. */
function generate(model, prompt, maxTokens, eosIds) {
  checkPrompt(model, prompt, maxTokens);
  const cache = emptyCache(model.config);
  const tokens = [];
  const logprobs = [];
  let fed = prompt;
  let finish_reason = null;
  while (finish_reason === null) {
    const logits = forward(model, fed, cache).at(-1);
    const token = greedy(logits);
    tokens.push(token);
    logprobs.push(logSoftmax(logits)[token]);
    finish_reason = finishReason(model, prompt, tokens, maxTokens, eosIds);
    fed = [token];
  }
  return { tokens, finish_reason, logprobs };
}

/** [GEN-3] Why the output ends with its last token, or null. An eos counts before the limits. */
function finishReason(model, prompt, output, maxTokens, eosIds) {
  if (eosIds.includes(output.at(-1))) return "stop";
  const isFull = prompt.length + output.length >= contextLength(model.config);
  return output.length >= maxTokens || isFull ? "length" : null;
}

function checkPrompt(model, prompt, maxTokens) {
  refuseUnless(maxTokens >= 1, "limit_not_positive", `max_tokens is ${maxTokens}; at least 1 is needed`);
  const room = contextLength(model.config) - prompt.length;
  refuseUnless(room >= 1, "context_exceeded", `a prompt of ${prompt.length} tokens leaves no room in the context`);
}

/** [DEC-1] The most likely token; ties go to the lowest token id. */
function greedy(logits) {
  refuseUnless(!logits.some(Number.isNaN), "not_a_number", "logits hold a NaN, so no token is the most likely");
  return logits.reduce((best, logit, token) => (logit > logits[best] ? token : best), 0);
}

/** [DEC-2] softmax(logits / temperature). */
function distribution(logits, temperature) {
  const isRight = temperature > 0 && temperature < Infinity;
  refuseUnless(isRight, "limit_not_positive", `temperature ${temperature} must be above 0 and finite`);
  return softmax(logits.map((logit) => logit / temperature));
}

/** [DEC-3] The lowest token whose cumulative probability exceeds the coin. */
function draw(p, coin) {
  checkDistribution(p);
  checkCoin(coin);
  let cumulative = 0;
  const token = p.findIndex((probability) => (cumulative += probability) > coin);
  // Where rounding leaves the whole sum at or below the coin, it is the last token that is possible.
  return token >= 0 ? token : p.findLastIndex((probability) => probability > 0);
}

function checkDistribution(p) {
  const isRight = p.every((probability) => probability >= 0) && Math.abs(sum(p) - 1) <= 1e-9;
  refuseUnless(isRight, "not_a_distribution", "probabilities must not be negative and must sum to 1");
}

function checkCoin(coin) {
  refuseUnless(coin >= 0 && coin < 1, "coin_out_of_range", `coin ${coin} is not in [0, 1)`);
}

/** [SPEC-3] One draft-verify step (Leviathan et al. 2023, Algorithm 1); p [gamma + 1, V], q [gamma, V]. */
function verify(p, q, drafts, acceptCoins, finalCoin) {
  checkStep(p, q, drafts, acceptCoins, finalCoin);
  for (const [i, x] of drafts.entries()) {
    // [SPEC-1] Accepted with min(1, p(x) / q(x)); the coin 0 must not accept what the target cannot emit.
    refuseUnless(q[i][x] > 0, "draft_impossible", "a drafted token has draft probability 0");
    if (acceptCoins[i] <= p[i][x] / q[i][x] && p[i][x] > 0) continue;
    return { num_accepted: i, tokens: [...drafts.slice(0, i), draw(residual(p[i], q[i]), finalCoin)] };
  }
  return { num_accepted: drafts.length, tokens: [...drafts, draw(p.at(-1), finalCoin)] };
}

/** [SPEC-2] norm(max(0, p - q)), the law of the token that replaces a rejected draft; p where nothing is left. */
function residual(p, q) {
  const surplus = p.map((probability, x) => Math.max(0, probability - q[x]));
  const mass = sum(surplus);
  return mass > 0 ? surplus.map((probability) => probability / mass) : p;
}

function checkStep(p, q, drafts, acceptCoins, finalCoin) {
  const gamma = drafts.length;
  refuseUnless(gamma >= 1, "limit_not_positive", "at least one draft is needed");
  const V = p[0]?.length;
  const isRight = p.length === gamma + 1 && q.length === gamma && [...p, ...q].every((row) => row.length === V);
  refuseUnless(isRight, "not_a_distribution", `${gamma} drafts need p [${gamma + 1}, V] and q [${gamma}, V]`);
  [...p, ...q].forEach(checkDistribution);
  refuseUnless(acceptCoins.length === gamma, "coin_out_of_range", `${gamma} drafts need ${gamma} accept coins`);
  [...acceptCoins, finalCoin].forEach(checkCoin);
  refuseUnless(drafts.every((x) => x < V), "token_out_of_range", `a draft is not in 0 .. ${V - 1}`);
}

/** [SPEC-9] Greedy decoding of `target` with gamma drafts a step: the tokens are those of plain decoding. */
function speculate(target, draft, prompt, gamma, maxTokens, eosIds) {
  checkPair(target, draft, prompt, gamma, maxTokens);
  const [targetCache, draftCache] = [emptyCache(target.config), emptyCache(draft.config)];
  const output = [];
  const steps = [];
  for (;;) {
    const tokens = [...prompt, ...output];
    // No more drafts than the output can hold beside the token after them.
    const room = Math.min(maxTokens - output.length, contextLength(target.config) - tokens.length);
    const drafts = propose(draft, draftCache, tokens, Math.min(gamma, room - 1));
    const rows = forward(target, [...tokens.slice(targetCache.length), ...drafts], targetCache);
    const emitted = verifyGreedily(rows.slice(-drafts.length - 1), drafts);

    // Rollback: the caches keep all tokens but the last, whose keys and values nobody has computed.
    const numKept = tokens.length + emitted.length - 1;
    targetCache.truncate(numKept);
    draftCache.truncate(Math.min(numKept, draftCache.length));
    const cached = { target_cached: targetCache.length, draft_cached: draftCache.length };
    steps.push({ drafts, num_accepted: emitted.length - 1, tokens: emitted, ...cached });
    for (const token of emitted) {
      output.push(token);
      const finish_reason = finishReason(target, prompt, output, maxTokens, eosIds);
      if (finish_reason !== null) return { tokens: output, finish_reason, steps };
    }
  }
}

/** [SPEC-10] Greedy drafts after `tokens`. The last draft is not fed, so the draft's cache does not hold it. */
function propose(draft, cache, tokens, numDrafts) {
  const drafts = [];
  while (drafts.length < numDrafts) {
    const unseen = [...tokens, ...drafts].slice(cache.length);
    drafts.push(greedy(forward(draft, unseen, cache).at(-1)));
  }
  return drafts;
}

/** [SPEC-4] The target's greedy tokens for as long as the drafts agree, and one more; logits [gamma + 1, V]. */
function verifyGreedily(logits, drafts) {
  const chosen = logits.map(greedy);
  const firstOff = drafts.findIndex((x, i) => x !== chosen[i]);
  return firstOff < 0 ? chosen : chosen.slice(0, firstOff + 1);
}

function checkPair(target, draft, prompt, gamma, maxTokens) {
  checkPrompt(target, prompt, maxTokens);
  refuseUnless(gamma >= 1, "limit_not_positive", `gamma is ${gamma}; at least one draft is needed`);
  const isSameVocabulary = target.config.vocab_size === draft.config.vocab_size;
  refuseUnless(isSameVocabulary, "config_invalid", "vocab_size of target and draft differ");
  const isLongEnough = contextLength(target.config) <= contextLength(draft.config);
  refuseUnless(isLongEnough, "context_exceeded", "the target's context exceeds the draft's");
}

/** [KV-1] Rotated keys and values of a session's tokens, by layer. Entries come and go; an entry is never changed. */
class KVCache {
  constructor(layers) {
    this.layers = layers;
  }

  /** Number of tokens. */
  get length() {
    return this.layers[0].keys.length;
  }

  /** [KV-3] */
  truncate(numTokens) {
    const isRight = numTokens >= 0 && numTokens <= this.length;
    refuseUnless(isRight, "cache_range", `cannot truncate a cache of ${this.length} tokens to ${numTokens}`);
    for (const { keys, values } of this.layers) keys.length = values.length = numTokens;
  }

  /** [KV-4] A cache with the same past; the entries are shared, the lists are its own. */
  fork() {
    return new KVCache(this.layers.map(({ keys, values }) => ({ keys: [...keys], values: [...values] })));
  }

  /** [KV-5] */
  numBytes() {
    return sum(this.layers.flatMap(({ keys, values }) => [...keys, ...values]).map((entry) => entry.byteLength));
  }
}

function emptyCache({ num_hidden_layers: L }) {
  return new KVCache(Array.from({ length: L }, () => ({ keys: [], values: [] })));
}

/** [FWD-1] Logits [T, V] after each new token; the cache [S] becomes one of S + T tokens. */
function forward(model, tokens, cache) {
  const { config, embedding, layers, norm, head } = model;
  const start = cache.length;
  checkTokens(config, tokens, start);
  const rope = frequencies(config, start + tokens.length); // one for the whole chunk: see there
  return tokens.map((token, t) => {
    const rotation = rotationAt(start + t, rope);
    let x = embedding[token];
    for (const [index, layer] of layers.entries()) {
      x = add(x, attention(rmsNorm(x, layer.inputNorm, config), layer, cache.layers[index], rotation, config));
      x = add(x, swiglu(rmsNorm(x, layer.postAttentionNorm, config), layer));
    }
    return linear(rmsNorm(x, norm, config), head);
  });
}

/** [FWD-2] */
function checkTokens(config, tokens, numCached) {
  const { vocab_size: V } = config;
  const numTokens = numCached + tokens.length;
  refuseUnless(tokens.length >= 1, "prompt_empty", "at least one token is needed to compute logits");
  refuseUnless(tokens.every((token) => token >= 0 && token < V), "token_out_of_range", `tokens are 0 .. ${V - 1}`);
  refuseUnless(numTokens <= contextLength(config), "context_exceeded", `${numTokens} tokens exceed the context`);
}

/** [NORM-1] x / sqrt(mean(x * x) + eps) * weight. */
function rmsNorm(x, weight, { rms_norm_eps: eps }) {
  const rms = Math.sqrt(dot(x, x) / x.length + eps);
  return x.map((number, i) => (number / rms) * weight[i]);
}

/**
 * [ATTN-1] [ATTN-2] softmax(q k / sqrt(D)) v per head; query head h reads key-value head h // (H / K). x [E] -> [E].
 * [ATTN-3] needs no mask: tokens come one by one, and each sees what is cached, itself included.
 */
function attention(x, layer, cached, rotation, config) {
  const { num_attention_heads: H, num_key_value_heads: K, head_dim: D } = config;
  const q = rotate(linear(x, layer.q), rotation);
  cached.keys.push(rotate(linear(x, layer.k), rotation));
  cached.values.push(linear(x, layer.v));
  const mixed = new Float64Array(H * D);
  for (let h = 0; h < H; h++) {
    const query = q.subarray(h * D, (h + 1) * D);
    const start = Math.floor(h / (H / K)) * D; // of the key-value head
    const scores = cached.keys.map((key) => dot(query, key.subarray(start, start + D)) / Math.sqrt(D));
    for (const [s, weight] of softmax(scores).entries()) {
      for (let d = 0; d < D; d++) mixed[h * D + d] += weight * cached.values[s][start + d];
    }
  }
  return linear(mixed, layer.o);
}

/** [MLP-1] (silu(x gate) * (x up)) down, x [E] -> [E]. */
function swiglu(x, layer) {
  const up = linear(x, layer.up);
  const gated = linear(x, layer.gate).map((gate, i) => (gate / (1 + Math.exp(-gate))) * up[i]);
  return linear(gated, layer.down);
}

/** Weight [out, in] as the checkpoint stores it, bias [out] or null; x [in] -> [out]. */
function linear(x, { weight, bias }) {
  return Float64Array.from(weight, (row, i) => dot(row, x) + (bias === null ? 0 : bias[i]));
}

function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

const add = (a, b) => a.map((number, i) => number + b[i]);
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const largest = (numbers) => numbers.reduce((a, b) => Math.max(a, b), -Infinity);

function softmax(x) {
  const top = largest(x);
  const weights = x.map((number) => Math.exp(number - top));
  const total = sum(weights);
  return weights.map((weight) => weight / total);
}

function logSoftmax(x) {
  const top = largest(x);
  const logTotal = Math.log(sum(x.map((number) => Math.exp(number - top))));
  return x.map((number) => number - top - logTotal);
}

/** [ROPE-1] Rotates the pair (i, i + D/2) of every head by its angle: the layout of Hugging Face checkpoints. */
function rotate(x, { cosine, sine }) {
  const half = cosine.length;
  return x.map((number, n) => {
    const i = n % half;
    const isFirst = n % (2 * half) < half;
    return isFirst ? number * cosine[i] - x[n + half] * sine[i] : number * cosine[i] + x[n - half] * sine[i];
  });
}

/** [ROPE-2] Cosines and sines [D/2] at a position. */
function rotationAt(position, { perPosition, factor }) {
  return {
    cosine: perPosition.map((frequency) => Math.cos(position * frequency) * factor),
    sine: perPosition.map((frequency) => Math.sin(position * frequency) * factor),
  };
}

/**
 * Radians per position [D/2], and the factor on cosine and sine, once a session holds `numTokens` tokens.
 * Dynamic and longrope depend on that number; keys cached before keep their angles.
 */
function frequencies(config, numTokens) {
  const { rope, head_dim: D, max_position_embeddings: maxPositions } = config;
  const base = baseFrequencies(rope.rope_theta, D);
  switch (rope.rope_type) {
    case "linear":
      return { perPosition: base.map((f) => f / rope.factor), factor: 1 };
    case "dynamic":
      return { perPosition: dynamic(rope, D, maxPositions, numTokens), factor: 1 };
    case "yarn":
      return { perPosition: yarn(rope, D, base), factor: yarnFactor(rope) };
    case "llama3":
      return { perPosition: base.map((f) => llama3(rope, f)), factor: 1 };
    case "longrope":
      return { perPosition: longrope(rope, base, numTokens), factor: longropeFactor(rope, maxPositions) };
    default:
      return { perPosition: base, factor: 1 };
  }
}

/** [ROPE-3] theta ** (-2i / D). */
function baseFrequencies(theta, D) {
  return Array.from({ length: D / 2 }, (_, i) => theta ** ((-2 * i) / D));
}

/** [ROPE-4] theta grows with the session's length beyond the trained context. */
function dynamic(rope, D, trained, numTokens) {
  const growth = (rope.factor * Math.max(numTokens, trained)) / trained - (rope.factor - 1);
  return baseFrequencies(rope.rope_theta * growth ** (D / (D - 2)), D);
}

/** [ROPE-5] Slow pairs are interpolated, fast ones kept, a ramp between. */
function yarn(rope, D, base) {
  const trained = rope.original_max_position_embeddings;
  const pairThatTurns = (times) => (D * Math.log(trained / (times * 2 * Math.PI))) / (2 * Math.log(rope.rope_theta));
  let [low, high] = [pairThatTurns(rope.beta_fast), pairThatTurns(rope.beta_slow)];
  if (rope.truncate) [low, high] = [Math.floor(low), Math.ceil(high)];
  [low, high] = [Math.max(low, 0), Math.min(high, D - 1)];
  if (low === high) high += 0.001;
  const ramp = (i) => Math.min(Math.max((i - low) / (high - low), 0), 1);
  return base.map((f, i) => (f / rope.factor) * ramp(i) + f * (1 - ramp(i)));
}

/** [ROPE-6] */
function yarnFactor({ attention_factor, factor, mscale, mscale_all_dim }) {
  if (attention_factor !== undefined) return attention_factor;
  const scaled = (multiplier) => 0.1 * multiplier * Math.log(factor) + 1;
  return mscale !== undefined && mscale_all_dim !== undefined ? scaled(mscale) / scaled(mscale_all_dim) : scaled(1);
}

/** [ROPE-7] Long wavelengths are stretched, short ones kept, a ramp between; one frequency. */
function llama3({ factor, low_freq_factor: low, high_freq_factor: high, ...rope }, frequency) {
  const turns = rope.original_max_position_embeddings / ((2 * Math.PI) / frequency); // over the trained context
  if (turns > high) return frequency;
  if (turns < low) return frequency / factor;
  const smooth = (turns - low) / (high - low);
  return ((1 - smooth) * frequency) / factor + smooth * frequency;
}

/** [ROPE-8] One divisor per pair, another set beyond the trained context. */
function longrope(rope, base, numTokens) {
  const isLong = numTokens > rope.original_max_position_embeddings;
  const divisors = isLong ? rope.long_factor : rope.short_factor;
  return base.map((f, i) => f / divisors[i]);
}

/** [ROPE-9] */
function longropeFactor(rope, maxPositions) {
  if (rope.attention_factor !== undefined) return rope.attention_factor;
  const scale = rope.factor ?? maxPositions / rope.original_max_position_embeddings;
  return scale <= 1 ? 1 : Math.sqrt(1 + Math.log(scale) / Math.log(rope.original_max_position_embeddings));
}

const SIZES = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"].concat(
  ["num_key_value_heads", "head_dim", "max_position_embeddings"],
);
const DEFAULTS = {
  ...{ max_position_embeddings: 2048, rms_norm_eps: 1e-6 },
  ...{ tie_word_embeddings: false, attention_bias: false, mlp_bias: false },
};
// Fields that say nothing about logits; the protocol tells the eos ids.
const WITHOUT_EFFECT = ["attention_dropout", "bos_token_id", "dtype", "eos_token_id", "initializer_range"].concat(
  ["is_llama_config", "pad_token_id", "pretraining_tp", "torch_dtype", "transformers.js_config"],
  ["transformers_version", "use_cache"],
);
// Fields of related models: accepted only with a value that leaves a Llama unchanged.
const WITH_ONE_VALUE = {
  architectures: [["LlamaForCausalLM"], null],
  hidden_act: ["silu", "swish"],
  model_type: ["llama"],
  partial_rotary_factor: [1, null],
  rope_interleaved: [false],
  sliding_window: [null],
  quantization_config: [null],
};
const ROPE_FIELDS = ["rope_parameters", "rope_scaling", "rope_theta"];
const KNOWN_FIELDS = new Set([...SIZES, ...ROPE_FIELDS, ...Object.keys(DEFAULTS), ...WITHOUT_EFFECT]);

/** A config.json with the defaults of transformers' LlamaConfig. An unknown field could change logits: refused. */
function readConfig(raw) {
  for (const [name, value] of Object.entries(raw)) {
    const allowed = WITH_ONE_VALUE[name];
    const isKnown = allowed?.some((right) => isDeepStrictEqual(value, right)) ?? KNOWN_FIELDS.has(name);
    checkField(isKnown || name.startsWith("_"), name, value, "absent, or what a dense Llama has");
  }
  const given = withoutNulls(raw);
  const { num_attention_heads: H, hidden_size: E } = given;
  const config = { ...DEFAULTS, num_key_value_heads: H, head_dim: E / H, ...given, rope: readRope(given) };
  for (const name of SIZES) {
    const isSize = Number.isInteger(config[name]) && config[name] >= 1;
    checkField(isSize, name, config[name], "a whole number of at least 1");
  }
  const { num_key_value_heads: K, head_dim: D } = config;
  checkField(D % 2 === 0, "head_dim", D, "an even number, since RoPE rotates pairs");
  checkField(H % K === 0, "num_key_value_heads", K, `a divisor of ${H} heads`);
  return config;
}

function checkField(isRight, name, value, right) {
  refuseUnless(isRight, "config_invalid", `config field ${name} is ${JSON.stringify(value)}; it must be ${right}`);
}

const withoutNulls = (object) => Object.fromEntries(Object.entries(object).filter(([, value]) => value !== null));

/** Tokens a session can hold. A dynamic model's max_position_embeddings is what it was trained on. */
function contextLength({ rope, max_position_embeddings: maxPositions }) {
  return rope.rope_type === "dynamic" ? Math.trunc(maxPositions * rope.factor) : maxPositions;
}

// The fields of each rope type: those it needs, and those it may have.
const FIELDS_OF_TYPE = {
  default: [[], []],
  linear: [["factor"], []],
  dynamic: [["factor"], []],
  yarn: [
    ["factor", "original_max_position_embeddings"],
    ["beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"],
  ],
  llama3: [["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"], []],
  longrope: [["short_factor", "long_factor", "original_max_position_embeddings"], ["factor", "attention_factor"]],
};

/** The RoPE parameters in the spelling of transformers 5 or 4; where both are given they must agree. */
function readRope(config) {
  const given = ["rope_parameters", "rope_scaling"].filter((field) => field in config);
  const [rope = readSpelling({}, config), other = rope] = given.map((field) => readSpelling(config[field], config));
  const isOne = isDeepStrictEqual(rope, other);
  checkField(isOne, "rope_scaling", config.rope_scaling, "equal to rope_parameters, or absent");
  return rope;
}

/** One spelling. The theta stands in it or beside it, or is 10000. */
function readSpelling(raw, { rope_theta: beside }) {
  const { type, rope_type = type ?? "default", rope_theta = beside ?? 10000, ...given } = withoutNulls(raw);
  checkField((beside ?? rope_theta) === rope_theta, "rope_theta", beside, `${rope_theta}, or absent`);
  const types = Object.keys(FIELDS_OF_TYPE);
  checkField(types.includes(rope_type), "rope_type", rope_type, types.join(" or "));
  const [required, optional] = FIELDS_OF_TYPE[rope_type];
  for (const name of required) checkField(name in given, name, null, `given for rope type ${rope_type}`);
  for (const [name, value] of Object.entries(given)) {
    const isUsed = required.includes(name) || optional.includes(name);
    checkField(isUsed, name, value, `absent: rope type ${rope_type} does not use it`);
  }
  return { beta_fast: 32, beta_slow: 1, truncate: true, ...given, rope_type, rope_theta };
}

/** A model from a directory with config.json and model.safetensors, or shards with an index. */
function loadModel(directory) {
  const config = readConfig(readJson(join(directory, "config.json"), "config_invalid"));
  const { vocab_size: V, hidden_size: E, tie_word_embeddings: isTied } = config;
  const tensors = readTensors(directory);
  const take = (name, ...shape) => {
    const { shape: held, numbers } = tensors.get(name) ?? {};
    refuseUnless(isDeepStrictEqual(shape, held), "checkpoint_invalid", `tensor ${name} must be there, [${shape}]`);
    tensors.delete(name);
    return shape.length === 1 ? numbers : rowsOf(numbers, shape);
  };
  const embedding = take("model.embed_tokens.weight", V, E);
  const layers = Array.from({ length: config.num_hidden_layers }, (_, index) => readLayer(config, index, take));
  const norm = take("model.norm.weight", E);
  // [HEAD-1] A tied model has one matrix; a checkpoint may hold an equal copy.
  const head = isTied && !tensors.has("lm_head.weight") ? embedding : take("lm_head.weight", V, E);
  refuseUnless(!isTied || isDeepStrictEqual(head, embedding), "checkpoint_invalid", "the head differs from its tie");
  refuseUnless(tensors.size === 0, "checkpoint_invalid", `not part of the model: ${[...tensors.keys()]}`);
  return { config, embedding, layers, norm, head: { weight: head, bias: null } };
}

/** The weights of a layer, each by its name and shape in the checkpoint; projections are [out, in]. */
function readLayer(config, index, take) {
  const { hidden_size: E, intermediate_size: F, head_dim: D, attention_bias, mlp_bias } = config;
  const [HD, KD] = [config.num_attention_heads * D, config.num_key_value_heads * D];
  const place = `model.layers.${index}`;
  const projection = (name, numRows, length, hasBias) => ({
    weight: take(`${place}.${name}_proj.weight`, numRows, length),
    bias: hasBias ? take(`${place}.${name}_proj.bias`, numRows) : null,
  });
  return {
    inputNorm: take(`${place}.input_layernorm.weight`, E),
    q: projection("self_attn.q", HD, E, attention_bias),
    k: projection("self_attn.k", KD, E, attention_bias),
    v: projection("self_attn.v", KD, E, attention_bias),
    o: projection("self_attn.o", E, HD, attention_bias),
    postAttentionNorm: take(`${place}.post_attention_layernorm.weight`, E),
    gate: projection("mlp.gate", F, E, mlp_bias),
    up: projection("mlp.up", F, E, mlp_bias),
    down: projection("mlp.down", E, F, mlp_bias),
  };
}

/** Tensor name -> {shape, numbers} of all files of a checkpoint. */
function readTensors(directory) {
  const single = join(directory, "model.safetensors");
  if (existsSync(single)) return new Map(readSafetensors(single));
  const { weight_map: fileOf } = readJson(join(directory, "model.safetensors.index.json"), "checkpoint_invalid");
  const files = [...new Set(Object.values(fileOf))];
  const isLocal = files.every((file) => basename(file) === file && file.endsWith(".safetensors"));
  refuseUnless(isLocal, "checkpoint_invalid", "shards must be .safetensors files in the same directory");
  return new Map(files.flatMap((file) => readSafetensors(join(directory, file))));
}

// Bytes of a number, and how it is read; every storage type converts to float64 exactly [HEAD-2].
const STORAGE_TYPES = {
  F32: { size: 4, read: (view, offset) => view.getFloat32(offset, true) },
  F16: { size: 2, read: (view, offset) => fromFloat16(view.getUint16(offset, true)) },
  BF16: { size: 2, read: (view, offset) => fromBfloat16(view.getUint16(offset, true)) },
};
const DERIVED_TENSOR = /rotary_emb\.inv_freq$/; // in old checkpoints; the config determines it

/** [name, {shape, numbers}] of every tensor of a file, which is: length of the header, header in JSON, numbers. */
function readSafetensors(path) {
  const file = readFile(path);
  const check = (isWhole) => refuseUnless(isWhole, "checkpoint_invalid", `${path} is not a whole safetensors file`);
  check(file.length >= 8);
  const start = 8 + Number(file.readBigUInt64LE(0));
  check(start <= file.length);
  const { __metadata__, ...header } = parseJson(file.subarray(8, start), "checkpoint_invalid");
  const stored = Object.entries(header).filter(([name]) => !DERIVED_TENSOR.test(name));
  return stored.map(([name, { dtype, shape, data_offsets: [begin, end] }]) => {
    refuseUnless(Object.hasOwn(STORAGE_TYPES, dtype), "checkpoint_invalid", `tensor ${name} has type ${dtype}`);
    const { size, read } = STORAGE_TYPES[dtype];
    const length = shape.reduce((product, axis) => product * axis, 1);
    check(end - begin === length * size && start + end <= file.length);
    const view = new DataView(file.buffer, file.byteOffset + start + begin, end - begin);
    return [name, { shape, numbers: Float64Array.from({ length }, (_, i) => read(view, i * size)) }];
  });
}

/** The upper half of a float32. */
function fromBfloat16(bits) {
  return new Float32Array(Uint32Array.of(bits << 16).buffer)[0];
}

/** IEEE 754 binary16: a sign, 5 bits of exponent, 10 of fraction. */
function fromFloat16(bits) {
  const sign = bits >> 15 === 0 ? 1 : -1;
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1024 + fraction) * 2 ** (exponent - 25);
}

/** The rows of a matrix stored row by row; they share its memory. */
function rowsOf(numbers, [numRows, length]) {
  return Array.from({ length: numRows }, (_, row) => numbers.subarray(row * length, (row + 1) * length));
}

const readFile = (path) => refuseErrors("not_found", () => readFileSync(path));
const readJson = (path, reason) => parseJson(readFile(path), reason);
const parseJson = (bytes, reason) => refuseErrors(reason, () => JSON.parse(String(bytes)));

function refuseErrors(reason, read) {
  try {
    return read();
  } catch (error) {
    throw new Refused(reason, error.message);
  }
}

await main();
