#!/usr/bin/env python3
"""Regenerate the goldens under settings that change what numpy computes, and demand the same bytes.

Each setting has a canary: a computation that is not the specification's and that must come out differently under it.
Where it does not, the setting had no effect, and a check under it would show nothing: that fails too.
"""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REGEN = Path(__file__).with_name("regen.py")

# Prints digests of numpy's own functions, of BLAS products and of Python's string hash. The functions are taken in
# float32 too: without AVX-512 those of float64 have one implementation only.
CANARY = """
import hashlib, numpy as np
x = np.linspace(-20.0, 20.0, 100003)
w = np.cos(np.arange(300 * 301, dtype=np.float64)).reshape(300, 301)
functions = [f(x.astype(dtype)) for f in (np.exp, np.tanh, np.sin) for dtype in ("f4", "f8")]
for number in (np.concatenate(functions), w.T @ w):
    print(hashlib.sha256(number.tobytes()).hexdigest())
print(hash("canary"))
"""
EXP, BLAS, HASH = 0, 1, 2

DISPATCHED = """
import numpy._core._multiarray_umath as umath
print(" ".join(name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if platform.machine() not in ("x86_64", "AMD64"):
        print(
            f"regen --check under CPU settings needs x86-64; this is {platform.machine()}, so only a plain check runs"
        )
        return subprocess.run([sys.executable, REGEN, "--check"], check=False).returncode
    usual = canary({})
    legs = [(f"PYTHONHASHSEED={seed}", {"PYTHONHASHSEED": seed}, HASH) for seed in ("1", "2")]
    legs.append(("NPY_DISABLE_CPU_FEATURES", {"NPY_DISABLE_CPU_FEATURES": run(DISPATCHED, {}).strip()}, EXP))
    legs += [(f"OPENBLAS_CORETYPE={core}", {"OPENBLAS_CORETYPE": core}, BLAS) for core in effective_cores(usual)]
    if not any(changed == BLAS for _, _, changed in legs):
        print("no OPENBLAS_CORETYPE changes a product here: that leg would show nothing")
        return 1
    return max(check(name, setting, changed, usual) for name, setting, changed in legs)


def effective_cores(usual: list[str]) -> list[str]:
    """The first OpenBLAS kernel whose products differ from those of the kernel in use."""
    for core in ("Nehalem", "Prescott", "Sandybridge", "Haswell"):
        if canary({"OPENBLAS_CORETYPE": core})[BLAS] != usual[BLAS]:
            return [core]
    return []


def check(name: str, setting: Mapping[str, str], changed: int, usual: list[str]) -> int:
    """One leg: its canary must differ from the usual one, the goldens must not."""
    if canary(setting)[changed] == usual[changed]:
        print(f"{name}: the canary did not change, so this leg shows nothing")
        return 1
    print(f"{name}: canary changed; regenerating", flush=True)
    return subprocess.run([sys.executable, REGEN, "--check"], env=environment(setting), check=False).returncode


def canary(setting: Mapping[str, str]) -> list[str]:
    return run(CANARY, setting).split()


def run(program: str, setting: Mapping[str, str]) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment(setting), check=True, capture_output=True, text=True).stdout


def environment(setting: Mapping[str, str]) -> dict[str, str]:
    """The environment without the settings under test, then with those of a leg."""
    tested = ("PYTHONHASHSEED", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "OPENBLAS_CORETYPE")
    return {name: text for name, text in os.environ.items() if name not in tested} | dict(setting)


if __name__ == "__main__":
    sys.exit(main())
