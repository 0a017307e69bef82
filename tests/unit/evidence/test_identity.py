"""A journal is passed on: it says what kind of card was measured, never which one."""

from pathlib import Path

from optimizer.evidence.found import Found
from optimizer.evidence.nvidia_smi import query_facts, without_identity

QUERY = Path(__file__).parents[2] / "recordings/sglang-0.5.12-h200/nvidia-smi-q.txt"


def test_serial_numbers_go_and_facts_stay() -> None:
    data = QUERY.read_bytes().replace(b": 0000000000000", b": 1652224007421").replace(b"GPU-00000000", b"GPU-8d1f33aa")
    kept = without_identity(data)
    assert b"1652224007421" in data and b"GPU-8d1f33aa" in data
    for name in (b"Serial", b"UUID", b"PDI", b"Host ID", b"1652224007421", b"8d1f33aa"):
        assert name not in kept
    before, after = Found("q"), Found("q")
    query_facts(before, data, under_load=True)
    query_facts(after, kept, under_load=True)
    said = [[(fact.name, fact.value) for fact in found.evidence().facts] for found in (before, after)]
    assert said[0] == said[1] != []
