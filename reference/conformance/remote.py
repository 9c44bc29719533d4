"""An engine in a process of its own, asked in JSON lines (docs/protocol.md). Both directions are validated."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from reference.conformance.artifacts import schema_part, to_plain
from reference.conformance.channel import Channel, HarnessError
from reference.conformance.worker import PROTOCOL, from_wire, to_wire
from reference.decoding.speculation import Step
from reference.engine import Description, Engine, Output, Verified
from reference.errors import Array, Refusal, RefusedError, UnsupportedError
from reference.serving.cost_model import Crossover, ForwardCost
from reference.serving.loop import Served
from reference.serving.session import Request, Tick

ANSWER_S, LOAD_S = 60.0, 300.0
"""Time limits in seconds: of hello and load, which import and read, and of every other verb."""

ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
LINES_SHOWN = 6

UNLIMITED: Mapping[str, Any] = {
    "prefill_token_budget": None,
    "scratch_units": None,
    "kv_budget_bytes": None,
    "kv_bytes_per_token": 1,
    "kv_pressure": "queue",
}
"""Limits that a question does not state; on the wire all are stated."""


class EngineError(Exception):
    """The engine answered "error": its own failure, and so its answer."""


class RemoteEngine(Engine):
    """A process that speaks the protocol. It is started by describe, and after a failure by the next load."""

    def __init__(self, command: Sequence[str], dtype: str, limit_s: float = ANSWER_S) -> None:
        self._command, self._dtype = list(command), dtype
        self._limit_s = limit_s
        self._channel: Channel | None = None
        self._hello: Mapping[str, Any] = {}
        self._loaded: Path | None = None
        self._seq = 0

    def describe(self) -> Description:
        if self._channel is None and not self._hello:
            try:
                self._start()
            except (HarnessError, EngineError, UnsupportedError) as error:
                sentence = f"{' '.join(self._command)} does not greet: {error}; see docs/protocol.md"
                raise RefusedError(Refusal.NOT_FOUND, sentence) from error
        hello = self._hello
        kv_dtype = hello["choices"].get("kv_dtype", self._dtype)
        return Description(
            hello["name"],
            hello["version"],
            hello["precisions"][self._dtype],
            hello.get("scores") or "logits",
            frozenset([*hello["verbs"], *hello["features"]]),
            hello["choices"],
            ITEMSIZE.get(kv_dtype),
        )

    def load(self, model_dir: Path) -> None:
        if model_dir != self._loaded:
            self._loaded = None
            self._ask("load", {"model_dir": str(model_dir.resolve()), "dtype": self._dtype})
            self._loaded = model_dir

    def forget(self) -> None:
        """Lets the next load read the checkpoint anew, also if it is the one that is loaded."""
        self._loaded = None

    def score(self, tokens: Sequence[int]) -> Array:
        return _rows(self._ask("score", {"tokens": tokens}))

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> list[Output]:
        asked = {"prompts": prompts, "max_tokens": max_tokens, "eos_ids": eos_ids, "logprobs": logprobs}
        outputs = self._ask("generate", asked)["outputs"]
        if len(outputs) != len(prompts):
            raise EngineError(f"{len(outputs)} outputs for {len(prompts)} prompts")
        return [_output(output) for output in outputs]

    def sample(self, logits: Array, temperature: float, coin: float) -> int:
        return int(self._ask("sample", {"logits": logits, "temperature": temperature, "coin": coin})["token"])

    def speculate(
        self, draft_dir: Path, prompt: Sequence[int], gamma: int, max_tokens: int, eos_ids: Sequence[int]
    ) -> Output:
        asked = {"draft_dir": str(draft_dir.resolve()), "prompt": prompt, "gamma": gamma}
        return _output(self._ask("speculate", {**asked, "max_tokens": max_tokens, "eos_ids": eos_ids}))

    def verify(
        self, p: Array, q: Array, drafts: Sequence[int], accept_coins: Sequence[float], final_coin: float
    ) -> Verified:
        asked = {"p": p, "q": q, "drafts": drafts, "accept_coins": accept_coins, "final_coin": final_coin}
        answered = self._ask("verify", asked)
        return Verified(answered["num_accepted"], tuple(answered["tokens"]))

    def serve(
        self, requests: Sequence[Request], policy: str, limits: Mapping[str, Any], max_ticks: int | None = None
    ) -> Served:
        stated = {**UNLIMITED, **limits}
        asked = {"requests": requests, "policy": policy, "limits": stated, "max_ticks": max_ticks}
        answered = self._ask("serve", asked)
        tokens = {name: tuple(output) for name, output in answered["tokens"].items()}
        return Served(tuple(Tick(**_tuples(row)) for row in answered["trace"]), tokens)

    def crossover(
        self, batch_size: int, gamma: int, alphas: Sequence[float], target: ForwardCost, draft: ForwardCost
    ) -> Crossover:
        asked = {"batch_size": batch_size, "gamma": gamma, "alphas": alphas, "target": target, "draft": draft}
        return Crossover(**_tuples(self._ask("crossover", asked)))

    def open(self) -> int:
        return int(self._ask("open", {})["session"])

    def extend(self, session: int, tokens: Sequence[int]) -> Array:
        return _rows(self._ask("extend", {"session": session, "tokens": tokens}))

    def truncate(self, session: int, num_tokens: int) -> None:
        self._ask("truncate", {"session": session, "num_tokens": num_tokens})

    def fork(self, session: int) -> int:
        return int(self._ask("fork", {"session": session})["session"])

    def kv_bytes(self, session: int) -> int:
        return int(self._ask("kv_bytes", {"session": session})["num_bytes"])

    def close(self, session: int) -> None:
        self._ask("close", {"session": session})

    def bye(self) -> None:
        if self._channel is not None:
            self._seq += 1
            self._channel.close(json.dumps({"seq": self._seq, "verb": "bye", "args": {}}).encode() + b"\n")
            self._channel = None

    def _start(self) -> None:
        """Starts the process and greets it. Raises: HarnessError, USAGE for a dtype it lacks."""
        self._channel, self._loaded = Channel(self._command), None
        hello = self._ask("hello", {"protocol": PROTOCOL})
        if self._dtype not in hello["precisions"]:
            self.bye()
            known = ", ".join(hello["precisions"])
            raise RefusedError(Refusal.USAGE, f"{hello['name']} has no dtype {self._dtype}; --dtype takes {known}")
        self._hello = hello

    def _ask(self, verb: str, args: Mapping[str, Any]) -> Any:
        """The result of a verb. After a broken protocol the process is ended: what it says next means nothing."""
        if self._channel is None:
            self._start()
        assert self._channel is not None
        self._seq += 1
        request = {"seq": self._seq, "verb": verb, "args": to_wire(to_sendable(args))}
        broken = _broken(f"{verb}_args", request["args"])
        if broken is not None:
            raise HarnessError(f"the question breaks schemas/protocol.schema.json: {broken}")
        limit_s = max(LOAD_S, self._limit_s) if verb in ("hello", "load") else self._limit_s
        try:
            line = self._channel.ask(json.dumps(request, separators=(",", ":")).encode(), limit_s)
            answer = self._check(verb, line)
        except HarnessError as error:
            self._channel.close()
            words = "\n".join(self._channel.last_words().splitlines()[-LINES_SHOWN:])
            self._channel = self._loaded = None
            raise type(error)(f"{verb}: {error}" + (f"; its stderr ends: {words}" if words else "")) from None
        return self._result(verb, answer)

    def _check(self, verb: str, line: bytes) -> dict[str, Any]:
        """The answer, if it is JSON, answers this request and keeps the schema. Raises: HarnessError."""
        try:
            answer = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            shown = line[:80].decode(errors="replace")
            raise HarnessError(f"the answer {shown!r} is not JSON ({error}); only answers belong on stdout") from None
        if isinstance(answer, dict) and answer.get("seq") != self._seq:
            raise HarnessError(f"the answer has seq {answer.get('seq')!r}, expected {self._seq}")
        broken = _broken("answer", answer)
        if broken is None and "result" in answer:
            broken = _broken(f"{verb}_result", answer["result"])
        if broken is not None:
            raise HarnessError(f"the answer breaks schemas/protocol.schema.json: {broken}")
        assert isinstance(answer, dict)
        return answer

    def _result(self, verb: str, answer: Mapping[str, Any]) -> Any:
        match answer:
            case {"result": result}:
                try:
                    return from_wire(result)
                except ValueError as error:
                    raise EngineError(f"{verb}: an array does not have the bytes of its shape: {error}") from None
            case {"unsupported": {"feature": feature}}:
                raise UnsupportedError(feature)
            case {"refused": {"reason": reason} as refused}:
                raise RefusedError(Refusal(reason), refused.get("message", ""))
        failure = answer["error"]
        raise EngineError(f"{failure['type']}: {failure['message']}")


def to_sendable(value: Any) -> Any:
    """Dataclasses, tuples and enums as JSON has them; arrays stay arrays."""
    if isinstance(value, Mapping):
        return {name: to_sendable(member) for name, member in value.items()}
    return value if isinstance(value, np.ndarray) else to_plain(value)


def _broken(part: str, value: Any) -> str | None:
    """Where and how a value breaks a part of the protocol's schema, or None."""
    error = jsonschema.exceptions.best_match(_validator(part).iter_errors(value))
    return None if error is None else f"at {error.json_path}: {textwrap.shorten(error.message, 200)}"


@cache
def _validator(part: str) -> Any:
    return schema_part("protocol", part)


def _rows(result: Mapping[str, Any]) -> Array:
    rows = np.asarray(result["rows"], dtype=np.float64)
    if rows.ndim != 2:
        raise EngineError(f"rows have the shape {list(rows.shape)}; [tokens, vocabulary] is needed")
    return rows


def _output(output: Mapping[str, Any]) -> Output:
    steps = output.get("steps")
    told = output.get("logprobs")
    return Output(
        tuple(output["tokens"]),
        output.get("finish_reason"),
        None if told is None else tuple(float(number) for number in told),
        output.get("batch_size"),
        output.get("cached_tokens"),
        output.get("num_accepted"),
        output.get("num_rejected"),
        None if steps is None else tuple(Step(**_tuples(step)) for step in steps),
    )


def _tuples(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(member) if isinstance(member, list) else member for name, member in members.items()}


def _refuse_constant(name: str) -> None:
    raise ValueError(f'{name} is not JSON; write it as the string "{name}"')
