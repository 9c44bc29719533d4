"""The names under which engines are found: ours in this process, all others behind the protocol or HTTP."""

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from reference.conformance.adapters.fast import FastEngine
from reference.conformance.artifacts import ROOT
from reference.conformance.remote import ANSWER_S, RemoteEngine
from reference.engine import Engine, ReferenceEngine
from reference.errors import Refusal, RefusedError

ADAPTERS = Path(__file__).parent / "adapters"
WORKER = Path(__file__).parent / "worker.py"
VENVS = ROOT / ".venvs"


@dataclass(frozen=True)
class Hosted:
    """An adapter of ours: its folder below adapters/, its class, and the dtype to load."""

    folder: str
    class_name: str
    dtype: str = "float32"

    @property
    def adapter(self) -> Path:
        return ADAPTERS / self.folder / "adapter.py"

    @property
    def python(self) -> str:
        """The interpreter of the engine's own environment if there is one, else ours."""
        own = VENVS / self.folder / "bin" / "python"
        return str(own) if own.exists() else sys.executable


IN_PROCESS: Mapping[str, Callable[[], Engine]] = {
    "spec": ReferenceEngine,
    "fast": lambda: FastEngine("float32"),
    "fast64": lambda: FastEngine("float64"),
}

HOSTED: Mapping[str, Hosted] = {
    "hosted-spec": Hosted("golden_llama", "Specification", "float64"),
    "hosted-fast": Hosted("golden_llama", "FastTwin"),
    "transformers": Hosted("transformers_hf", "Llama"),
    "transformers-eager": Hosted("transformers_hf", "LlamaEager"),
    "transformers-static": Hosted("transformers_hf", "LlamaStatic"),
    "llama.cpp": Hosted("llama_cpp", "Llama"),
    "llama.cpp-flash": Hosted("llama_cpp", "LlamaFlash"),
    "llama.cpp-slots": Hosted("llama_cpp", "LlamaSlots"),
    "mlx": Hosted("mlx", "Llama"),
    "ctranslate2": Hosted("ctranslate2", "Llama"),
    "onnxruntime-genai": Hosted("onnxruntime_genai", "Llama"),
}

NAMES = (*IN_PROCESS, *HOSTED)


@dataclass(frozen=True)
class Options:
    """How an engine that is not in this process is run."""

    python: str | None = None  # interpreter for an adapter file
    dtype: str | None = None
    limit_s: float = ANSWER_S  # per answer
    dialect: str = "openai"  # of an HTTP server


def match_engines(pattern: str) -> list[str]:
    """The engines that --engine names: one, or all of ours that match a pattern such as "llama.cpp*"."""
    if any(character in pattern for character in "*?[") and not Path(pattern).exists():
        matched = [name for name in NAMES if fnmatch(name, pattern)]
        return matched or _no_engine(pattern)
    return [pattern]


def find_engine(name: str, options: Options = Options()) -> Engine:
    """An engine by a name of ours, path/to/adapter.py:Class, http://host:port, or a command line.

    Raises: NOT_FOUND, with what there is; USAGE for a dtype the engine does not have.
    """
    if name in IN_PROCESS:
        return IN_PROCESS[name]()
    if name.startswith(("http://", "https://")):
        from reference.conformance.http_engine import HttpEngine

        return HttpEngine(name, options.dialect, options.limit_s)
    engine = RemoteEngine(command_of(name, options), _dtype(name, options), options.limit_s)
    engine.describe()
    return engine


def command_of(name: str, options: Options) -> Sequence[str]:
    """The command line of an engine that speaks the protocol. Raises: NOT_FOUND."""
    if name in HOSTED:
        hosted = HOSTED[name]
        return [options.python or hosted.python, str(WORKER), f"{hosted.adapter}:{hosted.class_name}"]
    path, _, class_name = name.rpartition(":")
    if path.endswith(".py") and class_name.isidentifier():
        if not Path(path).is_file():
            raise RefusedError(Refusal.NOT_FOUND, f"no adapter file {path}; --engine takes path/to/adapter.py:Class")
        return [options.python or sys.executable, str(WORKER), name]
    words = shlex.split(name)
    if not words or shutil.which(words[0]) is None:
        _no_engine(name)
    return words


def _dtype(name: str, options: Options) -> str:
    default = HOSTED[name].dtype if name in HOSTED else "float32"
    return default if options.dtype is None else options.dtype


def _no_engine(name: str) -> list[str]:
    sentence = (
        f"no engine {name!r}; use one of {', '.join(NAMES)}, path/to/adapter.py:Class, http://host:port, "
        "or the command line of a program that speaks the protocol"
    )
    raise RefusedError(Refusal.NOT_FOUND, sentence)


def expectations_file(name: str) -> Path | None:
    """Where the known failures of an engine of ours are written."""
    return ADAPTERS / HOSTED[name].folder / "expectations.json" if name in HOSTED else None
