"""Which ports of a running server come back after a restart: found on a real vLLM, whose engine process listens on a dozen
ports that it draws anew at every start, so that a restore which waited for all of them never ended."""

from __future__ import annotations

import pytest

from optimizer.box.plain.original import serving_ports

DRAWN = (32768, 60999)
RENDEZVOUS = {33297, 34007, 45339}


@pytest.mark.parametrize(
    ("argv", "own", "family", "expected"),
    [
        (["python", "-m", "vllm", "--port", "59055"], {59055}, {59055} | RENDEZVOUS, {59055}),
        (["python", "-m", "vllm", "--port=8000"], {8000, 41000}, {8000, 41000} | RENDEZVOUS, {8000}),
        (["vllm", "serve", "m"], {8000}, {8000} | RENDEZVOUS, {8000}),
        (["vllm", "serve", "m"], {8000, 35000}, {8000, 35000} | RENDEZVOUS, {8000}),
        (["wrapper", "server"], set(), {8000} | RENDEZVOUS, {8000}),
        (["server", "--port", "9000"], {8000}, {8000}, {8000}),
        (["server", "--port"], {50000}, {50000} | RENDEZVOUS, {50000}),
        (["server", "--port", "0"], {50000}, {50000}, {50000}),
        (["server"], set(), set(), set()),
    ],
)
def test_ports_that_come_back(argv: list[str], own: set[int], family: set[int], expected: set[int]) -> None:
    assert serving_ports(argv, own, family, DRAWN) == expected
