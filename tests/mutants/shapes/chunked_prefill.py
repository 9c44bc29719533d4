"""Prompts prefilled in chunks, and the new tokens of all sessions in one flat pass, as serving engines have it.

A session makes the positions of its whole prompt beforehand and slices them for each chunk. N is the number of new
tokens of all sessions; the other letters are those of reference.model.transformer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from reference.decoding.generate import FinishReason, StopRule, check_prompt, finish_reason
from reference.decoding.sampling import greedy
from reference.engine import Description, Output, ReferenceEngine
from reference.errors import Array
from reference.model.cache import KVCache, empty_cache
from reference.model.config import ModelConfig, check_tokens
from reference.model.rope import frequencies, rotate
from reference.model.transformer import attention, linear, project, rms_norm, swiglu
from reference.model.weights import Model
from reference.numerics import log_softmax, matmul, sin_cos

CHUNK = 4


class ChunkedPrefillEngine(ReferenceEngine):
    """Scores, and decodes the prompts of a generate together; the other verbs are the specification's."""

    def describe(self) -> Description:
        return replace(super().describe(), name="chunked prefill")

    def score(self, tokens: Sequence[int]) -> Array:
        check_tokens(self.model.config, tokens, 0)
        session = Session(tokens, chunk_of(self.model.config, tokens), empty_cache(self.model.config))
        rows = []
        while session.is_prefilling:
            rows += step(self.model, [session])
        return np.concatenate(rows)

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> list[Output]:
        config, stop = self.model.config, self._stop(max_tokens, eos_ids)
        for prompt in prompts:
            check_prompt(config, prompt, stop)
            check_tokens(config, prompt, 0)
        sessions = [Session(prompt, chunk_of(config, prompt), empty_cache(config)) for prompt in prompts]
        while running := [session for session in sessions if session.reason is None]:
            for session, logits in zip(running, step(self.model, running), strict=True):
                if not session.is_prefilling:
                    session.take(logits[-1], stop)
        return [session.told(logprobs, len(sessions)) for session in sessions]


@dataclass
class Session:
    """A prompt, what came of it, and how many of their tokens have been computed."""

    prompt: Sequence[int]
    chunk: int  # most tokens of the prompt in one pass
    cache: KVCache
    num_seen: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None

    @property
    def is_prefilling(self) -> bool:
        return self.num_seen < len(self.prompt)

    def segment(self) -> Sequence[int]:
        """The tokens of the next pass."""
        if self.is_prefilling:
            return self.prompt[self.num_seen : self.num_seen + self.chunk]
        return self.output[-1:]

    def positions(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The positions of the next pass, one for each token of the segment."""
        if self.is_prefilling:
            prompt_positions = np.arange(len(self.prompt))
            return prompt_positions[self.num_seen : self.num_seen + len(self.segment())]
        return np.array([self.num_seen])

    def advance(self, keys: Array, values: Array) -> None:
        """The segment has been computed; keys and values [L, T, K, D]."""
        self.cache = self.cache.append(keys, values)
        self.num_seen += len(self.segment())

    def take(self, logits: Array, stop: StopRule) -> None:
        """The most likely token of logits [V] is the next one of the output."""
        self.output.append(greedy(logits))
        self.logprobs.append(float(log_softmax(logits)[self.output[-1]]))
        self.reason = finish_reason(len(self.prompt), self.output, stop)

    def told(self, logprobs: bool, batch_size: int) -> Output:
        return Output(tuple(self.output), self.reason, tuple(self.logprobs) if logprobs else None, batch_size)


def chunk_of(config: ModelConfig, prompt: Sequence[int]) -> int:
    """Where angles depend on a session's length, chunks are part of the result, and a prompt is one of them."""
    return len(prompt) if config.rope.rope_type in ("dynamic", "longrope") else CHUNK


def step(model: Model, sessions: Sequence[Session]) -> list[Array]:
    """FWD-1 for the next segment of every session at once: logits [T, V] of each, whose caches take the entries."""
    config, weights = model.config, model.weights
    tokens = np.concatenate([session.segment() for session in sessions]).astype(np.int64)  # [N]
    ends = np.cumsum([len(session.segment()) for session in sessions])[:-1]
    positions = np.concatenate([session.positions() for session in sessions])
    cosine, sine = rotation(config, sessions, positions)
    x = weights.embedding[tokens]  # [N, E]
    entries = []
    for index, layer in enumerate(weights.layers):
        q, k, v = project(rms_norm(x, layer.input_norm, config.rms_norm_eps), layer, config)
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        segments = list(zip(np.split(q, ends), np.split(k, ends), np.split(v, ends), strict=True))
        mixed = [
            attention(
                queries,
                np.concatenate((session.cache.keys[index], keys)),
                np.concatenate((session.cache.values[index], values)),
            )
            for session, (queries, keys, values) in zip(sessions, segments, strict=True)
        ]
        x = x + linear(np.concatenate(mixed), layer.o_proj, layer.o_bias)
        x = x + swiglu(rms_norm(x, layer.post_attention_norm, config.rms_norm_eps), layer)
        entries.append([(keys, values) for _, keys, values in segments])
    for session, layers in zip(sessions, zip(*entries, strict=True), strict=True):
        session.advance(np.stack([keys for keys, _ in layers]), np.stack([values for _, values in layers]))
    logits = matmul(rms_norm(x, weights.norm, config.rms_norm_eps), weights.lm_head)  # [N, V]
    return np.split(logits, ends)


def rotation(config: ModelConfig, sessions: Sequence[Session], positions: Array) -> tuple[Array, Array]:
    """Cosines and sines [N, D/2] of positions [N]; the frequencies are those of each session's own length."""
    rows = []
    for session in sessions:
        frequency, attention_factor = frequencies(config, session.num_seen + len(session.segment()))
        rows.append(np.tile(frequency, (len(session.segment()), 1)))
    sine, cosine = sin_cos(positions[:, None] * np.concatenate(rows))
    return cosine * attention_factor, sine * attention_factor
