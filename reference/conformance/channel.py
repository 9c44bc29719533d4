"""A process that is asked in lines: time limits, bounded answers, its last words, and an end for its whole group."""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from reference.errors import Refusal, RefusedError

MAX_LINE_BYTES = 1 << 28
"""An answer is refused beyond this size: the logits of 1,000 positions of a vocabulary of 128,000 fit in float32."""

PIECE_BYTES = 1 << 16
KEPT_STDERR_BYTES = 1 << 14
GRACE_S = 3.0


class HarnessError(Exception):
    """The engine gave no answer that can be judged: it broke the protocol, died, or said nothing in time."""

    is_timeout = False


class AnswerTimeoutError(HarnessError):
    """No answer within the time limit."""

    is_timeout = True


class EngineDiedError(HarnessError):
    """The process ended instead of answering."""


class Channel:
    """A running process in a group of its own, its stdin and stdout as lines, the end of its stderr."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            sentence = f"cannot start {command[0]!r}: {error.strerror}; --engine takes a command line"
            raise RefusedError(Refusal.NOT_FOUND, sentence) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        self._unread = bytearray()
        self._last_words = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ask(self, line: bytes, limit_s: float) -> bytes:
        """Sends a line and gives the next line of stdout, both without their newline.

        Raises: EngineDiedError, AnswerTimeoutError, HarnessError (too much, or something unasked).
        """
        deadline = time.monotonic() + limit_s
        self._refuse_unasked()
        self._send(line + b"\n", deadline, limit_s)
        while b"\n" not in self._unread[-PIECE_BYTES:]:
            self._receive(deadline, limit_s)
        answer, _, rest = bytes(self._unread).partition(b"\n")
        self._unread = bytearray(rest)
        self._refuse_unasked()
        return answer

    def last_words(self) -> str:
        """The end of stderr."""
        return self._last_words.decode(errors="replace").strip()

    def close(self, farewell: bytes = b"") -> None:
        """Says farewell, closes stdin, waits a moment, and ends the process and what it started."""
        with suppress(OSError):
            os.write(self._stdin, farewell)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        # Without a farewell nobody expects it to end by itself.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S if farewell else 0.0)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join(GRACE_S)
        for pipe in (self._process.stdout, self._process.stderr):
            # A child that left the group may hold stderr open; its reader ends with this process.
            if pipe is not None and not (pipe is self._process.stderr and self._listener.is_alive()):
                pipe.close()

    def _send(self, message: bytes, deadline: float, limit_s: float) -> None:
        """Writes while the engine reads; what it says meanwhile is kept."""
        rest = memoryview(message)
        while rest:
            self._refuse_late(deadline, limit_s)
            readable, writable, _ = select.select(
                [self._stdout], [self._stdin], [], max(0.0, deadline - time.monotonic())
            )
            if readable:
                self._read_piece()
            if writable:
                try:
                    rest = rest[os.write(self._stdin, rest[:PIECE_BYTES]) :]
                except BrokenPipeError:
                    self._died()

    def _receive(self, deadline: float, limit_s: float) -> None:
        self._refuse_late(deadline, limit_s)
        readable, _, _ = select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))
        if readable:
            self._read_piece()

    def _read_piece(self) -> None:
        piece = os.read(self._stdout, PIECE_BYTES)
        if not piece:
            self._died()
        self._unread += piece
        if len(self._unread) > MAX_LINE_BYTES:
            raise HarnessError(f"the answer exceeds {MAX_LINE_BYTES} bytes")

    def _refuse_unasked(self) -> None:
        readable, _, _ = select.select([self._stdout], [], [], 0.0)
        if readable and not self._unread:
            self._read_piece()
        if self._unread:
            shown = bytes(self._unread[:80]).decode(errors="replace").splitlines()[0]
            raise HarnessError(f"stdout holds {shown!r}, which nobody asked for; only answers belong there")

    def _refuse_late(self, deadline: float, limit_s: float) -> None:
        if time.monotonic() > deadline:
            raise AnswerTimeoutError(f"no answer within {limit_s:g} s")

    def _died(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        status = self._process.poll()
        ending = "closed its stdout" if status is None else f"ended with exit status {status}"
        raise EngineDiedError(f"the engine {ending} before it answered")

    def _listen(self) -> None:
        assert self._process.stderr is not None
        while piece := self._process.stderr.read(PIECE_BYTES):
            self._last_words += piece
            del self._last_words[:-KEPT_STDERR_BYTES]
