"""The names under which engines are found."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

from reference.conformance.adapters.fast import FastEngine
from reference.engine import Engine, ReferenceEngine
from reference.errors import Refusal, RefusedError


def find_engine(name: str) -> Engine:
    """An engine by name ("spec", "fast", "fast64", "transformers") or as path/to/adapter.py:Class.

    Raises: NOT_FOUND, with the names there are.
    """
    if name in ENGINES:
        return ENGINES[name]()
    path, _, class_name = name.rpartition(":")
    if not path.endswith(".py"):
        known = ", ".join(ENGINES)
        raise RefusedError(Refusal.NOT_FOUND, f"no engine {name!r}; use one of {known}, or path/to/adapter.py:Class")
    return _from_file(Path(path), class_name)


def _from_file(path: Path, class_name: str) -> Engine:
    if not path.is_file():
        raise RefusedError(Refusal.NOT_FOUND, f"no engine file {path}; --engine takes path/to/adapter.py:Class")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever stands in the file, it is no engine
        raise RefusedError(Refusal.NOT_FOUND, f"{path} does not load: {type(error).__name__}: {error}") from error
    engine_class = getattr(module, class_name, None)
    if not isinstance(engine_class, type) or not issubclass(engine_class, Engine):
        sentence = f"{path} has no class {class_name!r} that subclasses reference.engine.Engine"
        raise RefusedError(Refusal.NOT_FOUND, sentence)
    try:
        engine: Engine = engine_class()
        engine.describe()
    except Exception as error:
        sentence = f"{path}: {class_name} does not start and describe itself: {type(error).__name__}: {error}"
        raise RefusedError(Refusal.NOT_FOUND, sentence) from error
    return engine


def _transformers() -> Engine:
    from reference.conformance.adapters.transformers import TransformersEngine

    return TransformersEngine()


ENGINES: Mapping[str, Callable[[], Engine]] = {
    "spec": ReferenceEngine,
    "fast": lambda: FastEngine("float32"),
    "fast64": lambda: FastEngine("float64"),
    "transformers": _transformers,
}
