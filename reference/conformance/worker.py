"""Hosts an adapter in the engine's own environment and speaks the protocol (docs/protocol.md) on stdin and stdout.

    python worker.py path/to/adapter.py:Class

Stands alone: the standard library and numpy. Every request calls the method of the adapter that is named like its
verb; a verb without a method is unsupported. What the adapter raises decides the kind of the answer:
NotImplementedError("feature") is unsupported, an exception with a `reason` is refused, any other is an error.
File descriptor 1 is duplicated for the protocol and then points to stderr, so what a library prints does no harm.
"""

import base64
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

PROTOCOL = 1
SESSIONS = ("open", "extend", "truncate", "fork", "close")
VERBS = ("load", "score", "generate", "sample", "speculate", "verify", "serve", "crossover", *SESSIONS, "kv_bytes")
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
TRACEBACK_LINES = 12


def main() -> int:
    """Runs until "bye" or the end of stdin. Exit status 0, or 2 if the adapter does not load."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        adapter = find_adapter(sys.argv[1])
    except Exception as error:
        traceback.print_exc()
        print(f"worker: no adapter {sys.argv[1:]}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    serve(adapter, sys.stdin.buffer, channel)
    return 0


def find_adapter(name: str) -> Any:
    """An instance of the class named by path/to/adapter.py:Class."""
    path, _, class_name = name.rpartition(":")
    sys.path.insert(0, str(Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_adapter", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{path} is not a Python file; give path/to/adapter.py:Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, class_name)()


def serve(adapter: Any, requests: BinaryIO, answers: BinaryIO) -> None:
    """One line of `answers` for every line of `requests`."""
    for line in requests:
        request = json.loads(line)
        answer = answer_to(adapter, request["verb"], request.get("args", {}))
        answers.write(b'{"seq":%d,%s\n' % (request["seq"], answer[1:]))
        answers.flush()
        if request["verb"] == "bye":
            return


def answer_to(adapter: Any, verb: str, args: Mapping[str, Any]) -> bytes:
    """A JSON object with exactly one of result, unsupported, refused, error."""
    try:
        answered = call(adapter, verb, from_wire(args))
        return to_json({"result": {} if answered is None else to_wire(answered)})
    except NotImplementedError as error:
        return to_json({"unsupported": {"feature": str(error) or verb}})
    except Exception as error:
        reason = getattr(error, "reason", None)
        if isinstance(reason, str):
            return to_json({"refused": {"reason": str(reason), "message": str(error)}})
        traceback.print_exc(limit=-TRACEBACK_LINES)
        return to_json({"error": {"type": type(error).__name__, "message": str(error)}})


def to_json(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()


def call(adapter: Any, verb: str, args: dict[str, Any]) -> Any:
    """The adapter's method, with its answer in the shape of the verb's result."""
    if verb == "hello":
        verbs = [name for name in VERBS if hasattr(adapter, name)]
        return {"protocol": PROTOCOL, "verbs": verbs, "choices": {}, "features": [], **adapter.hello()}
    if verb == "bye":
        getattr(adapter, "bye", lambda: None)()
        return {}
    method: Callable[..., Any] | None = getattr(adapter, verb, None)
    if verb not in VERBS or method is None:
        raise NotImplementedError(verb)
    answered = method(**{name: value for name, value in args.items() if takes(method, name)})
    name = RESULT_NAMES.get(verb)
    return answered if name is None else {name: answered}


def takes(method: Callable[..., Any], name: str) -> bool:
    """Whether a method has an argument of this name; what an adapter does not need it may leave out."""
    parameters = inspect.signature(method).parameters
    return name in parameters or any(known.kind is known.VAR_KEYWORD for known in parameters.values())


RESULT_NAMES = {
    "score": "rows",
    "generate": "outputs",
    "sample": "token",
    "open": "session",
    "extend": "rows",
    "fork": "session",
    "kv_bytes": "num_bytes",
}
"""Verbs whose Python answer is one value: its name on the wire. The others answer a mapping, or nothing."""


def to_wire(value: Any) -> Any:
    """numpy arrays of floats as base64, other values as JSON; NaN and infinities as strings."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        dtype = "float64" if value.dtype == np.float64 else "float32"
        little_endian = value.astype("<f8" if dtype == "float64" else "<f4").tobytes()
        return {"dtype": dtype, "shape": list(value.shape), "base64": base64.b64encode(little_endian).decode()}
    if isinstance(value, Mapping):
        return {str(name): to_wire(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [to_wire(member) for member in value]
    if isinstance(value, np.ndarray | np.generic):
        return to_wire(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def from_wire(value: Any) -> Any:
    """The other direction: arrays become numpy arrays, and the three strings floats."""
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "base64"}:
        dtype = {"float64": "<f8", "float32": "<f4"}[value["dtype"]]
        return np.frombuffer(base64.b64decode(value["base64"]), dtype).reshape(value["shape"])
    if isinstance(value, dict):
        return {name: from_wire(member) for name, member in value.items()}
    if isinstance(value, list):
        return [from_wire(member) for member in value]
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value


if __name__ == "__main__":
    sys.exit(main())
