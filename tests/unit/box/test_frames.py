"""The reply is found in any noise, and nothing but the holder of the nonce can write one."""

import random

import pytest

from optimizer.box.frames import REPLY_CAP_BYTES, FrameReader

NONCE = "c0ffee"


def frame(payload: bytes, kind: bytes = b"reply", nonce: str = NONCE) -> bytes:
    return b"\n@@%s %s %d\n%s\n" % (nonce.encode(), kind, len(payload), payload)


def read(data: bytes, step: int = 1 << 20) -> tuple[bytes | None, bytes]:
    out = bytearray()
    reader = FrameReader(NONCE, out.extend)
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
    return reader.reply, bytes(out)


@pytest.mark.fault("F9")
@pytest.mark.parametrize("step", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize(
    "noise",
    [b"", b"Welcome!\n", b"no line end", b"\n@@", b"\n@@c0ffe reply 2\n{}\n", b"@@00 reply 2\n{}\n", b"\xff\x00" * 500,
     b"\n@@c0ffee reply x\n", b"\n@@c0ffee reply -1\n", b"\n@@c0ffee " + b"y" * 500],
)  # fmt: skip
def test_noise_around_the_reply(noise: bytes, step: int) -> None:
    data = (
        noise
        + frame(b"part 1", b"out")
        + noise
        + frame(b"part \n@@c0ffe 2", b"out")
        + noise
        + frame(b'{"ok": 1}')
        + noise
    )
    assert read(data, step) == (b'{"ok": 1}', b"part 1part \n@@c0ffe 2")


@pytest.mark.fault("F7")
def test_a_truncated_reply_is_none() -> None:
    whole = frame(b"x" * 100)
    for cut in range(len(whole) - 2):
        assert read(whole[:cut])[0] is None


@pytest.mark.fault("F8")
def test_the_first_reply_counts() -> None:
    assert read(frame(b"1") + frame(b"2"))[0] == b"1"


@pytest.mark.fault("F8")
def test_a_reply_of_another_call_is_noise() -> None:
    assert read(frame(b"old", nonce="feed") + frame(b"new"))[0] == b"new"


@pytest.mark.fault("H29")
def test_payload_may_look_like_a_frame() -> None:
    assert read(frame(frame(b"inner", nonce="feed"), b"out") + frame(b"real"))[0] == b"real"


def test_memory_is_bounded() -> None:
    reader = FrameReader(NONCE)
    for _ in range(200):
        reader.feed(b"x" * 100_000)
    assert len(reader._buffer) < 1000
    reader.feed(b"\n@@c0ffee reply %d\n" % (REPLY_CAP_BYTES + 1) + b"y" * 1000)
    assert len(reader._buffer) < 2000 and reader.reply is None


def test_random_splits() -> None:
    rng = random.Random(4)
    for _ in range(200):
        data = rng.randbytes(50) + frame(rng.randbytes(rng.randrange(50)), b"out") + rng.randbytes(20) + frame(b"end")
        assert read(data, rng.randrange(1, 60))[0] == b"end"
