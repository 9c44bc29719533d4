"""Checkpoints that are whole are read exactly; all others are refused by the name of the tensor or file at fault."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from reference.errors import Array, Refusal, RefusedError
from reference.model import checkpoint
from reference.model.checkpoint import load_config, load_model, load_tensors, save_model
from reference.model.config import ModelConfig, config_to_dict
from reference.model.weights import weights_from_tensors
from tests.models import TINY, random_tensors

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
INV_FREQ = "model.layers.0.self_attn.rotary_emb.inv_freq"
TIED = replace(TINY, tie_word_embeddings=True)


def write_config(directory: Path, config: ModelConfig = TINY) -> None:
    (directory / "config.json").write_text(json.dumps(config_to_dict(config)))


def write_single(
    directory: Path, tensors: dict[str, Any], config: ModelConfig = TINY, dtype: Any = np.float32
) -> None:
    """A checkpoint as the safetensors library writes it."""
    write_config(directory, config)
    stored = {name: np.ascontiguousarray(tensor.astype(dtype)) for name, tensor in tensors.items()}
    safetensors.numpy.save_file(stored, directory / "model.safetensors")


def write_shards(directory: Path, tensors: dict[str, Array]) -> dict[str, str]:
    """Two shards with an index; returns the weight map."""
    write_config(directory)
    names = sorted(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for shard, held in shards.items():
        stored = {name: np.ascontiguousarray(tensors[name].astype(np.float32)) for name in held}
        safetensors.numpy.save_file(stored, directory / shard)
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: Any) -> None:
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def refusal_of(directory: Path, reason: Refusal = Refusal.CHECKPOINT_INVALID) -> str:
    with pytest.raises(RefusedError) as refused:
        load_model(directory)

    assert refused.value.reason is reason
    return str(refused.value)


def assert_loads(expected: dict[str, Array], directory: Path, config: ModelConfig = TINY) -> None:
    """Also the weights that load_model makes of the tensors."""
    tensors = load_tensors(directory, config)
    model = load_model(directory)

    assert config == model.config
    assert expected.keys() == tensors.keys()
    for name in expected:
        np.testing.assert_array_equal(tensors[name].astype(np.float64), expected[name])
    np.testing.assert_array_equal(
        model.weights.layers[1].q_proj, weights_from_tensors(config, expected).layers[1].q_proj
    )


# What is read


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_single_file_of_each_type_is_read_exactly(dtype, tmp_path):
    """Integers / 64 up to 5/4 are exact in all three."""
    tensors = random_tensors(TINY, 1)
    write_single(tmp_path, tensors, dtype=dtype)

    assert_loads(tensors, tmp_path)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_half_precision_number_keeps_its_value(dtype, tmp_path):
    """1/3 rounds to 0x3555 = 1365/4096 in float16 and to 0x3eab = 171/512 in bfloat16."""
    tensors = random_tensors(TINY, 1)
    tensors[NORM] = np.full(16, 1 / 3)
    write_single(tmp_path, tensors, dtype=dtype)
    expected = {np.float16: 1365 / 4096, ml_dtypes.bfloat16: 171 / 512}[dtype]

    assert [expected] * 16 == load_model(tmp_path).weights.norm.tolist()


def test_types_may_be_mixed(tmp_path):
    tensors = random_tensors(TINY, 1)
    write_config(tmp_path)
    stored = {name: tensor.astype(np.float16 if "mlp" in name else np.float32) for name, tensor in tensors.items()}
    safetensors.numpy.save_file(stored, tmp_path / "model.safetensors")

    assert_loads(tensors, tmp_path)


def test_shards_are_read_through_their_index(tmp_path):
    tensors = random_tensors(TINY, 1)
    write_shards(tmp_path, tensors)

    assert_loads(tensors, tmp_path)


def test_rotary_tables_of_old_checkpoints_are_ignored(tmp_path):
    tensors = random_tensors(TINY, 1)
    write_single(tmp_path, {**tensors, INV_FREQ: np.ones(2)})

    assert_loads(tensors, tmp_path)


def test_rotary_tables_are_ignored_in_shards_and_in_their_index(tmp_path):
    tensors = random_tensors(TINY, 1)
    weight_map = write_shards(tmp_path, {**tensors, INV_FREQ: np.ones(2)})
    in_file_and_index = load_tensors(tmp_path, TINY)
    del weight_map[INV_FREQ]
    write_index(tmp_path, weight_map)

    assert tensors.keys() == in_file_and_index.keys()
    assert_loads(tensors, tmp_path)


def test_a_tensor_that_only_resembles_a_rotary_table_is_not_ignored(tmp_path):
    write_single(tmp_path, {**random_tensors(TINY, 1), INV_FREQ + "2": np.ones(2)})

    assert f"tensor {INV_FREQ}2 is not part of the model" in refusal_of(tmp_path)


def test_a_tied_checkpoint_may_hold_an_equal_copy_of_the_head(tmp_path):
    tensors = random_tensors(TIED, 1)
    write_single(tmp_path, {**tensors, HEAD: tensors[EMBEDDING]}, TIED)

    assert_loads(tensors, tmp_path, TIED)


# What is refused


def test_a_tied_checkpoint_with_another_head_is_refused(tmp_path):
    tensors = random_tensors(TIED, 1)
    write_single(tmp_path, {**tensors, HEAD: tensors[EMBEDDING] + 1 / 64}, TIED)

    assert "tie_word_embeddings is true but lm_head.weight differs from model.embed_tokens.weight" in refusal_of(
        tmp_path
    )


@pytest.mark.parametrize("name", [EMBEDDING, HEAD, NORM, "model.layers.1.self_attn.k_proj.weight"])
def test_a_missing_tensor_is_refused_by_name(name, tmp_path):
    tensors = random_tensors(TINY, 1)
    shape = list(tensors.pop(name).shape)
    write_single(tmp_path, tensors)

    assert f"{tmp_path}: tensor {name} {shape} is missing" == refusal_of(tmp_path)


def test_a_tied_checkpoint_with_a_head_alone_misses_its_embedding(tmp_path):
    tensors = random_tensors(TIED, 1)
    embedding = tensors.pop(EMBEDDING)
    write_single(tmp_path, {**tensors, HEAD: embedding}, TIED)

    assert f"{tmp_path}: tensor {EMBEDDING} [17, 16] is missing" == refusal_of(tmp_path)


@pytest.mark.parametrize(
    "name", ["model.layers.2.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias", "lm_head.bias", ""]
)
def test_an_extra_tensor_is_refused_by_name(name, tmp_path):
    write_single(tmp_path, {**random_tensors(TINY, 1), name: np.ones(16)})

    sentence = f"{tmp_path}: tensor {name} is not part of the model that config.json describes"
    assert sentence == refusal_of(tmp_path)


@pytest.mark.parametrize("shape", [(16, 8), (8, 17), (128,), (8, 16, 1)])
def test_a_misshapen_tensor_is_refused_by_name(shape, tmp_path):
    """Also where the number of elements is right: [16, 8] is the transpose."""
    name = "model.layers.1.self_attn.k_proj.weight"
    write_single(tmp_path, {**random_tensors(TINY, 1), name: np.ones(shape)})

    assert f"{tmp_path}: tensor {name} is {list(shape)}, config.json makes it [8, 16]" == refusal_of(tmp_path)


@pytest.mark.parametrize(("dtype", "type_name"), [(np.float64, "F64"), (np.int64, "I64"), (np.uint8, "U8")])
def test_an_unsupported_type_is_refused_by_name(dtype, type_name, tmp_path):
    tensors = random_tensors(TINY, 1)
    write_config(tmp_path)
    stored = {name: tensor.astype(dtype if name == NORM else np.float32) for name, tensor in tensors.items()}
    safetensors.numpy.save_file(stored, tmp_path / "model.safetensors")

    expected = f"{tmp_path}/model.safetensors: tensor {NORM} has type {type_name}; supported: F32, F16, BF16"
    assert expected == refusal_of(tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 7, 8, 100, -1])
def test_a_truncated_file_is_refused(num_bytes, tmp_path):
    """Cut to nothing, inside the header's length, after it, inside the header, before the last byte."""
    write_single(tmp_path, random_tensors(TINY, 1))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])

    message = refusal_of(tmp_path)
    assert message.startswith(f"{path} is not a whole safetensors file (")
    assert message.endswith("); copy or download it again")


