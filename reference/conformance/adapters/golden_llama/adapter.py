"""The specification and its fast twin behind the worker, like the engines of others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reference.conformance.adapters.fast import FastEngine
from reference.conformance.artifacts import to_plain
from reference.engine import Engine, ReferenceEngine
from reference.serving.cost_model import ForwardCost
from reference.serving.session import Request


class Hosted:
    """An engine of ours with the verbs that it claims, in the values of the protocol."""

    def __init__(self, engine: Engine, precisions: Mapping[str, str]) -> None:
        self._engine, self._precisions = engine, precisions
        for verb in engine.describe().claims:
            if hasattr(Engine, verb):
                setattr(self, verb, getattr(self, f"_{verb}", getattr(engine, verb)))

    def hello(self) -> dict[str, Any]:
        told = self._engine.describe()
        features = [claim for claim in told.claims if not hasattr(Engine, claim)]
        kv_dtype = {4: "float32", 8: "float64"}.get(told.kv_itemsize or 0)
        return {
            "name": told.name,
            "version": told.version,
            "precisions": self._precisions,
            "features": features,
            "choices": {} if kv_dtype is None else {"kv_dtype": kv_dtype},
        }

    def _load(self, model_dir: str) -> None:
        self._engine.load(Path(model_dir))

    def _generate(self, **asked: Any) -> list[dict[str, Any]]:
        return [_told(output) for output in self._engine.generate(**asked)]

    def _speculate(self, draft_dir: str, **asked: Any) -> dict[str, Any]:
        return _told(self._engine.speculate(Path(draft_dir), **asked))

    def _verify(self, **asked: Any) -> Any:
        return to_plain(self._engine.verify(**asked))

    def _serve(self, requests: Any, **asked: Any) -> Any:
        given = [Request(**{**request, "prompt": tuple(request["prompt"])}) for request in requests]
        return to_plain(self._engine.serve(given, **asked))

    def _crossover(self, target: Any, draft: Any, **asked: Any) -> Any:
        return to_plain(self._engine.crossover(target=ForwardCost(**target), draft=ForwardCost(**draft), **asked))


class Specification(Hosted):
    """Every verb, in float64."""

    def __init__(self) -> None:
        super().__init__(ReferenceEngine(), {"float64": "exact"})


class FastTwin(Hosted):
    """The fast twin in float32."""

    def __init__(self) -> None:
        super().__init__(FastEngine("float32"), {"float32": "f32"})


def _told(output: Any) -> dict[str, Any]:
    """What the engine told, without what it did not."""
    return {name: member for name, member in to_plain(output).items() if member is not None}
