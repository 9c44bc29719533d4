"""The fast twin as an engine: judged by the goldens like any other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from reference.decoding.generate import Generation, StopRule, check_prompt, finish_reason
from reference.decoding.sampling import greedy
from reference.engine import Description, Engine
from reference.errors import Array
from reference.fast.model import FastModel
from reference.fast.session import FastSession


class FastEngine(Engine):
    """The verbs that ask for logits, tokens and sessions; scheduling and verification have no fast twin."""

    def __init__(self, dtype: Literal["float32", "float64"]) -> None:
        self._dtype = dtype
        self._sessions: dict[int, FastSession] = {}
        self._model: FastModel | None = None

    def describe(self) -> Description:
        return Description(f"fast twin ({self._dtype})", "0.1.0", "f32" if self._dtype == "float32" else "f64")

    def load(self, model_dir: Path) -> None:
        self._model = FastModel.load(model_dir, self._dtype)
        self._sessions = {}

    def score(self, tokens: Sequence[int]) -> Array:
        return self.model.forward([(self.model.open(), tokens)])[0]

    def generate(self, prompt: Sequence[int], max_tokens: int, eos_ids: Sequence[int]) -> Generation:
        stop = StopRule(max_tokens, tuple(eos_ids), self.model.config.context_length)
        check_prompt(self.model.config, prompt, stop)
        session, output, reason = self.model.open(), list[int](), None
        new_tokens = list(prompt)
        while reason is None:
            logits = self.model.forward([(session, new_tokens)], logits="last")[0]
            new_tokens = [greedy(logits[-1])]
            output += new_tokens
            reason = finish_reason(len(prompt), output, stop)
        return Generation(tuple(output), reason)

    def open(self) -> int:
        return self._keep(self.model.open())

    def extend(self, session: int, tokens: Sequence[int]) -> Array:
        return self.model.forward([(self._sessions[session], tokens)])[0]

    def truncate(self, session: int, num_tokens: int) -> None:
        self._sessions[session].truncate(num_tokens)

    def fork(self, session: int) -> int:
        return self._keep(self._sessions[session].fork())

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
