"""The verbs an engine answers, and the specification as an engine.

An engine takes token ids and gives token ids and logits; never text, never a seed. It holds one loaded model. Each
verb may raise UnsupportedError(feature) for what the engine does not have, and RefusedError for what it refuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reference.decoding.generate import Generation, StopRule, choose_greedily, generate
from reference.decoding.speculation import SpeculativeGeneration, generate_speculatively
from reference.decoding.verification import Verification, verify
from reference.errors import Array, UnsupportedError
from reference.model.cache import KVCache, empty_cache
from reference.model.checkpoint import load_model
from reference.model.transformer import forward
from reference.model.weights import Model
from reference.serving.cost_model import Crossover, ForwardCost, crossover
from reference.serving.loop import Served, serve
from reference.serving.policies import Limits, Policy, budgeted, continuous, static
from reference.serving.session import Request

Precision = Literal["exact", "f64", "f32"]
"""How far answers may be from the specification's (see conformance/compare.py)."""

POLICIES: Mapping[str, Policy] = {"static": static, "continuous": continuous, "budgeted": budgeted}


@dataclass(frozen=True)
class Description:
    """What an engine says of itself."""

    name: str
    version: str
    precision: Precision


class Engine:
    """An engine under test. Subclass it and override the verbs your engine has; the others are unsupported."""

    def describe(self) -> Description:
        """Name, version and precision class.

        Returns
        -------
        Description
        """
        raise NotImplementedError("an engine must describe itself")

    def load(self, model_dir: Path) -> None:
        """Load a checkpoint (config.json and safetensors); every later verb is about it.

        Parameters
        ----------
        model_dir : Path
            A directory in Hugging Face's layout.
        """
        raise NotImplementedError("an engine must load a model")

    def score(self, tokens: Sequence[int]) -> Array:
        """Teacher-forced logits.

        Parameters
        ----------
        tokens : sequence of int, [T]

        Returns
        -------
        array [T, V]
            Row t holds the logits after tokens[0 .. t].
        """
        raise UnsupportedError("score")

    def generate(self, prompt: Sequence[int], max_tokens: int, eos_ids: Sequence[int]) -> Generation:
        """Greedy decoding up to the first eos id, max_tokens or the model's context length.

        Returns
        -------
        Generation
            The tokens, with the eos that ended them, and "stop" or "length".
        """
        raise UnsupportedError("generate")

    def speculate(
        self, draft_dir: Path, prompt: Sequence[int], gamma: int, max_tokens: int, eos_ids: Sequence[int]
    ) -> SpeculativeGeneration:
        """Greedy decoding of the loaded model with gamma drafts a step from the checkpoint in draft_dir."""
        raise UnsupportedError("speculate")

    def verify(
        self, p: Array, q: Array, drafts: Sequence[int], accept_coins: Sequence[float], final_coin: float
    ) -> Verification:
        """One draft-verify step: p [gamma + 1, V], q [gamma, V], gamma drafts and accept coins."""
        raise UnsupportedError("verify")

    def serve(self, requests: Sequence[Request], policy: str, limits: Limits, max_ticks: int | None = None) -> Served:
        """Serve requests under a named policy ("static", "continuous" or "budgeted"): tokens and trace."""
        raise UnsupportedError("serve")

    def crossover(
        self, batch_size: int, gamma: int, alphas: Sequence[float], target: ForwardCost, draft: ForwardCost
    ) -> Crossover:
        """The cost model of plain and speculative decoding."""
        raise UnsupportedError("crossover")

    def open(self) -> int:
        """A new session without tokens; returns its handle."""
        raise UnsupportedError("sessions")

    def extend(self, session: int, tokens: Sequence[int]) -> Array:
        """Append tokens to a session and return their logits [T, V]."""
        raise UnsupportedError("sessions")

    def truncate(self, session: int, num_tokens: int) -> None:
        """Forget all but the first num_tokens tokens of a session."""
        raise UnsupportedError("truncate")

    def fork(self, session: int) -> int:
        """A new session with the same past; returns its handle."""
        raise UnsupportedError("fork")

    def close(self, session: int) -> None:
        """End a session."""
        raise UnsupportedError("sessions")


class ReferenceEngine(Engine):
    """The specification."""

    def __init__(self) -> None:
        self._models: dict[Path, Model] = {}
        self._sessions: dict[int, KVCache] = {}
        self._model: Model | None = None

    def describe(self) -> Description:
        return Description("specification", "0.1.0", "exact")

    def load(self, model_dir: Path) -> None:
        self._model = self._read(model_dir)
        self._sessions = {}

    def score(self, tokens: Sequence[int]) -> Array:
        logits, _ = forward(self.model, tokens, empty_cache(self.model.config))
        return logits

    def generate(self, prompt: Sequence[int], max_tokens: int, eos_ids: Sequence[int]) -> Generation:
        return generate(self.model, prompt, self._stop(max_tokens, eos_ids), choose_greedily)

    def speculate(
        self, draft_dir: Path, prompt: Sequence[int], gamma: int, max_tokens: int, eos_ids: Sequence[int]
    ) -> SpeculativeGeneration:
        draft = self._read(draft_dir)
        return generate_speculatively(self.model, draft, prompt, self._stop(max_tokens, eos_ids), gamma)

    def verify(
        self, p: Array, q: Array, drafts: Sequence[int], accept_coins: Sequence[float], final_coin: float
    ) -> Verification:
        return verify(p, q, drafts, accept_coins, final_coin)

    def serve(self, requests: Sequence[Request], policy: str, limits: Limits, max_ticks: int | None = None) -> Served:
        return serve(self.model, requests, POLICIES[policy], limits, max_ticks)

    def crossover(
        self, batch_size: int, gamma: int, alphas: Sequence[float], target: ForwardCost, draft: ForwardCost
    ) -> Crossover:
        return crossover(batch_size, gamma, alphas, target, draft)

    def open(self) -> int:
        return self._keep(empty_cache(self.model.config))

    def extend(self, session: int, tokens: Sequence[int]) -> Array:
        logits, self._sessions[session] = forward(self.model, tokens, self._sessions[session])
        return logits

    def truncate(self, session: int, num_tokens: int) -> None:
        self._sessions[session] = self._sessions[session].truncate(num_tokens)

    def fork(self, session: int) -> int:
        return self._keep(self._sessions[session].fork())

    def close(self, session: int) -> None:
        del self._sessions[session]

    @property
    def model(self) -> Model:
        assert self._model is not None, "load comes first"
        return self._model

    def _stop(self, max_tokens: int, eos_ids: Sequence[int]) -> StopRule:
        return StopRule(max_tokens, tuple(eos_ids), self.model.config.context_length)

    def _read(self, model_dir: Path) -> Model:
        if model_dir not in self._models:
            self._models[model_dir] = load_model(model_dir)
        return self._models[model_dir]

    def _keep(self, cache: KVCache) -> int:
        handle = max(self._sessions, default=-1) + 1
        self._sessions[handle] = cache
        return handle
