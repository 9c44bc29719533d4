"""The verbs an engine answers, and the specification as an engine.

An engine takes token ids and gives token ids and logits; never text, never a seed. It holds one loaded model. Each
verb may raise UnsupportedError(feature) for what the engine does not have, and RefusedError for what it refuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reference.decoding.generate import StopRule, generate
from reference.decoding.sampling import distribution, draw, greedy
from reference.decoding.speculation import Step, generate_speculatively
from reference.decoding.verification import verify
from reference.errors import Array, UnsupportedError
from reference.model.cache import KVCache, empty_cache
from reference.model.checkpoint import load_model
from reference.model.transformer import forward
from reference.model.weights import Model
from reference.numerics import log_softmax
from reference.serving.cost_model import Crossover, ForwardCost, crossover
from reference.serving.loop import Served, serve
from reference.serving.policies import Limits, Policy, budgeted, continuous, static
from reference.serving.session import Request

Precision = Literal["exact", "f64", "f32", "f16", "bf16", "int8"]
"""How far answers may be from the specification's (see conformance/compare.py)."""

Scores = Literal["logits", "logprobs"]

POLICIES: Mapping[str, Policy] = {"static": static, "continuous": continuous, "budgeted": budgeted}

FEATURES = frozenset({"finish_reason", "logprobs"})
"""What the specification tells in an output; other engines may also tell batch sizes and cached tokens."""

NO_CHOICES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Description:
    """What an engine says of itself. A verb or feature that it names, it must not answer with "unsupported"."""

    name: str
    version: str
    precision: Precision
    scores: Scores = "logits"  # what the rows of score and extend are
    claims: frozenset[str] = frozenset()  # verbs and features
    choices: Mapping[str, str] = field(default_factory=lambda: NO_CHOICES)
    kv_itemsize: int | None = None  # bytes of a number in the KV cache


@dataclass(frozen=True)
class Output:
    """What an engine produced for one prompt, and the evidence it gives of how; None where it does not say."""

    tokens: tuple[int, ...]  # with the eos that ended them
    finish_reason: str | None = None
    logprobs: tuple[float, ...] | None = None  # of the tokens, by the distribution before any sampling
    batch_size: int | None = None  # the most sessions in one forward with this one
    cached_tokens: int | None = None  # prompt tokens whose KV came from a cache
    num_accepted: int | None = None  # drafts
    num_rejected: int | None = None
    steps: tuple[Step, ...] | None = None  # of speculation


@dataclass(frozen=True)
class Verified:
    """The tokens of a draft-verify step: `num_accepted` drafts and one more."""

    num_accepted: int
    tokens: tuple[int, ...]


class Engine:
    """An engine under test. Subclass it and override the verbs your engine has; the others are unsupported."""

    def describe(self) -> Description:
        """What the engine says of itself."""
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

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> Sequence[Output]:
        """Greedy decoding up to the first eos id, max_tokens or the model's context length.

        Parameters
        ----------
        prompts : sequence of token ids
            Decoded together, as one batch, by an engine that can.
        logprobs : bool
            Whether to tell the logprobs of the tokens, by an engine that can.

        Returns
        -------
        sequence of Output
            One per prompt: the tokens, with the eos that ended them, and "stop" or "length".
        """
        raise UnsupportedError("generate")

    def sample(self, logits: Array, temperature: float, coin: float) -> int:
        """The token that a coin in [0, 1) draws from logits [V] at a temperature."""
        raise UnsupportedError("sample")

    def speculate(
        self, draft_dir: Path, prompt: Sequence[int], gamma: int, max_tokens: int, eos_ids: Sequence[int]
    ) -> Output:
        """Greedy decoding of the loaded model with gamma drafts a step from the checkpoint in draft_dir."""
        raise UnsupportedError("speculate")

    def verify(
        self, p: Array, q: Array, drafts: Sequence[int], accept_coins: Sequence[float], final_coin: float
    ) -> Verified:
        """One draft-verify step: p [gamma + 1, V], q [gamma, V], gamma drafts and accept coins."""
        raise UnsupportedError("verify")

    def serve(
        self, requests: Sequence[Request], policy: str, limits: Mapping[str, Any], max_ticks: int | None = None
    ) -> Served:
        """Serve requests under a named policy ("static", "continuous" or "budgeted"): tokens and trace.

        `limits` has the fields of serving.policies.Limits; to refuse bad ones is part of the engine's work.
        """
        raise UnsupportedError("serve")

    def crossover(
        self, batch_size: int, gamma: int, alphas: Sequence[float], target: ForwardCost, draft: ForwardCost
    ) -> Crossover:
        """The cost model of plain and speculative decoding."""
        raise UnsupportedError("crossover")

    def open(self) -> int:
        """A new session without tokens; returns its handle."""
        raise UnsupportedError("open")

    def extend(self, session: int, tokens: Sequence[int]) -> Array:
        """Append tokens to a session and return their logits [T, V]."""
        raise UnsupportedError("extend")

    def truncate(self, session: int, num_tokens: int) -> None:
        """Forget all but the first num_tokens tokens of a session."""
        raise UnsupportedError("truncate")

    def fork(self, session: int) -> int:
        """A new session with the same past; returns its handle."""
        raise UnsupportedError("fork")

    def kv_bytes(self, session: int) -> int:
        """Bytes of the keys and values of a session's tokens, without what is reserved for more."""
        raise UnsupportedError("kv_bytes")

    def close(self, session: int) -> None:
        """End a session."""
        raise UnsupportedError("close")

    def bye(self) -> None:
        """The engine is needed no more."""


