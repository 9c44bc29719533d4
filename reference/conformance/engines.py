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
from reference.conformance.http_engine import HttpEngine
from reference.conformance.remote import ANSWER_S, RemoteEngine
from reference.engine import Engine, ReferenceEngine
from reference.errors import Refusal, RefusedError

ADAPTERS = Path(__file__).parent / "adapters"
WORKER = Path(__file__).parent / "worker.py"
VENVS = ROOT / ".venvs"
OURS = "golden_llama"
HTTP = ("http://", "https://")


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
    def own_python(self) -> Path:
        """The interpreter of the engine's own environment."""
        return VENVS / self.folder / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        return self.own_python.exists() or self.folder == OURS

    @property
    def python(self) -> str:
        """The engine's own interpreter if there is one, else ours."""
        return str(self.own_python) if self.own_python.exists() else sys.executable


IN_PROCESS: Mapping[str, Callable[[], Engine]] = {
    "spec": ReferenceEngine,
    "fast": lambda: FastEngine("float32"),
    "fast64": lambda: FastEngine("float64"),
}

HOSTED: Mapping[str, Hosted] = {
    "hosted-spec": Hosted(OURS, "Specification", "float64"),
    "hosted-fast": Hosted(OURS, "FastTwin"),
    "transformers": Hosted("transformers_hf", "Llama"),
    "transformers-eager": Hosted("transformers_hf", "LlamaEager"),
    "transformers-static": Hosted("transformers_hf", "LlamaStatic"),
    "transformers-bf16": Hosted("transformers_hf", "Llama", "bfloat16"),
    "transformers-f16": Hosted("transformers_hf", "Llama", "float16"),
    "llama.cpp": Hosted("llama_cpp", "Llama"),
    "llama.cpp-flash": Hosted("llama_cpp", "LlamaFlash"),
    "llama.cpp-slots": Hosted("llama_cpp", "LlamaSlots"),
    "mlx": Hosted("mlx", "Llama"),
    "mlx-bf16": Hosted("mlx", "Llama", "bfloat16"),
    "mlx-f16": Hosted("mlx", "Llama", "float16"),
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
    served_model: Path | None = None  # the checkpoint it was started with


def match_engines(pattern: str) -> list[str]:
    """The engines that --engine names: one, or all of ours that match a pattern such as "llama.cpp*"."""
    is_name = pattern.startswith(HTTP) or Path(pattern).exists()
    if any(character in pattern for character in "*?[") and not is_name:
        matched = [name for name in NAMES if fnmatch(name, pattern)]
        return matched or _no_engine(pattern)
    return [pattern]


def find_engine(name: str, options: Options = Options()) -> Engine:
    """An engine by a name of ours, path/to/adapter.py:Class, http://host:port, or a command line.

    Raises: NOT_FOUND, with what there is; USAGE for a dtype the engine does not have, and for an HTTP server whose
    dialect or checkpoint is not named.
    """
    if name in IN_PROCESS:
        return IN_PROCESS[name]()
    dtype, limit_s = _dtype(name, options), options.limit_s
    engine: Engine
    if name.startswith(HTTP):
        engine = HttpEngine(name, options.dialect, limit_s, dtype=dtype, served_model=options.served_model)
    else:
        engine = RemoteEngine(command_of(name, options), dtype, limit_s)
    try:
        engine.describe()
    except RefusedError as error:
        if options.python is not None or name not in HOSTED or HOSTED[name].is_installed:
            raise
        target = next(known for known in HOSTED if HOSTED[known].folder == HOSTED[name].folder)
        sentence = f"{name} is not installed; make conform ENGINE={target} does that ({error})"
        raise RefusedError(Refusal.NOT_FOUND, sentence) from error
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
