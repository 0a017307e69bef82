"""What was recognised in the real logs, per engine build: every file of the recordings, of the excerpts and, where this
checkout has them beside it, of the shared references. A statistics line that is not understood is counted and shown."""

from pathlib import Path

import pytest

from optimizer.evidence.bundle import bundle_from_files
from optimizer.evidence.exits import classify
from optimizer.evidence.sglang_log import SglangLog
from optimizer.evidence.vllm_log import VllmLog

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT / "tests" / "recordings"
SHARED = ROOT.parent / "shared"

# build -> logs, decode or statistics lines, prefill or speculation lines
TABLE = {
    "sglang-0.5.12-h200": (14, 222, 197),
    "sglang-0.5.23-cpu": (6, 70, 359),
    "vllm-0.32-cpu": (13, 33, 6),
}
# folder beside this checkout -> the same
BESIDE = {
    "recordings/sglang-0.5.12-h200": (14, 222, 197),
    "recordings/sglang-0.5.23-cpu": (6, 70, 359),
    "recordings/vllm-0.32-cpu": (13, 33, 6),
    "reference/sglang/logs": (25, 26, 25),
}


def counted(folder: Path, vllm: bool) -> tuple[int, int, int]:
    """Recognised lines of all logs under a folder; fails where one that is printed was not recognised."""
    logs = first = second = 0
    for path in sorted(folder.rglob("*.log")):
        data = path.read_bytes()
        logs += 1
        if vllm:
            log = VllmLog()
            log.feed(data)
            log.statistics.read()
            read = (log.statistics.count, log.statistics.spec_count)
            printed = (data.count(b"Avg prompt throughput:"), data.count(b"SpecDecoding metrics:"))
            strange = log.found.unrecognised
        else:
            other = SglangLog()
            other.feed(data)
            other.steps.read()
            read = (len(other.decodes), len(other.prefills))
            printed = (data.count(b"Decode batch"), data.count(b"Prefill batch"))
            strange = other.found.unrecognised
        assert (read, strange) == (printed, 0), path
        classify(data, 1)
        first, second = first + read[0], second + read[1]
    return logs, first, second


@pytest.mark.parametrize("build", TABLE)
def test_recordings(build: str) -> None:
    assert counted(RECORDINGS / build, build.startswith("vllm")) == TABLE[build]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared references are not beside this checkout")
@pytest.mark.parametrize("folder", BESIDE)
def test_references(folder: str) -> None:
    assert counted(SHARED / folder, "vllm" in folder) == BESIDE[folder]


@pytest.mark.parametrize(
    ("engine", "lines"),
    [
        ("sglang", [b"[2026-01-01 00:00:00] Decode batch, #sequences: 4, tempo: 12", b"[2026-01-01 00:00:00] Prefill batch, odd: 1"]),
        ("vllm", [b"INFO 01-01 00:00:00 [x.py:1] Engine 000: Avg prompt throughput: soon, Running: many",
                  b"INFO 01-01 00:00:00 [x.py:1] SpecDecoding metrics: fine"]),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_counted_and_shown(engine: str, lines: list[bytes]) -> None:
    launch = b'{"engine": "%s", "argv": ["x"]}' % engine.encode()
    evidence = bundle_from_files({"launch.json": launch, "server.log": b"\n".join(lines)}).evidence
    fact = evidence.get("log.unrecognised_lines")
    assert fact is not None and (fact.value, fact.line) == (2, 1)
    assert evidence.unrecognised_lines == 2 and lines[0].rpartition(b"] ")[2].decode() in evidence.unrecognised_examples[0]


@pytest.mark.parametrize(("engine", "odd"), [("sglang", 7), ("vllm", 7)])
def test_lines_before_the_last_are_counted_to_the_line(engine: str, odd: int) -> None:
    """Only the last ones are read, but how many there were, and how many were strange, is exact."""
    many = 45_000
    if engine == "sglang":
        line = b"[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 3, #token: 9, token usage: 0.10, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0\n"
        prefill = b"[2026-01-01 00:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 10, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0\n"
        log = SglangLog()
        log.feed(prefill * 3 + b"[2026-01-01 00:00:00] The server is fired up and ready to roll!\n" + (line * 9 + prefill) * (many // 9)
                 + b"[2026-01-01 00:00:00 TP0] Decode batch, tempo: 3\n" * odd + line * many)  # fmt: skip
        evidence = log.finish().evidence()
        assert (evidence.value("decode.lines"), evidence.value("prefill.lines")) == (2 * many, many // 9)
    else:
        line = (b"INFO 01-01 00:00:00 [x.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
                b"Running: 3 reqs, Waiting: 4 reqs, Preemptions: 2, GPU KV cache usage: 5.0%\n")  # fmt: skip
        spec = b"INFO 01-01 00:00:00 [x.py:1] SpecDecoding metrics: Mean acceptance length: 2.00, Accepted: 1 tokens, Drafted: 2 tokens\n"
        vllm = VllmLog()
        vllm.feed((line + spec) * many + b"INFO 01-01 00:00:00 [x.py:1] Engine 000: Avg prompt throughput: soon\n" * odd + line * many)
        evidence = vllm.finish().evidence()
        assert [evidence.value(name) for name in ("decode.lines", "kv.preemptions", "spec.accepted_tokens", "spec.drafted_tokens")] == [
            2 * many, 4 * many, many, 2 * many]  # fmt: skip
        assert vllm.statistics.spec_count == many
    assert evidence.value("log.unrecognised_lines") == odd
