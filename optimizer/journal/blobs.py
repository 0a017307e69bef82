"""Attachments of entries: compressed, content-addressed, capped. Turns bytes into a row and back; never touches the
database."""

import zlib
from typing import Any

from optimizer.errors import JournalCorrupt
from optimizer.model.base import Frozen
from optimizer.model.canonical import sha256_hex

# Compressed size above which only the two ends of an attachment are kept.
CAP_BYTES = 4 * 1024 * 1024


class Blob(Frozen):
    """One attachment as stored. ``sha256`` and ``total_bytes`` describe the whole, even when only its ends were
    kept."""

    sha256: str
    encoding: str
    total_bytes: int
    kept: str
    data: bytes


BLOB_COLUMNS = ("sha256", "encoding", "total_bytes", "kept", "data")


def blob_row(blob: Blob) -> tuple[Any, ...]:
    """The row to insert, in the order of BLOB_COLUMNS."""
    return (blob.sha256, blob.encoding, blob.total_bytes, blob.kept, blob.data)


def blob_of(row: tuple[Any, ...]) -> Blob:
    return Blob(sha256=row[0], encoding=row[1], total_bytes=row[2], kept=row[3], data=row[4])


def packed(data: bytes, cap_bytes: int = CAP_BYTES) -> Blob:
    """Compress ``data``; above the cap keep its head and tail, where the start-up and the end of a log stand."""
    compressed = zlib.compress(data, 6)
    kept = "all"
    share = len(data)
    while len(compressed) > cap_bytes:
        # The ends may compress worse than the whole: shrink until they fit.
        share = min(int(share * cap_bytes / len(compressed) * 0.9), len(data) - 1)
        head, tail = share - share // 2, share // 2
        kept = f"head:{head},tail:{tail}"
        compressed = zlib.compress(data[:head] + data[len(data) - tail :], 6)
    return Blob(sha256=sha256_hex(data), encoding="zlib", total_bytes=len(data), kept=kept, data=compressed)


def unpacked(blob: Blob) -> bytes:
    """The attachment, with a line that says how much is missing between its ends if it was cut."""
    if blob.encoding != "zlib":
        raise JournalCorrupt(f"Attachment {blob.sha256[:12]} has the unknown encoding {blob.encoding!r}.")
    try:
        data = zlib.decompress(blob.data)
    except zlib.error as error:
        raise JournalCorrupt(f"Attachment {blob.sha256[:12]} cannot be decompressed: {error}.") from error
    if blob.kept == "all":
        if sha256_hex(data) != blob.sha256:
            raise JournalCorrupt(f"Attachment {blob.sha256[:12]} does not have the digest under which it is filed.")
        return data
    head, tail = (int(part.partition(":")[2]) for part in blob.kept.split(","))
    if head + tail != len(data):
        raise JournalCorrupt(f"Attachment {blob.sha256[:12]} should hold {head + tail} bytes and holds {len(data)}.")
    return data[:head] + f"\n[... {blob.total_bytes - head - tail} bytes not kept ...]\n".encode() + data[head:]
