"""Checkpoints in Hugging Face's layout: config.json with model.safetensors, or shards with an index. Never pickle."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

import ml_dtypes
import numpy as np
import safetensors

from reference.errors import Array, Refusal, RefusedError
from reference.model.config import ModelConfig, config_from_dict, config_to_dict
from reference.model.weights import EMBEDDING, LM_HEAD, Model, tensor_shapes, weights_from_tensors

STORAGE_TYPES: Mapping[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
StorageType = Literal["bfloat16", "float16", "float32"]
STORAGE_CODES: Mapping[StorageType, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
# Tables that old checkpoints store beside the weights; the config determines them.
DERIVED_TENSOR = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def load_model(directory: Path) -> Model:
    """A model from a checkpoint directory. Raises: CONFIG_INVALID, CHECKPOINT_INVALID, NOT_FOUND."""
    config = load_config(directory)
    return Model(config, weights_from_tensors(config, load_tensors(directory, config)))


def load_config(directory: Path) -> ModelConfig:
    """The config.json of a checkpoint directory. Raises: CONFIG_INVALID, NOT_FOUND."""
    raw = _read_json(directory / "config.json", Refusal.CONFIG_INVALID)
    return config_from_dict(raw)


def load_tensors(directory: Path, config: ModelConfig) -> dict[str, Array]:
    """Tensor name -> array in its storage type, exactly the tensors of the config. Raises: CHECKPOINT_INVALID."""
    shapes = tensor_shapes(config)
    tensors: dict[str, Array] = {}
    for path, promised in _files(directory):
        held = {name: tensor for name, tensor in _read_file(path).items() if not DERIVED_TENSOR.fullmatch(name)}
        if promised is not None and promised != set(held):
            name = min(promised ^ set(held))
            _refuse(f"{path}: the index and the file disagree on tensor {name}; write both anew")
        tensors |= held
    if config.tie_word_embeddings and LM_HEAD in tensors and EMBEDDING in tensors:
        _drop_tied_head(tensors, directory)
    for name in sorted(shapes.keys() - tensors.keys()):
        _refuse(f"{directory}: tensor {name} {list(shapes[name])} is missing")
    for name in sorted(tensors.keys() - shapes.keys()):
        _refuse(f"{directory}: tensor {name} is not part of the model that config.json describes")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            _refuse(f"{directory}: tensor {name} is {list(tensors[name].shape)}, config.json makes it {list(shape)}")
    return tensors


def save_model(
    directory: Path,
    config: ModelConfig,
    tensors: Mapping[str, Array],
    storage: StorageType = "bfloat16",
    num_shards: int = 1,
) -> None:
    """Writes config.json and model.safetensors, or shards with an index, each to a temporary name first.

    Raises: CHECKPOINT_INVALID if a number is not exact in the storage type or the tensors do not fit the config.
    """
    shapes = tensor_shapes(config)
    if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
        _refuse(f"{directory}: the tensors are not those of the config")
    stored = {}
    for name in sorted(tensors):
        stored[name] = tensors[name].astype(STORAGE_TYPES[STORAGE_CODES[storage]])
        if not np.array_equal(stored[name].astype(np.float64), tensors[name]):
            _refuse(f"tensor {name} holds a number that is not exact in {storage}")
    directory.mkdir(parents=True, exist_ok=True)
    if num_shards == 1:
        _write(directory / SINGLE_FILE, _safetensors_bytes(stored, storage))
    else:
        _save_shards(directory, stored, storage, num_shards)
    _write(directory / "config.json", _json_bytes({**config_to_dict(config), "dtype": storage}))


def _save_shards(directory: Path, tensors: Mapping[str, Any], storage: StorageType, num_shards: int) -> None:
    """Tensors in turn to the shards, and the index that says which is where."""
    files = [f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors" for number in range(num_shards)]
    weight_map = {name: files[number % num_shards] for number, name in enumerate(tensors)}
    for file in files:
        shard = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        _write(directory / file, _safetensors_bytes(shard, storage))
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    _write(directory / INDEX_FILE, _json_bytes({"metadata": {"total_size": num_bytes}, "weight_map": weight_map}))


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def _safetensors_bytes(tensors: Mapping[str, Any], storage: StorageType) -> bytes:
    """A safetensors file of arrays of one type in the order given.

    Written here because the library's writer has changed its header's bytes between releases.
    """
    # transformers refuses a file without this format note.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        offsets = [end, end + tensor.nbytes]
        header[name] = {"dtype": STORAGE_CODES[storage], "shape": tensor.shape, "data_offsets": offsets}
        end += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *(tensor.tobytes() for tensor in tensors.values())))


def _files(directory: Path) -> list[tuple[Path, set[str] | None]]:
    """The checkpoint's files, each with the tensors an index promises it holds (None without an index)."""
    single = directory / SINGLE_FILE
    if single.exists():
        return [(single, None)]
    index_path = directory / INDEX_FILE
    if not index_path.exists():
        sentence = f"{directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}"
        raise RefusedError(Refusal.NOT_FOUND, sentence)
    weight_map = _read_json(index_path, Refusal.CHECKPOINT_INVALID).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        _refuse(f"{index_path}: weight_map must be an object from tensor names to file names")
    for shard in weight_map.values():
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            _refuse(f"{index_path}: shard {shard!r} must be the name of a .safetensors file in the same directory")
    names = {name for name in weight_map if not DERIVED_TENSOR.fullmatch(name)}
    shards = sorted(set(weight_map.values()))
    return [(directory / shard, {name for name in names if weight_map[name] == shard}) for shard in shards]


def _read_file(path: Path) -> dict[str, Array]:
    """Every tensor of one safetensors file, in its storage type."""
    _refuse_special(path)
    try:
        entries = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except OSError as error:
        raise RefusedError(Refusal.NOT_FOUND, f"cannot read {path}: {error.strerror}") from error
    except safetensors.SafetensorError as error:
        _refuse(f"{path} is not a whole safetensors file ({error}); copy or download it again")
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in STORAGE_TYPES:
            _refuse(f"{path}: tensor {name} has type {entry['dtype']}; supported: {', '.join(STORAGE_TYPES)}")
        tensors[name] = np.frombuffer(entry["data"], dtype=STORAGE_TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def _drop_tied_head(tensors: dict[str, Array], directory: Path) -> None:
    """[HEAD-1] A tied model has one matrix; a stored copy is dropped, a differing one leaves the model undefined."""
    head = tensors.pop(LM_HEAD)
    if not np.array_equal(head, tensors[EMBEDDING]):
        _refuse(f"{directory}: tie_word_embeddings is true but {LM_HEAD} differs from {EMBEDDING}; untie or drop it")


def _refuse_special(path: Path) -> None:
    """A device or a pipe may have no end. A link to a file is one: the hub's cache is made of them."""
    if path.exists() and not path.is_file():
        _refuse(f"{path} is neither a file nor a link to one")


def _read_json(path: Path, reason: Refusal) -> dict[str, Any]:
    _refuse_special(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RefusedError(Refusal.NOT_FOUND, f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(reason, f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise RefusedError(reason, f"{path} must hold a JSON object")
    return content


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _refuse(sentence: str) -> NoReturn:
    raise RefusedError(Refusal.CHECKPOINT_INVALID, sentence)
