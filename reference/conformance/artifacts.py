"""Files: canonical JSON, schemas, digests. One object has one text, so equal content means equal bytes."""

import hashlib
import json
import math
import os
import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from reference.errors import Refusal, RefusedError

ROOT = Path(__file__).parents[2]
SCHEMAS, GOLDEN = ROOT / "schemas", ROOT / "golden"
MODELS, DATA = GOLDEN / "models", GOLDEN / "data"
LINE_LENGTH = 110
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def canonical_json(content: object) -> str:
    """UTF-8 text with sorted keys, two-space indent, arrays of scalars filled into lines, and a final newline.

    Floats are in shortest round-trip form; NaN and infinities are the strings "NaN", "Infinity", "-Infinity".
    """
    return _text(to_plain(content), "") + "\n"


def to_plain(content: Any) -> Any:
    """Dataclasses, tuples, enums and numpy values as what JSON has."""
    if isinstance(content, Enum):
        return content.value
    if is_dataclass(content) and not isinstance(content, type):
        return {field.name: to_plain(getattr(content, field.name)) for field in fields(content)}
    if isinstance(content, Mapping):
        return {str(to_plain(key)): to_plain(member) for key, member in content.items()}
    if isinstance(content, list | tuple):
        return [to_plain(member) for member in content]
    if isinstance(content, np.ndarray | np.generic):
        return to_plain(content.tolist())
    if isinstance(content, float) and not math.isfinite(content):
        return "NaN" if math.isnan(content) else "Infinity" if content > 0 else "-Infinity"
    return content


def write_json(path: Path, content: object) -> None:
    """Writes canonical JSON."""
    write_text(path, canonical_json(content))


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 to a temporary name, then renames it. Raises: NOT_FOUND."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise RefusedError(Refusal.NOT_FOUND, f"cannot write {path}: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """Raises: NOT_FOUND, ARTIFACT_INVALID."""
    if path.exists() and not path.is_file():
        raise RefusedError(Refusal.ARTIFACT_INVALID, f"{path} is neither a file nor a link to one")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RefusedError(Refusal.NOT_FOUND, f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(Refusal.ARTIFACT_INVALID, f"{path} is not JSON: {error}") from error


def validate(content: object, schema_name: str, where: str) -> None:
    """Checks JSON content against schemas/<schema_name>.schema.json. Raises: ARTIFACT_INVALID, NOT_FOUND."""
    error = jsonschema.exceptions.best_match(_validator(schema_name).iter_errors(content))
    if error is not None:
        place = error.json_path
        raise RefusedError(Refusal.ARTIFACT_INVALID, f"{where}, at {place}: {textwrap.shorten(error.message, 300)}")


def schema_part(schema_name: str, part: str) -> Any:
    """A validator for schemas/<schema_name>.schema.json#/$defs/<part>."""
    whole = read_json(SCHEMAS / f"{schema_name}.schema.json")
    return jsonschema.Draft202012Validator({"$ref": f"{whole['$id']}#/$defs/{part}"}, registry=_registry())


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def root_digest(digests: Mapping[str, str]) -> str:
    """One digest for a set of files: sha256 of the lines "<digest>  <path>", sorted by path."""
    lines = "".join(f"{digests[path]}  {path}\n" for path in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


@cache
def _validator(schema_name: str) -> Any:
    schema = read_json(SCHEMAS / f"{schema_name}.schema.json")
    return jsonschema.Draft202012Validator(schema, registry=_registry())


@cache
def _registry() -> Any:
    """Every schema under its $id, so that one can refer to another."""
    import referencing
    from referencing.jsonschema import DRAFT202012

    registry: Any = referencing.Registry()
    for path in sorted(SCHEMAS.glob("*.schema.json")):
        schema = read_json(path)
        registry = registry.with_resource(schema["$id"], DRAFT202012.create_resource(schema))
    return registry


def _text(content: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(content, dict) and content:
        members = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {_text(content[key], inner)}" for key in sorted(content)
        ]
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if not isinstance(content, list) or not content:
        return json.dumps(content, ensure_ascii=False, allow_nan=False)
    if any(isinstance(member, list | dict) for member in content):
        return "[\n" + ",\n".join(inner + _text(member, inner) for member in content) + f"\n{indent}]"
    scalars = [_text(member, inner) for member in content]
    one_line = f"[{', '.join(scalars)}]"
    if len(indent) + len(one_line) <= LINE_LENGTH:
        return one_line
    return "[\n" + _fill(scalars, inner) + f"\n{indent}]"


def _fill(scalars: list[str], indent: str) -> str:
    """Scalars with commas, as many in a line as fit."""
    lines = [indent + scalars[0]]
    for scalar in scalars[1:]:
        if len(lines[-1]) + len(scalar) + 3 > LINE_LENGTH:
            lines[-1] += ","
            lines.append(indent + scalar)
        else:
            lines[-1] += ", " + scalar
    return "\n".join(lines)
