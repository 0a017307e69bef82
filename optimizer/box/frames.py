"""Reads the shim's framed answer out of whatever a login shell prints around it. Anything that does not carry the nonce
of this call is noise and is dropped; memory is bounded whatever arrives."""

from collections.abc import Callable

REPLY_CAP_BYTES = 64 << 20
_HEADER_CAP_BYTES = 128


class FrameReader:
    """Fed with pieces of standard output. ``reply`` is the payload of the first complete reply frame, else None; pieces
    of a job's output go to ``on_out``."""

    def __init__(self, nonce: str, on_out: Callable[[bytes], None] | None = None) -> None:
        self._mark = b"\n@@" + nonce.encode("ascii") + b" "
        self._on_out = on_out
        self._buffer = bytearray(b"\n")  # a frame at the very start of the output counts as well
        self._frame: tuple[bytes, int] | None = None
        self.reply: bytes | None = None

    def feed(self, data: bytes) -> None:
        if self.reply is not None:
            return  # a second reply, or noise after it
        self._buffer += data
        while self._take():
            pass

    def _take(self) -> bool:
        """Consumes one header or one payload; False when more bytes are needed."""
        if self._frame is not None:
            kind, size = self._frame
            if len(self._buffer) < size:
                return False
            payload = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._frame = None
            if kind == b"reply":
                self.reply = payload
                self._buffer.clear()
                return False
            if kind == b"out" and self._on_out is not None:
                self._on_out(payload)
            return True
        start = self._buffer.find(self._mark)
        if start < 0:
            del self._buffer[: -len(self._mark)]
            return False
        head = start + len(self._mark)
        end = self._buffer.find(b"\n", head, head + _HEADER_CAP_BYTES)
        if end < 0:
            del self._buffer[:start]
            if len(self._buffer) > len(self._mark) + _HEADER_CAP_BYTES:
                del self._buffer[:1]  # a header is short: this was none
                return True
            return False
        words = bytes(self._buffer[head:end]).split()
        del self._buffer[: end + 1]
        if len(words) == 2 and words[1].isdigit() and int(words[1]) <= REPLY_CAP_BYTES:
            self._frame = (words[0], int(words[1]))
        return True
