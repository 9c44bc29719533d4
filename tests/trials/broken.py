"""Engines broken from outside (docs/trials.md): the adapter of whichever engine the interpreter has, and one defect.

    python -m reference check --engine tests/trials/broken.py:WrongTheta --engine-python .venvs/mlx/bin/python

Stands alone like the adapters, which are loaded by path and left as they are.
"""

import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path

ADAPTERS = Path(__file__).resolve().parents[2] / "reference" / "conformance" / "adapters"
# A package that only this engine's environment has; mlx-lm and the builder of ONNX Runtime GenAI bring transformers.
PACKAGES = {
    "ctranslate2": "ctranslate2",
    "llama_cpp": "xllamacpp",
    "mlx": "mlx_lm",
    "onnxruntime_genai": "onnxruntime_genai",
    "transformers_hf": "transformers",
}
FOLDER = next(folder for folder, package in PACKAGES.items() if importlib.util.find_spec(package) is not None)
SCALE = 1.05
THETA = 2.0


def load_adapter(path):
    """The adapter's module; what stands beside it can be imported, as under the worker."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"{FOLDER}_adapter", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ADAPTER = load_adapter(ADAPTERS / FOLDER / "adapter.py")


class WrongScale(ADAPTER.Llama):
    """Attention scores 5% too large, where each engine has its scale."""

    def __init__(self):
        super().__init__()
        SCALED[FOLDER]()


class WrongTheta(ADAPTER.Llama):
    """Reads a copy of the checkpoint in which each rope theta is twice as large."""

    def __init__(self):
        super().__init__()
        self.copies = tempfile.TemporaryDirectory(prefix="wrong-theta-")

    def load(self, model_dir, dtype):
        changed = Path(self.copies.name) / Path(model_dir).name
        if not changed.exists():
            shutil.copytree(model_dir, changed)
            config = json.loads((changed / "config.json").read_text())
            for place in (config, config.get("rope_parameters") or {}, config.get("rope_scaling") or {}):
                if "rope_theta" in place:
                    place["rope_theta"] *= THETA
            (changed / "config.json").write_text(json.dumps(config))
        super().load(str(changed), dtype)


class IgnoresEos(ADAPTER.Llama):
    """The engine is never told an eos id."""

    def __init__(self):
        super().__init__()
        wrap_outputs(self, lambda method: lambda **asked: method(**{**asked, "eos_ids": []}))


class DropsEos(ADAPTER.Llama):
    """The eos that ended an output is no part of it."""

    def __init__(self):
        super().__init__()
        wrap_outputs(self, without_eos)


def wrap_outputs(adapter, wrap):
    """Wraps the verbs that answer outputs, as far as the engine has them."""
    for verb in ("generate", "speculate"):
        if hasattr(adapter, verb):
            setattr(adapter, verb, wrap(getattr(adapter, verb)))


def without_eos(method):
    def answer(**asked):
        answered = method(**asked)
        for output in answered if isinstance(answered, list) else [answered]:
            if output["finish_reason"] == "stop":
                for member in {"tokens", "logprobs"} & output.keys():
                    output[member] = output[member][:-1]
        return answered

    return answer


def after(owner, name, change):
    """Lets `change` see what a function got and returned; what it returns, if anything, is returned instead."""
    function = getattr(owner, name)

    def changed(*given):
        returned = function(*given)
        instead = change(given, returned)
        return returned if instead is None else instead

    setattr(owner, name, changed)


def scale_transformers():
    def change(_, model):
        for layer in model.model.layers:
            layer.self_attn.scaling *= SCALE

    after(ADAPTER.Llama, "_read", change)


def scale_mlx():
    def change(_, read):
        for layer in read[0].layers:
            layer.self_attn.scale *= SCALE

    after(ADAPTER.Llama, "read", change)


def scale_ctranslate2():
    """In the model's specification: a scale of its own for the queries."""

    def change(given, _):
        spec, config, _ = given
        for layer in spec.decoder.layer:
            layer.self_attention.queries_scale = ADAPTER.np.float32(SCALE * config["head_dim"] ** -0.5)

    after(ADAPTER, "fill", change)


def scale_llama_cpp():
    """In the query weights of the GGUF file: its key attention.scale is not read for the architecture llama."""
    import gguf_file

    def change(given, tensor):
        name, *_ = given
        return tensor * ADAPTER.np.float32(SCALE) if "q_proj" in name else None

    after(gguf_file, "permuted", change)


def scale_onnxruntime_genai():
    """In the graph that the builder has written."""
    import onnx

    def change(given, _):
        file = given[1] / "model.onnx"
        model = onnx.load(file, load_external_data=False)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "scale":
                    attribute.f *= SCALE
        onnx.save(model, file)

    after(ADAPTER, "export", change)


SCALED = {
    "ctranslate2": scale_ctranslate2,
    "llama_cpp": scale_llama_cpp,
    "mlx": scale_mlx,
    "onnxruntime_genai": scale_onnxruntime_genai,
    "transformers_hf": scale_transformers,
}
