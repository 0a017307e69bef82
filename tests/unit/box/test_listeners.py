"""The proof that the server that answers is the one we started: exactly one listener, and it is ours."""

from collections.abc import Callable

import pytest

from optimizer.box.box import Box
from optimizer.box.plain import procfs
from optimizer.box.results import Listener, Listeners

from .test_launch import Server, said


@pytest.mark.fault("F25")
async def test_our_single_listener(box: Box, server: Server, free_port: int) -> None:
    assert await box.port_free(free_port)
    launched = await box.launch("s1", "1", server(free_port), port=free_port)
    await said(box, "s1", "1")
    found = await box.listeners(free_port, "s1:1")
    assert found.only_ours and found.listeners[0].pids == (launched.pid,)
    assert not (await box.listeners(free_port, "s1:2")).only_ours
    assert not (await box.listeners(free_port)).only_ours
    assert not await box.port_free(free_port)


@pytest.mark.parametrize("how", ["cleaned", "daemon"])
async def test_a_server_that_begins_anew_with_a_clean_environment_is_ours(box: Box, server: Server, free_port: int, how: str) -> None:
    await box.launch("s1", "1", server(free_port, how), port=free_port)
    await said(box, "s1", "1")
    try:
        assert (await box.listeners(free_port, "s1:1")).only_ours
        assert not (await box.listeners(free_port, "s1:2")).only_ours
    finally:
        assert (await box.sweep("s1", term_s=0.5, kill_s=5, gpu_wait_s=0)).clean
    assert await box.port_free(free_port)


@pytest.mark.fault("F26")
async def test_second_server_on_the_same_port_is_seen(
    box: Box, server: Server, free_port: int, spawn: Callable
) -> None:
    """SO_REUSEPORT: the kernel splits the traffic between the two, and every number would be wrong."""
    await box.launch("s1", "1", server(free_port, "reuseport"), port=free_port)
    await said(box, "s1", "1")
    assert (await box.listeners(free_port, "s1:1")).only_ours
    foreign = spawn(server(free_port, "reuseport"), stdout=-3)
    for _ in range(200):
        found = await box.listeners(free_port, "s1:1")
        if len(found.listeners) == 2:
            break
    assert [one.ours for one in sorted(found.listeners, key=lambda one: one.pids == (foreign.pid,))] == [True, False]
    assert not found.only_ours


async def test_our_own_second_server_is_no_proof_either(box: Box, server: Server, free_port: int) -> None:
    await box.launch("s1", "1", server(free_port, "reuseport"), port=free_port)
    await said(box, "s1", "1")
    assert (await box.listeners(free_port, "s1")).only_ours
    await box.launch("s1", "2", server(free_port, "reuseport"))
    await said(box, "s1", "2")
    assert not (await box.listeners(free_port, "s1")).only_ours


@pytest.mark.parametrize(
    ("word", "address"),
    [
        (b"0100007F", "127.0.0.1"),
        (b"00000000", "0.0.0.0"),
        (b"00000000000000000000000000000000", "0:0:0:0:0:0:0:0"),
        (b"00000000000000000000000001000000", "0:0:0:0:0:0:0:1"),
        (b"0000000000000000FFFF00000100007F", "0:0:0:0:0:ffff:7f00:1"),
    ],
)
def test_kernel_addresses(word: bytes, address: str) -> None:
    assert procfs._address(word) == address


def test_one_socket_for_each_family_is_one_server() -> None:
    def listener(address: str, ours: bool = True) -> Listener:
        return Listener(port=1, address=address, inode=1, pids=(1,), ours=ours)

    def only_ours(*listeners: Listener) -> bool:
        return Listeners(listeners=listeners).only_ours

    assert only_ours(listener("0.0.0.0"))
    assert only_ours(listener("0.0.0.0"), listener("0:0:0:0:0:0:0:0"))
    assert not only_ours()
    assert not only_ours(listener("0.0.0.0"), listener("0.0.0.0"))
    assert not only_ours(listener("0.0.0.0"), listener("127.0.0.1"))
    assert not only_ours(listener("0.0.0.0"), listener("0:0:0:0:0:0:0:0", ours=False))
    # A proxy of somebody's on another address of the machine is no company; one where we ask is.
    assert only_ours(listener("127.0.0.1"), listener("192.0.2.7", ours=False), listener("0:0:0:0:0:0:0:1", ours=False))
    assert not only_ours(listener("192.0.2.7"), listener("127.0.0.1", ours=False))
    assert not only_ours(listener("192.0.2.7", ours=False))


@pytest.mark.parametrize(
    ("one", "other", "met"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "0:0:0:0:0:0:0:0", True),
        ("127.0.0.1", "0:0:0:0:0:0:0:1", False),
        ("127.0.0.1", "0:0:0:0:0:ffff:7f00:1", True),
        ("0.0.0.0", "0:0:0:0:0:0:0:1", False),
        ("0.0.0.0", "0:0:0:0:0:0:0:0", True),
        ("0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:0", True),
    ],
)
def test_listeners_on_one_port_number_meet_where_their_addresses_do(one: str, other: str, met: bool) -> None:
    assert procfs.overlaps(one, other) is met and procfs.overlaps(other, one) is met
