"""The golden records: questions with the specification's answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reference.conformance.artifacts import DATA, GOLDEN, read_json, validate
from reference.engine import Precision
from reference.errors import Refusal, RefusedError

FAMILIES = (
    *("batching", "cache", "crossover", "forward", "generate", "metamorphic", "sampling", "speculation", "sweep"),
)

CORE_AS: Mapping[Precision, Precision] = {"f64": "exact", "int8": "bf16"}
"""Precisions whose core set is that of another."""

LEAST_DIGITS = 8
"""Of a digest that names a corpus."""

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

    def is_core(self, precision: Precision) -> bool:
        """Whether it tells a wrong engine of a precision from a right one.

        A metamorphic record only compares an engine with itself; and the manifest lists, for each precision, the
        records in which the noise of correct engines hides every known defect.
        """
        return self.family != "metamorphic" and self.id not in extended().get(CORE_AS.get(precision, precision), ())


@cache
def extended() -> Mapping[str, frozenset[str]]:
    """Precision -> the records that are no core records there."""
    listed = read_json(GOLDEN / "manifest.json").get("extended", {})
    return {precision: frozenset(ids) for precision, ids in listed.items()}


@cache
def errata() -> Mapping[str, str]:
    """Superseded record -> what was wrong, and its successor. Raises: NOT_FOUND, ARTIFACT_INVALID."""
    content = read_json(GOLDEN / "errata.json")
    validate(content, "errata", str(GOLDEN / "errata.json"))
    return {entry["id"]: f"{entry['reason']}; see {entry['successor']}" for entry in content["superseded"]}


def check_corpus(wanted: str) -> None:
    """Raises: ARTIFACT_INVALID if the corpus is not the wanted one: its version, or the beginning of its digest."""
    manifest = read_json(GOLDEN / "manifest.json")
    version, root = manifest["corpus_version"], manifest["root"]
    is_digest = len(wanted) >= LEAST_DIGITS and root.startswith(wanted)
    if wanted != version and not is_digest:
        sentence = f"this is corpus {version}, digest {root}, not {wanted}; docs/versions.md says what a change means"
        raise RefusedError(Refusal.ARTIFACT_INVALID, sentence)


def load_records(family: str) -> list[Record]:
    """The records of a family but the superseded, each checked against its schema. Raises: NOT_FOUND for none."""
    paths = [path for path in sorted((DATA / family).glob("*.json")) if f"{family}/{path.stem}" not in errata()]
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
    if unknown and unknown[0] in errata():
        raise RefusedError(Refusal.NOT_FOUND, f"record {unknown[0]} is superseded: {errata()[unknown[0]]}")
    if unknown:
        raise RefusedError(Refusal.NOT_FOUND, f"no record {unknown[0]!r}; a record is called family/file-name")
    return [record for record in records if record.id in ids]