def verbs_of(engine_class: type[Engine]) -> frozenset[str]:
    """The verbs that a class of engines overrides."""
    return frozenset(
        name
        for name, member in vars(Engine).items()
        if callable(member) and not name.startswith("_") and getattr(engine_class, name) is not member
    )


class ReferenceEngine(Engine):
    """The specification."""

    def __init__(self) -> None:
        self._models: dict[Path, Model] = {}
        self._sessions: dict[int, KVCache] = {}
        self._model: Model | None = None

    def describe(self) -> Description:
        return Description(
            "specification", "0.1.0", "exact", claims=verbs_of(ReferenceEngine) | FEATURES, kv_itemsize=8
        )

    def load(self, model_dir: Path) -> None:
        self._model = self._read(model_dir)
        self._sessions = {}

    def score(self, tokens: Sequence[int]) -> Array:
        logits, _ = forward(self.model, tokens, empty_cache(self.model.config))
        return logits

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> list[Output]:
        stop = self._stop(max_tokens, eos_ids)
        outputs = []
        for prompt in prompts:
            told: list[float] = []

            def choose(logits: Array, _index: int, told: list[float] = told) -> int:
                token = greedy(logits)
                told.append(float(log_softmax(logits)[token]))
                return token

            output = generate(self.model, prompt, stop, choose)
            outputs.append(Output(output.tokens, output.finish_reason, tuple(told) if logprobs else None))
        return outputs

    def sample(self, logits: Array, temperature: float, coin: float) -> int:
        return draw(distribution(logits, temperature), coin)

    def speculate(
        self, draft_dir: Path, prompt: Sequence[int], gamma: int, max_tokens: int, eos_ids: Sequence[int]
    ) -> Output:
        stop = self._stop(max_tokens, eos_ids)
        output = generate_speculatively(self.model, self._read(draft_dir), prompt, stop, gamma)
        num_accepted = sum(step.num_accepted for step in output.steps)
        num_rejected = sum(len(step.drafts) for step in output.steps) - num_accepted
        return Output(
            output.tokens,
            output.finish_reason,
            num_accepted=num_accepted,
            num_rejected=num_rejected,
            steps=output.steps,
        )

    def verify(
        self, p: Array, q: Array, drafts: Sequence[int], accept_coins: Sequence[float], final_coin: float
    ) -> Verified:
        step = verify(p, q, drafts, accept_coins, final_coin)
        return Verified(step.num_accepted, step.tokens)

    def serve(
        self, requests: Sequence[Request], policy: str, limits: Mapping[str, Any], max_ticks: int | None = None
    ) -> Served:
        return serve(self.model, requests, POLICIES[policy], Limits(**limits), max_ticks)

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

    def kv_bytes(self, session: int) -> int:
        return self._sessions[session].nbytes(8)

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
