"""A running inference server as an engine: greedy completions of token ids over HTTP (docs/http.md)."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from reference.conformance.channel import HarnessError
from reference.conformance.http_channel import HttpChannel, NoConnectionError
from reference.conformance.http_dialects import DIALECTS
from reference.conformance.remote import ANSWER_S, EngineError
from reference.engine import Description, Engine, Output, Precision, verbs_of
from reference.errors import Refusal, RefusedError, UnsupportedError
from reference.model.checkpoint import load_config

PRECISIONS: Mapping[str, Precision] = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "int8",
}
"""What a server that computes in a dtype claims; it tells neither."""

NOT_TOLD = "(version not told)"


class HttpEngine(Engine):
    """A server with one checkpoint, fixed at its start. It offers `generate`, a request a prompt.

    Parameters
    ----------
    url : str
        http[s]://host[:port][/path]; the dialect's endpoint is below it.
    dialect : str
        One of DIALECTS.
    limit_s : float
        Time limit of an answer in seconds, connecting included.
    dtype : str
        What the server computes in, as it was started; decides the tolerance class.
    served_model : Path
        The checkpoint it was started with. Servers tell a name of their own choice, so it is asked of the user.

    Raises: USAGE for any of these that does not exist, NOT_FOUND for a checkpoint that is not there.
    """

    def __init__(
        self,
        url: str,
        dialect: str,
        limit_s: float = ANSWER_S,
        *,
        dtype: str = "float32",
        served_model: Path | None = None,
    ) -> None:
        self._channel = HttpChannel(url, limit_s)
        if dialect not in DIALECTS:
            raise RefusedError(Refusal.USAGE, f"no dialect {dialect!r}; --dialect takes {', '.join(DIALECTS)}")
        if dtype not in PRECISIONS:
            raise RefusedError(Refusal.USAGE, f"no dtype {dtype!r}; --dtype takes {', '.join(PRECISIONS)}")
        if served_model is None:
            sentence = "a server has one checkpoint, fixed at its start; name its directory with --served-model DIR"
            raise RefusedError(Refusal.USAGE, sentence)
        self._name, self._dialect, self._dtype = dialect, DIALECTS[dialect], dtype
        self._served = served_model.resolve()
        self._own_eos_ids = frozenset(load_config(self._served).eos_token_ids)
        self._version: str | None = None

    def describe(self) -> Description:
        """What is known of the server, which is greeted the first time. Raises: NOT_FOUND where none answers."""
        if self._version is None:
            self._version = self._greet()
        choices = {
            "dialect": self._name,
            "url": self._channel.url,
            "checkpoint": self._served.name,
            "dtype": f"{self._dtype}, as --dtype says",
            "eos": f"ends at the ids: {self._dialect.eos}",
            "logprobs": self._dialect.logprobs,
        }
        return Description(
            f"{self._name} over HTTP",
            self._version,
            PRECISIONS[self._dtype],
            claims=verbs_of(HttpEngine) | self._dialect.features,
            choices=choices,
        )

    def load(self, model_dir: Path) -> None:
        """Nothing for the checkpoint that is served. Raises: UnsupportedError for any other."""
        if model_dir.resolve() != self._served:
            raise UnsupportedError("checkpoint other than the served one")

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> list[Output]:
        """One after the other: no answer gives evidence of a batch, so there is nothing to gain from one."""
        self._refuse_eos(eos_ids)
        outputs = [self._complete(prompt, max_tokens, eos_ids) for prompt in prompts]
        if logprobs and "logprobs" in self._dialect.features:
            return outputs
        return [replace(output, logprobs=None) for output in outputs]

    def _complete(self, prompt: Sequence[int], max_tokens: int, eos_ids: Sequence[int]) -> Output:
        question = self._dialect.question(self._served.name, prompt, max_tokens, eos_ids)
        answer = self._channel.ask(self._dialect.path, question)
        try:
            return self._dialect.output(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            sentence = f"the answer is not of the form of {self._name}: {type(error).__name__}: {error}"
            raise HarnessError(sentence) from None

    def _refuse_eos(self, eos_ids: Sequence[int]) -> None:
        """Raises: UnsupportedError where an output would end at other ids than those asked for."""
        match self._dialect.eos:
            case "its own":
                is_possible = frozenset(eos_ids) == self._own_eos_ids
            case "asked and its own":
                is_possible = not eos_ids or self._own_eos_ids <= frozenset(eos_ids)
            case "asked":
                is_possible = True
        if not is_possible:
            raise UnsupportedError("eos ids of a request other than those of the checkpoint")

    def _greet(self) -> str:
        """The version, where the server tells it."""
        path, member = self._dialect.version or ("/v1/models", "")
        try:
            answer = self._channel.ask(path)
        except NoConnectionError as error:
            raise RefusedError(Refusal.NOT_FOUND, f"{error}; start the server, or correct --engine") from error
        except (HarnessError, EngineError):
            return NOT_TOLD
        told = answer.get(member) if isinstance(answer, dict) else None
        return textwrap.shorten(told, 60) if isinstance(told, str) else NOT_TOLD
