"""No input makes a parser raise anything outside the project's own errors. What hostile logs cost in time and memory, and that
they state nothing, is tests/hostile/test_log_parsers.py."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.parsers import case, exits, files, gpu, llamacpp, metrics, nccl, sglang, text, vllm, which

RECORDINGS = Path(__file__).parents[2] / "recordings"
SEEDS = [line for path in (
    "sglang-0.5.12-h200/tp2-27b-nccl-shm/server.log", "sglang-0.5.12-h200/tp1-7b-kvlimited/server.log", "vllm-0.32-cpu/ngram/server.log",
    "sglang-0.5.12-h200/tp1-7b-oom/server.log", "sglang-0.5.12-h200/nvidia-smi-q.txt", "sglang-0.5.12-h200/topo.txt",
    "llamacpp-cpu/p4/server.log", "vllm-0.32-cpu/cyc_ngram4/metrics.txt", "sglang-0.5.12-h200/tp1-7b-graph32/metrics.txt",
) for line in (RECORDINGS / path).read_bytes().split(b"\n")[::7] if line]  # fmt: skip


PARSERS: list[Callable[[bytes], object]] = [sglang, vllm, llamacpp, nccl, metrics, gpu, exits, which, text, files, case]

broken = st.binary(max_size=12)
mutated = st.lists(
    st.tuples(st.sampled_from(SEEDS), st.integers(0, 400), st.integers(0, 30), broken).map(
        lambda part: part[0][: part[1]] + part[3] + part[0][part[1] + part[2] :]
    ),
    max_size=12,
).map(b"\n".join)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.one_of(mutated, st.binary(max_size=300)))
def test_never_raises(parser: Callable[[bytes], object], data: bytes) -> None:
    parser(data)
