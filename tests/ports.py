"""Ports for tests. Between the moment a test picks one and the moment its server listens there, nobody else may come to have it: not the
kernel, which gives outgoing connections ports from 32768 on, not another test process, and not a study, whose launches get 20000 to 29999."""

from __future__ import annotations

import itertools
import os
import re
import socket

FIRST, EACH, PROCESSES = 10000, 1000, 10

_worker = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or os.getpid()) % PROCESSES
_next = itertools.count(os.getpid() * 37)


def free_port() -> int:
    """The next port of this process's own thousand that nobody listens on, at any address."""
    for number in itertools.islice(_next, EACH):
        port = FIRST + _worker * EACH + number % EACH
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of the ports from {FIRST + _worker * EACH} on is free")
