"""The golden records: questions with the specification's answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference.conformance.artifacts import DATA, read_json, validate
from reference.errors import Refusal, RefusedError

FAMILIES = (
    *("batching", "cache", "crossover", "forward", "generate", "metamorphic", "sampling", "speculation", "sweep"),
)

SEED = "seed"
"""Name of the recorded artifact of a family, kept as it was recorded."""


@dataclass(frozen=True)
class Record:
    """One golden: a question to an engine and the specification's answer."""

    id: str
    family: str
    input: Mapping[str, Any]
    expected: Mapping[str, Any]
    rules: tuple[str, ...] = ()
    catches: str = ""

    @property
    def is_seed(self) -> bool:
        return self.id == f"{self.family}/{SEED}"

    @property
    def is_core(self) -> bool:
        """Whether it compares an engine with the specification, and not only with itself."""
        return self.family != "metamorphic"


def load_records(family: str) -> list[Record]:
    """The records of a family, each checked against its schema. Raises: NOT_FOUND if there is none."""
    paths = sorted((DATA / family).glob("*.json"))
    if not paths:
        raise RefusedError(Refusal.NOT_FOUND, f"family {family} has no record in {DATA / family}; run tools/regen.py")
    return [load_record(family, path) for path in paths]


def load_record(family: str, path: Path) -> Record:
    """One record. A seed is a whole artifact: its question is the experiment of its family.

    Raises: NOT_FOUND, ARTIFACT_INVALID. A link is refused: what it points to is not in the manifest.
    """
    if path.is_symlink():
        raise RefusedError(Refusal.ARTIFACT_INVALID, f"{path} is a link; a record is a file of its own")
    content = read_json(path)
    if path.stem == SEED:
        validate(content, f"{family}_artifact", str(path))
        return Record(f"{family}/{SEED}", family, {}, content)
    validate(content, family, str(path))
    if content["id"] != f"{family}/{path.stem}":
        raise RefusedError(Refusal.ARTIFACT_INVALID, f"{path} holds the record {content['id']}; a file has its name")
    rules, catches = tuple(content["rules"]), content["catches"]
    return Record(content["id"], family, content["input"], content["expected"], rules, catches)


def find_records(families: Sequence[str], ids: Sequence[str] = ()) -> list[Record]:
    """The records of the families in order, or those of the given ids. Raises: NOT_FOUND for an unknown id."""
    records = [record for family in families for record in load_records(family)]
    if not ids:
        return records
    unknown = sorted(set(ids) - {record.id for record in records})
    if unknown:
        raise RefusedError(Refusal.NOT_FOUND, f"no record {unknown[0]!r}; a record is called family/file-name")
    return [record for record in records if record.id in ids]
