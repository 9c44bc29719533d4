"""A mutant in a fork of this process: the specification is imported anew with its edits, numpy is not.

Many times as fast as a process behind the protocol, for mutants of which there are many. Answers are the same.
"""

import importlib
import multiprocessing
import sys
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from reference.conformance.channel import HarnessError
from reference.engine import Description, Engine, ReferenceEngine, verbs_of
from reference.errors import Refusal, RefusedError
from tests.mutants import hook
from tests.mutants.mutant import Mutant
from tools.mutant_runs import LIMIT_S


class ForkedEngine(Engine):
    """The verbs of the specification, answered by a child. What is no answer in time is a HarnessError, for ever."""

    def __init__(self, mutant: Mutant) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, other = context.Pipe()
        self._child = context.Process(target=answer, args=(mutant, other), daemon=True)
        self._child.start()
        other.close()
        for verb in verbs_of(ReferenceEngine) - {"describe"}:
            setattr(self, verb, partial(self._ask, verb))

    def describe(self) -> Description:
        return ReferenceEngine().describe()

    def _ask(self, verb: str, *args: Any, **options: Any) -> Any:
        try:
            self._pipe.send((verb, args, options))
            told = self._pipe.recv() if self._pipe.poll(LIMIT_S) else {"silent": f"no answer in {LIMIT_S} s"}
        except (EOFError, OSError) as error:
            told = {"silent": f"died: {type(error).__name__}"}
        match told:
            case {"result": result}:
                return result
            case {"refused": reason, "sentence": sentence}:
                raise RefusedError(Refusal(reason), sentence)
            case {"error": sentence}:
                raise RuntimeError(sentence)
        self.bye()
        raise HarnessError(told["silent"])

    def bye(self) -> None:
        self._child.kill()
        self._child.join()
        self._pipe.close()


def answer(mutant: Mutant, pipe: Connection) -> None:
    """The child: verbs in, what came of them out, until it is killed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "reference"]:
        del sys.modules[name]
    hook.install(mutant)
    engine: Any = None
    while True:
        verb, args, options = pipe.recv()
        told: Mapping[str, Any]
        try:
            engine = engine or importlib.import_module("reference.engine").ReferenceEngine()
            told = {"result": getattr(engine, verb)(*args, **options)}
        except Exception as error:  # the judge decides what it means
            told = {"error": f"{type(error).__name__}: {error}"}
            if type(error).__name__ == "RefusedError":
                told = {"refused": str(getattr(error, "reason", "")), "sentence": str(error)}
        pipe.send(told)
