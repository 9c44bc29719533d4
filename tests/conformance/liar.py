"""python liar.py LIE: an engine behind the protocol that is the specification but for one lie on the wire.

It reads requests itself, so that it can break what the worker keeps: one answer a request, nothing else on stdout.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from reference.conformance.adapters.golden_llama.adapter import Specification
from reference.conformance.worker import answer_to

GIGABYTE = 1 << 30
PIECE = b"0" * (1 << 20)


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def answer(seq: int, body: bytes) -> bytes:
    return b'{"seq":%d,%s\n' % (seq, body[1:])


def garbage(seq: int, _body: bytes) -> None:
    say(b"\xff\xfe segmentation fault (core not dumped)\n")


def log_line(seq: int, body: bytes) -> None:
    say(b"[INFO] forward pass took 3 ms\n" + answer(seq, body))


def log_after(seq: int, body: bytes) -> None:
    say(answer(seq, body) + b"[INFO] forward pass took 3 ms\n")


def twice(seq: int, body: bytes) -> None:
    say(answer(seq, body) * 2)


def late_twice(seq: int, body: bytes) -> None:
    """The second answer comes while nobody asks."""
    say(answer(seq, body))
    time.sleep(0.05)
    say(answer(seq, body))


def out_of_order(seq: int, body: bytes) -> None:
    say(answer(seq - 1, body))


def never(seq: int, _body: bytes) -> None:
    time.sleep(600)


def half(seq: int, body: bytes) -> None:
    """Half an answer, and no end of it."""
    say(answer(seq, body)[:20])
    time.sleep(600)


def dies_halfway(seq: int, body: bytes) -> None:
    say(answer(seq, body)[:20])
    print("out of memory: killed by myself", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def gigabyte(seq: int, _body: bytes) -> None:
    for _ in range(GIGABYTE // len(PIECE)):
        say(PIECE)


def bare_nan(seq: int, _body: bytes) -> None:
    say(answer(seq, b'{"result":{"rows":[[NaN,0.0]]}}'))


def deep(seq: int, _body: bytes) -> None:
    say(b"[" * 100_000 + b"\n")


def two_members(seq: int, body: bytes) -> None:
    say(answer(seq, body[:-1] + b',"unsupported":{"feature":"score"}}'))


def nothing(seq: int, _body: bytes) -> None:
    say(b"\n")


def short_base64(seq: int, _body: bytes) -> None:
    say(answer(seq, b'{"result":{"rows":{"dtype":"float32","shape":[5,17],"base64":"AAAA"}}}'))


def another_dtype(seq: int, _body: bytes) -> None:
    say(answer(seq, b'{"result":{"rows":{"dtype":"object","shape":[1],"base64":""}}}'))


def text_ids(seq: int, _body: bytes) -> None:
    say(answer(seq, b'{"result":{"outputs":[{"tokens":["the"," cat"]}]}}'))


def two_outputs(seq: int, body: bytes) -> None:
    outputs = json.loads(body)["result"]["outputs"] * 2
    say(answer(seq, json.dumps({"result": {"outputs": outputs}}).encode()))


def has_none(seq: int, _body: bytes) -> None:
    say(answer(seq, b'{"unsupported":{"feature":"score"}}'))


def hangs_on_exit(seq: int, body: bytes) -> None:
    """Leaves a child behind, tells its process id to the test, and ignores every polite request to end."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(sys.argv[2]).write_text(f"{os.getpid()} {child.pid}")
    say(answer(seq, body))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


LIES: dict[str, Callable[[int, bytes], None]] = {
    lie.__name__: lie
    for lie in (
        *(
            garbage,
            log_line,
            log_after,
            twice,
            late_twice,
            out_of_order,
            never,
            half,
            dies_halfway,
            gigabyte,
            bare_nan,
        ),
        *(deep, two_members, nothing, short_base64, another_dtype, text_ids, two_outputs, has_none, hangs_on_exit),
    )
}


def requests() -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in sys.stdin.buffer)


def main() -> None:
    """Greets and loads honestly; every other answer is the lie."""
    engine = Specification()
    for request in requests():
        seq, verb = request["seq"], request["verb"]
        if verb == "bye":
            return
        body = answer_to(engine, verb, request["args"])
        if verb in ("hello", "load"):
            say(answer(seq, body))
        elif sys.argv[1] == "dies_once" and not (marker := Path(sys.argv[2])).exists():
            marker.touch()
            os._exit(7)
        else:
            LIES.get(sys.argv[1], lambda seq, body: say(answer(seq, body)))(seq, body)


if __name__ == "__main__":
    main()
