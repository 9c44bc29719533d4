"""The fast twin as an engine: judged by the goldens like any other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from reference.decoding.generate import FinishReason, StopRule, check_prompt, finish_reason
from reference.engine import Description, Engine, Output, Precision, verbs_of
from reference.errors import Array
from reference.fast.model import FastModel
from reference.fast.session import FastSession


@dataclass
class _Row:
    """A prompt being decoded."""

    session: FastSession
    pending: list[int]  # tokens the session has not seen
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    batch_size: int = 0

    def append(self, logits: Array, stop: StopRule, batch_size: int) -> None:
        """The most likely token; logits [V]."""
        token, num_known = int(logits.argmax()), len(self.session)
        self.logprobs.append(float(logits[token] - np.logaddexp.reduce(logits)))
        self.tokens.append(token)
        self.reason = finish_reason(num_known - len(self.tokens) + 1, self.tokens, stop)
        self.pending, self.batch_size = [token], max(self.batch_size, batch_size)

    def output(self, logprobs: bool) -> Output:
        told = tuple(self.logprobs) if logprobs else None
        return Output(tuple(self.tokens), self.reason, told, self.batch_size)


class FastEngine(Engine):
    """The verbs that ask for logits, tokens and sessions; scheduling and verification have no fast twin."""

    def __init__(self, dtype: Literal["float32", "float64"]) -> None:
        self._dtype = dtype
        self._sessions: dict[int, FastSession] = {}
        self._model: FastModel | None = None

    def describe(self) -> Description:
        claims = verbs_of(FastEngine) | {"finish_reason", "batch", "logprobs"}
        precision: Precision = "f32" if self._dtype == "float32" else "f64"
        itemsize = np.dtype(self._dtype).itemsize
        return Description(f"fast twin ({self._dtype})", "0.1.0", precision, claims=claims, kv_itemsize=itemsize)

    def load(self, model_dir: Path) -> None:
        self._model = FastModel.load(model_dir, self._dtype)
        self._sessions = {}

    def score(self, tokens: Sequence[int]) -> Array:
        return self.model.forward([(self.model.open(), tokens)])[0]

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> list[Output]:
        """All prompts as one batch, each row until its own end."""
        stop = StopRule(max_tokens, tuple(eos_ids), self.model.config.context_length)
        for prompt in prompts:
            check_prompt(self.model.config, prompt, stop)
        rows = [_Row(self.model.open(), list(prompt)) for prompt in prompts]
        while running := [row for row in rows if row.reason is None]:
            logits = self.model.forward([(row.session, row.pending) for row in running], logits="last")
            for row, scores in zip(running, logits, strict=True):
                row.append(scores[-1], stop, len(running))
        return [row.output(logprobs) for row in rows]

    def open(self) -> int:
        return self._keep(self.model.open())

    def extend(self, session: int, tokens: Sequence[int]) -> Array:
        return self.model.forward([(self._sessions[session], tokens)])[0]

    def truncate(self, session: int, num_tokens: int) -> None:
        self._sessions[session].truncate(num_tokens)

    def fork(self, session: int) -> int:
        return self._keep(self._sessions[session].fork())

    def kv_bytes(self, session: int) -> int:
        return self._sessions[session].nbytes

    def close(self, session: int) -> None:
        del self._sessions[session]

    @property
    def model(self) -> FastModel:
        assert self._model is not None, "load comes first"
        return self._model

    def _keep(self, session: FastSession) -> int:
        handle = max(self._sessions, default=-1) + 1
        self._sessions[handle] = session
        return handle
