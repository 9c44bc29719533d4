#!/usr/bin/env python3
"""Rewrite the goldens: golden/models, golden/data and golden/manifest.json.

Everything is computed into a temporary directory first and moved into place at the end, so an interrupted run leaves
the old goldens whole. The recorded seeds (golden/data/*/seed.json) are inputs: they are copied, never computed.
"""

import argparse
import filecmp
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from golden_models import build_models
from golden_records import FAMILIES

from reference.conformance.artifacts import (
    DATA,
    GOLDEN,
    MODELS,
    root_digest,
    sha256,
    to_plain,
    validate,
    write_json,
)

CORPUS_VERSION = "0.1.0"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix=".regen-", dir=GOLDEN.parent) as name:
        fresh = Path(name)
        build(fresh, options.only)
        if options.check:
            return report(differences(fresh))
        move(fresh)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing: regenerate elsewhere, list the files that differ, exit 1 if there are any",
    )
    parser.add_argument(
        "--only",
        choices=["models", *FAMILIES],
        help="regenerate one family (or the checkpoints); everything else is taken as it is",
    )
    return parser.parse_args(arguments)


def build(fresh: Path, only: str | None) -> None:
    """A whole golden tree in `fresh`; with `only`, the rest is copied from the one in place."""
    if only is not None:
        shutil.copytree(MODELS, fresh / "models")
        shutil.copytree(DATA, fresh / "data")
    if only in (None, "models"):
        timed("models", lambda: build_models(fresh / "models"))
    for family in FAMILIES if only is None else [only] if only in FAMILIES else []:
        timed(family, lambda family=family: build_family(family, fresh))
    write_json(fresh / "manifest.json", manifest(fresh))


def build_family(family: str, fresh: Path) -> None:
    """The records of one family, each checked against its schema."""
    directory = fresh / "data" / family
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    if (seed := DATA / family / "seed.json").exists():
        shutil.copyfile(seed, directory / "seed.json")
    for record in FAMILIES[family](fresh / "models"):
        plain = to_plain(record)
        validate(plain, family, record["id"])
        path = directory / f"{record['id'].partition('/')[2]}.json"
        if path.exists():
            raise SystemExit(f"two records are called {record['id']}")
        write_json(path, plain)


def manifest(fresh: Path) -> dict[str, object]:
    files = {str(path.relative_to(fresh)): sha256(path) for path in tree(fresh)}
    return {"schema_version": 1, "corpus_version": CORPUS_VERSION, "files": files, "root": root_digest(files)}


def differences(fresh: Path) -> list[str]:
    """Files that are new, gone or changed, by name."""
    ours = {path.relative_to(fresh) for path in tree(fresh)} | {Path("manifest.json")}
    theirs = {path.relative_to(GOLDEN) for part in (DATA, MODELS) for path in part.rglob("*") if path.is_file()}
    if (GOLDEN / "manifest.json").exists():
        theirs.add(Path("manifest.json"))
    changed = {name for name in ours & theirs if not filecmp.cmp(fresh / name, GOLDEN / name, shallow=False)}
    return sorted(map(str, (ours ^ theirs) | changed))


def report(differing: list[str]) -> int:
    for name in differing:
        print(f"differs: golden/{name}")
    if differing:
        print(f"{len(differing)} files differ; run python tools/regen.py and look at the diff")
        return 1
    print("goldens are up to date, byte for byte")
    return 0


def move(fresh: Path) -> None:
    """Replaces each part of the golden tree by the fresh one."""
    for name in ("models", "data"):
        old = fresh / f"old-{name}"
        if (GOLDEN / name).exists():
            os.replace(GOLDEN / name, old)
        os.replace(fresh / name, GOLDEN / name)
    os.replace(fresh / "manifest.json", GOLDEN / "manifest.json")


def tree(root: Path) -> list[Path]:
    """Every golden file below a root, in order."""
    return sorted(path for name in ("data", "models") for path in (root / name).rglob("*") if path.is_file())


def timed(name: str, step: Callable[[], None]) -> None:
    start = time.perf_counter()
    print(f"{name:12s} ", end="", flush=True)
    step()
    print(f"{time.perf_counter() - start:5.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
