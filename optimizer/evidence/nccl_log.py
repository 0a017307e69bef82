"""Reads NCCL's own log lines (NCCL_DEBUG=INFO) wherever they stand in a server log: transport, channels, protocol,
environment, error texts, and over how many hosts the ranks are spread. The largest communicator is the main one."""

import re

from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line, text

_CHANNEL = re.compile(
    rb"Channel (\d{1,3})(?:/\d{1,3})? : \d{1,5}\[[0-9a-f]{1,8}\] -> \d{1,5}\[[0-9a-f]{1,8}\] "
    rb"(?:\[\w{1,8}\] )?via (\S{1,60})"
)
_COUNT = re.compile(rb"Channel \d{1,3}/(\d{1,3}) : ")
_SET = re.compile(rb"(NCCL_\w{1,60}) set by environment to (\S{1,200}?)\.?$")
_TUNING = re.compile(
    rb"(?:AllReduce|all_reduce)\w{0,20}: (\d{1,14}) Bytes -> Algo (\w{1,20}) proto (\w{1,10})", re.IGNORECASE
)
_VERSION = re.compile(rb"NCCL version (\d[\w.+]{0,40})")
_NVLS = re.compile(rb"(\d{1,3}) nvls channels")
_NODES = re.compile(rb"\bnRanks (\d{1,5}) nNodes (\d{1,5})\b")
_ADDRESS = re.compile(r"0x[0-9a-f]+|\d{1,3}(?:\.\d{1,3}){3}(?:<\d+>)?|\b\d{3,}\b")
MAX_READ = 4_096
_SLOWEST_FIRST = ("net_socket", "net_ib", "shm", "p2p", "nvls")


class NcclLog:
    """Accumulates; ``finish`` states the facts into the ``found`` it was given."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._transports: dict[str, tuple[int, Line]] = {}
        self._channels: tuple[int, Line] | None = None
        self._protocol: tuple[str, Line] | None = None
        self._environment: dict[str, Line] = {}
        self._errors: dict[str, Line] = {}
        self._network: tuple[str, Line] | None = None
        self._nodes: tuple[int, int, Line] | None = None  # of the largest communicator: ranks, hosts
        self._seen: Line | None = None
        self._read: set[bytes] = set()

    def line(self, line: Line) -> None:
        """One line that contains ``NCCL`` (or a torch watchdog line)."""
        raw = line.raw[:2000]
        at = raw.find(b"NCCL INFO ")
        if at >= 0:
            message = raw[at:]
            if message in self._read:
                return  # word for word: every rank and every communicator says most things again
            if len(self._read) < MAX_READ:
                self._read.add(message)
            self._info(line, raw)
        elif (
            b"NCCL WARN" in raw
            or b"Watchdog caught collective" in raw
            or b"NCCL error" in raw
            or b"ncclUnhandledCudaError" in raw
        ):
            self._error(line, raw)
        if b"NCCL version" in raw and not self._found.has("nccl.version"):
            match = _VERSION.search(raw)
            if match:
                self._found.add("nccl.version", text(match[1]).split("+")[0], line)

    def _info(self, line: Line, raw: bytes) -> None:
        self._seen = self._seen or line
        if b"Channel " in raw:
            match = _CHANNEL.search(raw)
            if match:
                kind = _transport(match[2])
                if kind:
                    count, first = self._transports.get(kind, (0, line))
                    self._transports[kind] = (count + 1, first)
            count_match = _COUNT.search(raw)
            if count_match and (self._channels is None or int(count_match[1]) > self._channels[0]):
                self._channels = (int(count_match[1]), line)
            return
        if b"set by environment" in raw:
            match = _SET.search(raw.rstrip())
            if match:
                self._environment.setdefault(f"{text(match[1])}={text(match[2])}", line)
        elif b"Using network " in raw:
            self._network = (text(raw.partition(b"Using network ")[2], 40).strip(), line)
        elif b" Bytes -> Algo" in raw:
            match = _TUNING.search(raw)
            if match and int(match[1]) <= 1 << 20:
                name = match[3].decode().lower()
                self._protocol = ({"ll": "ll", "ll128": "ll128", "simple": "simple"}.get(name, ""), line)
        elif b" nNodes " in raw:
            match = _NODES.search(raw)
            if match and (self._nodes is None or int(match[1]) > self._nodes[0]):
                self._nodes = (int(match[1]), int(match[2]), line)
        elif b"nvls channels" in raw:
            match = _NVLS.search(raw)
            if match and not self._found.has("nccl.nvls"):
                self._found.add("nccl.nvls", int(match[1]) > 0, line)
        elif b"Failed to open lib" in raw or b"Call to ibv" in raw or b"failed with error" in raw:
            self._error(line, raw)

    def _error(self, line: Line, raw: bytes) -> None:
        message = text(raw, 400)
        for marker in ("NCCL WARN ", "NCCL INFO ", "NCCL error"):
            if marker in message:
                message = message.partition(marker)[2] if marker != "NCCL error" else message[message.index(marker) :]
                break
        message = _ADDRESS.sub("N", message).strip()[:160]
        if message and len(self._errors) < 20:
            self._errors.setdefault(message, line)

    def finish(self) -> None:
        found = self._found
        if self._transports:
            kind = next(name for name in _SLOWEST_FIRST if name in self._transports)
            found.add("nccl.transport", kind, self._transports[kind][1])
        elif self._network is not None and self._seen is not None:
            found.missing("nccl.transport", "NCCL named its network but the log shows no channel between two ranks")
        if self._nodes and not found.has("parallel.nodes"):
            found.add("parallel.nodes", self._nodes[1], self._nodes[2])
        if self._channels:
            found.add("nccl.channels", self._channels[0], self._channels[1])
        if self._protocol and self._protocol[0]:
            found.add("nccl.protocol", self._protocol[0], self._protocol[1])
        if self._network:
            found.add("nccl.network", self._network[0], self._network[1])
        if self._environment:
            found.add("nccl.env", sorted(self._environment), next(iter(self._environment.values())))
        if self._errors:
            found.add("nccl.error_lines", sorted(self._errors), next(iter(self._errors.values())))


def _transport(via: bytes) -> str | None:
    head = via.upper()
    if head.startswith(b"P2P"):
        return "p2p"
    if head.startswith(b"SHM"):
        return "shm"
    if head.startswith(b"NVLS"):
        return "nvls"
    if head.startswith(b"NET/SOCKET"):
        return "net_socket"
    return "net_ib" if head.startswith((b"NET", b"COLLNET")) else None