@pytest.mark.parametrize(
    "content",
    [
        (1 << 60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (8).to_bytes(8, "little") + b"not json",
        b"\x80\x02}q\x00." * 9,
    ],
    ids=["header length 2**60", "header is no object", "header is not JSON", "a pickle"],
)
def test_a_file_that_is_not_safetensors_is_refused(content, tmp_path):
    write_config(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)

    assert "model.safetensors is not a whole safetensors file (" in refusal_of(tmp_path)


@pytest.mark.parametrize("offsets", [[0, 60], [4, 68], [0, 1 << 60], [64, 0]])
def test_offsets_that_do_not_fit_the_shape_or_the_file_are_refused(offsets, tmp_path):
    """Sixteen float32 numbers take the bytes 0 to 64."""
    header = json.dumps({NORM: {"dtype": "F32", "shape": [16], "data_offsets": offsets}}).encode()
    write_config(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))

    assert "is not a whole safetensors file (" in refusal_of(tmp_path)


@pytest.mark.parametrize("second", [[0, 64], [32, 96], [63, 127], [68, 132]])
def test_tensors_that_overlap_or_leave_a_gap_are_refused(second, tmp_path):
    """Each has sixteen float32 numbers, the first in the bytes 0 to 64."""
    entries = {NORM: [0, 64], "model.layers.0.input_layernorm.weight": second}
    header = {name: {"dtype": "F32", "shape": [16], "data_offsets": offsets} for name, offsets in entries.items()}
    text = json.dumps(header).encode()
    write_config(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(second[1]))

    assert "is not a whole safetensors file (" in refusal_of(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("special", ["device", "pipe", "directory"])
def test_what_may_have_no_end_is_not_read(name, special, tmp_path):
    write_single(tmp_path, random_tensors(TINY, 1))
    if name == "model.safetensors.index.json":
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).unlink(missing_ok=True)
    if special == "device":
        (tmp_path / name).symlink_to("/dev/zero")
    elif special == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).mkdir()

    assert f"{tmp_path / name} is neither a file nor a link to one" == refusal_of(tmp_path)


