"""Canonical JSON, digests and derived seeds. Decisions are compared byte for byte, so every one of them passes here."""

import hashlib
import json
import re
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, UTF-8 kept, NaN and infinities refused (ValueError). Half a surrogate pair, which
    a server's JSON may hold and no file or database takes, becomes the replacement character."""
    text = _ENCODER.encode(value)
    try:
        text.encode()  # far quicker than to look for them
    except UnicodeEncodeError:
        return _HALF_A_PAIR.sub("\N{REPLACEMENT CHARACTER}", text)
    return text


def sha256_hex(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def digest(value: Any) -> str:
    """sha256 of the canonical JSON of ``value``."""
    return sha256_hex(canonical_json(value))


def derived_seed(*purpose: str | int) -> int:
    """A 32-bit seed from names and counters: the only source of randomness that a decision may use."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, purpose)).encode()).digest()[:4], "big")
