"""Strings of engines and machines as a report may show them: legible everywhere, and silent about the machine."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reference.conformance.artifacts import ROOT

LONGEST = 2000
"""Characters of a string that are kept; an engine's last words can be megabytes."""

# Control characters (which XML forbids), lone surrogates (which UTF-8 forbids), and what turns the direction of text.
ILLEGIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
USER_OF_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
SECRET_NAME = r"(?i:api[-_]?key|passw(?:or)?d|secret|access[-_]?token|auth[-_]?token)"
SECRET = re.compile(rf"((?:^|\s)[\w-]*{SECRET_NAME}(?:=|\s+))('[^']*'|\"[^\"]*\"|\S+)")


def presentable(content: Any) -> Any:
    """JSON content with every string in it, and every key, made presentable."""
    if isinstance(content, str):
        return shortened(portable(legible(content)))
    if isinstance(content, Mapping):
        return {presentable(key): presentable(member) for key, member in content.items()}
    return [presentable(member) for member in content] if isinstance(content, list | tuple) else content


def legible(text: str) -> str:
    r"""Characters that no format can carry, or no reader can see, as escapes: \x1b, \ud800."""
    return ILLEGIBLE.sub(lambda found: _escape(ord(found[0])), text)


def portable(text: str) -> str:
    """Paths below the current directory or the repository relative to it, those below home with ~; no password."""
    text = USER_OF_ADDRESS.sub("", text)
    for directory, short in ((Path.cwd(), ""), (ROOT, ""), (Path.home(), "~/")):
        if len(directory.parts) > 1:
            text = re.sub(rf"(?<![\w.~/-]){re.escape(str(directory))}/", short, text)
    return text


def without_secrets(command: str) -> str:
    """A command line in which the value of an option or variable that is called a key or a password is ***."""
    return SECRET.sub(r"\1***", command)


def shortened(text: str) -> str:
    """At most LONGEST characters, and how many there were more."""
    more = len(text) - LONGEST
    return text if more <= 0 else f"{text[:LONGEST]} ... ({more} characters more)"


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
