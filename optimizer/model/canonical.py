"""Canonical JSON, digests and derived seeds. Decisions are compared byte for byte, so every one of them passes here."""

import hashlib
import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, UTF-8 kept, NaN and infinities refused (ValueError)."""
    return _ENCODER.encode(value)


def sha256_hex(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def digest(value: Any) -> str:
    """sha256 of the canonical JSON of ``value``."""
    return sha256_hex(canonical_json(value))


def derived_seed(*purpose: str | int) -> int:
    """A 32-bit seed from names and counters: the only source of randomness that a decision may use."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, purpose)).encode()).digest()[:4], "big")