def test_a_link_to_nothing_is_not_found(tmp_path):
    write_single(tmp_path, random_tensors(TINY, 1))
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("config.json")

    assert "cannot read" in refusal_of(tmp_path, Refusal.NOT_FOUND)


def test_links_to_files_are_read(tmp_path):
    """The hub's cache holds files by their digests, and a directory of links to them."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    write_single(tmp_path / "blobs", random_tensors(TINY, 1))
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / name)

    assert_loads(random_tensors(TINY, 1), tmp_path / "snapshot")


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "", "x.bin"])
def test_an_index_that_leaves_the_directory_is_refused(shard, tmp_path):
    (tmp_path / "model").mkdir()
    weight_map = write_shards(tmp_path / "model", random_tensors(TINY, 1))
    write_index(tmp_path / "model", {**weight_map, NORM: shard})

    expected = f"shard {shard!r} must be the name of a .safetensors file in the same directory"
    assert expected in refusal_of(tmp_path / "model")


def test_an_index_never_opens_a_file_outside(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    weight_map = write_shards(tmp_path / "model", random_tensors(TINY, 1))
    os.replace(tmp_path / "model" / weight_map[NORM], tmp_path / "x.safetensors")
    write_index(tmp_path / "model", {NORM: "../x.safetensors"})
    opened = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path))
    refusal_of(tmp_path / "model")

    assert [] == opened


@pytest.mark.parametrize("weight_map", [None, [], "model.safetensors", {NORM: 1}, {NORM: None}])
def test_an_index_without_a_map_of_names_is_refused(weight_map, tmp_path):
    write_shards(tmp_path, random_tensors(TINY, 1))
    write_index(tmp_path, weight_map)

    assert "weight_map must be an object from tensor names to file names" in refusal_of(tmp_path)


def test_an_index_that_promises_a_tensor_its_shard_lacks_is_refused(tmp_path):
    weight_map = write_shards(tmp_path, random_tensors(TINY, 1))
    write_index(tmp_path, {**weight_map, "model.layers.7.extra": weight_map[NORM]})

    expected = f"{tmp_path / weight_map[NORM]}: the index and the file disagree on tensor model.layers.7.extra"
    assert refusal_of(tmp_path).startswith(expected)


def test_a_shard_with_a_tensor_the_index_does_not_know_is_refused(tmp_path):
    weight_map = write_shards(tmp_path, random_tensors(TINY, 1))
    path = tmp_path / weight_map.pop(NORM)
    write_index(tmp_path, weight_map)

    assert f"{path}: the index and the file disagree on tensor {NORM}" in refusal_of(tmp_path)


def test_an_index_that_names_the_wrong_shard_is_refused(tmp_path):
    weight_map = write_shards(tmp_path, random_tensors(TINY, 1))
    other = next(shard for shard in weight_map.values() if shard != weight_map[NORM])
    write_index(tmp_path, {**weight_map, NORM: other})

    assert f"the index and the file disagree on tensor {NORM}" in refusal_of(tmp_path)


def test_an_index_of_nothing_misses_every_tensor(tmp_path):
    write_shards(tmp_path, random_tensors(TINY, 1))
    write_index(tmp_path, {})

    assert "tensor lm_head.weight [17, 16] is missing" in refusal_of(tmp_path)


def test_a_missing_shard_is_not_found(tmp_path):
    weight_map = write_shards(tmp_path, random_tensors(TINY, 1))
    path = tmp_path / weight_map[NORM]
    path.unlink()

    assert f"cannot read {path}: No such file or directory" == refusal_of(tmp_path, Refusal.NOT_FOUND)


def test_pickles_are_not_looked_at(tmp_path):
    write_config(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")

    expected = f"{tmp_path} holds neither model.safetensors nor model.safetensors.index.json"
    assert expected == refusal_of(tmp_path, Refusal.NOT_FOUND)


def test_a_directory_without_config_is_not_found(tmp_path):
    path = tmp_path / "config.json"

    assert f"cannot read {path}: No such file or directory" == refusal_of(tmp_path, Refusal.NOT_FOUND)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "is not JSON: "),
        (b"\xff", "is not JSON: "),
        (b"[" * 100_000, "is not JSON: "),
        (b"[]", "must hold a JSON object"),
    ],
)
def test_a_config_that_is_no_object_is_refused(content, sentence, tmp_path):
    (tmp_path / "config.json").write_bytes(content)

    assert f"{tmp_path / 'config.json'} {sentence}" in refusal_of(tmp_path, Refusal.CONFIG_INVALID)


@pytest.mark.parametrize("content", [b"{", b"[]"])
def test_an_index_that_is_no_object_is_refused(content, tmp_path):
    write_config(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(content)

    assert str(tmp_path / "model.safetensors.index.json") in refusal_of(tmp_path)


# What is written


def test_what_is_saved_is_loaded(tmp_path):
    tensors = random_tensors(TINY, 1)
    save_model(tmp_path / "new" / "model", TINY, tensors)

    assert_loads(tensors, tmp_path / "new" / "model")
    assert ["config.json", "model.safetensors"] == sorted(
        path.name for path in (tmp_path / "new" / "model").iterdir()
    )


def test_the_safetensors_library_reads_what_is_saved(tmp_path):
    tensors = random_tensors(TINY, 1)
    save_model(tmp_path, TINY, tensors)
    stored = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    with safetensors.safe_open(tmp_path / "model.safetensors", "numpy") as opened:
        metadata = opened.metadata()

    assert {"format": "pt"} == metadata
    assert {name: np.dtype(ml_dtypes.bfloat16) for name in tensors} == {name: t.dtype for name, t in stored.items()}
    for name in tensors:
        np.testing.assert_array_equal(stored[name].astype(np.float64), tensors[name])


def test_the_saved_file_is_a_header_and_the_tensors_by_name(tmp_path):
    """Format of safetensors: header length in 8 bytes, little endian; JSON; then the numbers."""
    save_model(tmp_path, TINY, random_tensors(TINY, 1))
    content = (tmp_path / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]

    assert 0 == size % 8
    assert ["__metadata__", *sorted(random_tensors(TINY, 1))] == list(header)
    assert sorted(ends) == ends
    assert 8 + size + ends[-1] == len(content)


def test_saving_twice_gives_the_same_bytes_whatever_the_order_of_the_tensors(tmp_path):
    tensors = random_tensors(TINY, 1)
    save_model(tmp_path / "a", TINY, tensors)
    save_model(tmp_path / "b", TINY, dict(reversed(tensors.items())))

    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_transposed_view_is_saved_by_value(tmp_path):
    tensors = random_tensors(TINY, 1)
    tensors[EMBEDDING] = np.asfortranarray(tensors[EMBEDDING])
    save_model(tmp_path, TINY, tensors)

    assert_loads(tensors, tmp_path)


@pytest.mark.parametrize("number", [1 / 3, 257.0, 1e300, np.nan])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_number_that_is_not_exact_in_bfloat16_is_refused(number, tmp_path):
    """257 needs 9 bits; bfloat16 has 8."""
    tensors = random_tensors(TINY, 1)
    tensors[NORM][3] = number
    with pytest.raises(RefusedError, match=f"tensor {NORM} holds a number that is not exact in bfloat16") as refused:
        save_model(tmp_path, TINY, tensors)

    assert (Refusal.CHECKPOINT_INVALID, []) == (refused.value.reason, list(tmp_path.iterdir()))


def test_tensors_of_another_config_are_not_saved(tmp_path):
    with pytest.raises(RefusedError, match="the tensors are not those of the config") as refused:
        save_model(tmp_path, TINY, random_tensors(TIED, 1))

    assert (Refusal.CHECKPOINT_INVALID, []) == (refused.value.reason, list(tmp_path.iterdir()))


@pytest.mark.parametrize("failing", ["write", "replace"])
def test_a_write_that_fails_leaves_the_old_files(failing, tmp_path, monkeypatch):
    """A disk that is full after 10 bytes, and a rename that is not allowed."""
    save_model(tmp_path, TINY, random_tensors(TINY, 1))

    def write_ten_bytes(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device")

    def refuse_to_rename(source: Path, destination: Path) -> None:
        raise OSError(1, "Operation not permitted")

    if failing == "write":
        monkeypatch.setattr(Path, "write_bytes", write_ten_bytes)
    else:
        monkeypatch.setattr(checkpoint.os, "replace", refuse_to_rename)
    with pytest.raises(OSError, match=r"No space left|not permitted"):
        save_model(tmp_path, TINY, random_tensors(TINY, 2))
    monkeypatch.undo()

    assert_loads(random_tensors(TINY, 1), tmp_path)


def test_a_config_can_be_loaded_without_its_weights(tmp_path):
    write_config(tmp_path)

    assert TINY == load_config(tmp_path)
