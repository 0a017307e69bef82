"""Reads nvidia-smi: the sampled table (``gpu.csv``), the full query (``-q``) and the topology matrix (``topo -m``)."""

import re

from optimizer.evidence.found import Found, quantile
from optimizer.evidence.lines import Line, iter_lines, pieces_of, text

_VALUE = re.compile(r"-?\d+(?:\.\d+)?")
_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){1,3}")
_CELL = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|X")
_WORST_FIRST = ("sys", "node", "phb", "pxb", "pix", "nvlink")
_PCIE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # GB/s per lane and direction
# Which card it is says nothing about how fast it is, and a journal is there to be passed on.
_IDENTITY = re.compile(
    rb"^[ \t]*(?:[\w ]*Serial Number|[\w ]*UUID|[\w ]*GUID|GPU PDI|Board ID|Host ID)[ \t]*:[^\n]*\n", re.MULTILINE
)
_REASONS = (
    ("SW Power Cap", "sw_power_cap"),
    ("HW Power Brake Slowdown", "hw_power_brake"),
    ("SW Thermal Slowdown", "sw_thermal"),
    ("HW Thermal Slowdown", "hw_thermal"),
)


def without_identity(data: bytes) -> bytes:
    """``nvidia-smi -q`` without the lines that tell this card from others of its kind (serial numbers, UUIDs)."""
    return _IDENTITY.sub(b"", data)


def csv_facts(
    found: Found,
    data: bytes,
    gpus: int | None = None,
    power_limit_w: float | None = None,
    max_sm_mhz: float | None = None,
) -> None:
    """Samples ``time, index, SM util, memory util, memory used, power, SM clock, temperature``, one a second and GPU,
    no header."""
    rows: list[tuple[Line, list[float | None]]] = []
    bad = 0
    for line in iter_lines(pieces_of(data)):
        cells = text(line.raw, 400).split(",")
        if len(cells) < 7:
            bad += 1
            continue
        numbers = [_number(cell) for cell in cells[1:8]]
        if numbers[0] is None or (gpus is not None and numbers[0] >= gpus):
            continue
        rows.append((line, numbers))
    if not rows:
        found.missing(
            "gpu.sm_util_p50", "the table holds no sample" if not bad else f"none of its {bad} rows could be read"
        )
        return
    # The table also covers the time before and after the load; keep what lies between the first and last busy sample.
    busy = [index for index, (_, cells) in enumerate(rows) if (cells[1] or 0.0) >= 5.0]
    rows = rows[busy[0] : busy[-1] + 1] if busy else rows
    last = rows[-1][0]

    def middle(column: int, share: float = 0.5) -> float | None:
        return quantile(
            [cells[column] or 0.0 for _, cells in rows if len(cells) > column and cells[column] is not None], share
        )

    found.add("gpu.sm_util_p50", middle(1), last)
    found.add("gpu.mem_util_p50", middle(2), last)
    used = middle(3, 1.0)
    found.add("gpu.memory_used_gib", None if used is None else used / 1024, last)
    power = middle(4)
    found.add("gpu.power_w_p50", power, last)
    if power is not None and power_limit_w:
        found.add("gpu.power_share", power / power_limit_w, last, basis="derived")
    clock = middle(5)
    if clock is not None and max_sm_mhz:
        found.add("gpu.sm_clock_share", clock / max_sm_mhz, last, basis="derived")
    found.add("gpu.temperature_c_max", middle(6, 1.0), last)


class SmiQuery:
    """Figures of ``nvidia-smi -q`` that other files need: of the first GPU, and the names of all."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.power_limit_w: float | None = None
        self.max_sm_mhz: float | None = None


class _Gpu:
    """The entries of one GPU: path (section/section/key) -> value and line."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[str, Line]] = {}

    def number(self, *paths: str) -> tuple[float, Line] | None:
        for path in paths:
            entry = self.entries.get(path)
            value = _number(entry[0]) if entry else None
            if entry is not None and value is not None:
                return value, entry[1]
        return None

    def word(self, path: str) -> str:
        return self.entries[path][0] if path in self.entries else ""

    @property
    def power(self) -> str:
        return "GPU Power Readings" if "GPU Power Readings/Current Power Limit" in self.entries else "Power Readings"

    @property
    def idle(self) -> bool:
        """An idle GPU lowers its link and its clocks by design: what it shows then says nothing about its load."""
        reasons = [self.word(f"{title}/{name}") for title in _TITLES for name in ("Idle", "GPU Idle")]
        return "Active" in reasons


_TITLES = ("Clocks Event Reasons", "Clocks Throttle Reasons")


def _read_query(data: bytes) -> tuple[_Gpu, list[_Gpu]]:
    """(entries of the head, entries of each GPU)."""
    head, gpus = _Gpu(), []
    current = head
    section: list[tuple[int, str]] = []
    for line in iter_lines(pieces_of(data)):
        raw = text(line.raw, 400)
        if raw.startswith("GPU ") and ":" in raw:
            current = _Gpu()
            gpus.append(current)
            section = []
            continue
        indent = len(raw) - len(raw.lstrip())
        key, sign, value = raw.partition(" : ")
        while section and section[-1][0] >= indent:
            section.pop()
        if not sign:
            section.append((indent, raw.strip()))
            continue
        if len(current.entries) < 2000:
            current.entries.setdefault("/".join([name for _, name in section] + [key.strip()]), (value.strip(), line))
            if raw.rstrip().endswith((": Active", ": Not Active")):
                section.append((indent, key.strip()))  # "HW Slowdown : Not Active" has the kinds of slow-down below it
    return head, gpus


def driver_facts(found: Found, data: bytes) -> None:
    """gpu.driver from ``nvidia-smi --query-gpu=driver_version --format=csv,noheader``: the same on every row."""
    for line in iter_lines(pieces_of(data)):
        word = text(line.raw, 120).strip()
        if _VERSION.fullmatch(word):
            found.add("gpu.driver", word, line)
            return
    found.missing("gpu.driver", "nvidia-smi did not say which driver is loaded")


def query_facts(found: Found, data: bytes, *, under_load: bool = False) -> SmiQuery:
    """States name, memory, driver, modes, power limit and errors. Link, clocks and throttle state only when the query was made
    ``under_load`` and the GPU says that it was not idle. With several GPUs the worst one counts, since they work in step."""
    result = SmiQuery()
    head, gpus = _read_query(data)
    for path, name in (("Driver Version", "gpu.driver"), ("CUDA Version", "gpu.cuda")):
        if head.word(path) not in ("", "N/A"):
            found.add(name, head.word(path)[:120], head.entries[path][1])
    if not gpus:
        found.missing("gpu.count", "nvidia-smi -q lists no GPU")
        return result
    first = gpus[0]
    result.names = [gpu.word("Product Name") for gpu in gpus if gpu.word("Product Name")]
    if result.names:
        found.add("gpu.name", result.names[0][:120], first.entries["Product Name"][1] if first.word("Product Name") else None)
        found.add("gpu.count", len(gpus), first.entries["Product Name"][1] if first.word("Product Name") else None)
    if len(set(result.names)) > 1:
        odd = next(gpu for gpu in gpus if gpu.word("Product Name") != result.names[0])
        found.add("gpu.models_differ", sorted(set(result.names)), odd.entries["Product Name"][1])
    for path, name in (
        ("MIG Mode/Current", "gpu.mig"),
        ("Persistence Mode", "gpu.persistence"),
        ("ECC Mode/Current", "gpu.ecc"),
    ):
        if first.word(path) in ("Enabled", "Disabled"):
            found.add(name, first.word(path) == "Enabled", first.entries[path][1])
    if (memory := _worst(gpus, "FB Memory Usage/Total")) is not None:
        found.add("gpu.memory_total_gib", memory[0] / 1024, memory[1])
    if under_load and (free := _worst(gpus, "FB Memory Usage/Free")) is not None:
        found.add("gpu.memory_free_gib", free[0] / 1024, free[1])
    _power(found, gpus, result)
    clock = first.number("Max Clocks/SM")
    result.max_sm_mhz = clock[0] if clock else None
    _errors(found, gpus)
    if under_load and all(gpu.idle for gpu in gpus):
        for name in ("pcie.link_share", "pcie.link_gb_s", "gpu.mem_clock_share", "gpu.throttle_share", "pcie.usage_share"):
            found.missing(name, "the GPUs were idle when they were asked, and an idle GPU lowers its link and clocks by design")
    elif under_load:
        _under_load(found, [gpu for gpu in gpus if not gpu.idle])
    return result


def _worst(gpus: list[_Gpu], *paths: str, highest: bool = False) -> tuple[float, Line] | None:
    found = [entry for gpu in gpus if (entry := gpu.number(*paths)) is not None]
    return (max if highest else min)(found, key=lambda entry: entry[0], default=None)


def _power(found: Found, gpus: list[_Gpu], result: SmiQuery) -> None:
    shares: list[tuple[float, float, Line]] = []
    for gpu in gpus:
        limit = gpu.number(f"{gpu.power}/Current Power Limit", f"{gpu.power}/Power Limit", f"{gpu.power}/Enforced Power Limit")
        default = gpu.number(f"{gpu.power}/Default Power Limit")
        if limit and default and default[0] > 0:
            shares.append((limit[0] / default[0], limit[0], limit[1]))
        if gpu is gpus[0] and limit:
            result.power_limit_w = limit[0]
            found.add("gpu.power_limit_w", limit[0], limit[1])
    if shares:
        share, watts, line = min(shares, key=lambda item: item[0])
        found.add("gpu.power_limit_share", share, line, basis="derived")
        found.add("gpu.power_limit_w", watts, line)


def _errors(found: Found, gpus: list[_Gpu]) -> None:
    """Errors that the driver counts since it was loaded: at most so many fell into this run."""
    ecc: list[tuple[float, Line]] = []
    for gpu in gpus:
        for path, (value, line) in gpu.entries.items():
            if path.startswith("ECC Errors/Volatile/") and "Uncorrectable" in path and (count := _number(value)) is not None:
                ecc.append((count, line))
    if ecc:
        line = max(ecc, key=lambda item: item[0])[1]
        found.add("gpu.error_count", int(sum(count for count, _ in ecc)), line, labels={"kind": "ecc"}, bound="at_most")
    replays = [entry for gpu in gpus if (entry := gpu.number("PCI/Replays Since Reset", "PCI/Replay Counter")) is not None]
    if replays:
        line = max(replays, key=lambda item: item[0])[1]
        found.add("gpu.error_count", int(sum(count for count, _ in replays)), line, labels={"kind": "pcie_replay"}, bound="at_most")


def _under_load(found: Found, gpus: list[_Gpu]) -> None:
    for text_name, reason in _REASONS:
        states = [
            gpu.entries[path]
            for gpu in gpus
            for title in _TITLES
            for path in (f"{title}/{text_name}", f"{title}/HW Slowdown/{text_name}")
            if path in gpu.entries
        ]
        if states:
            active = next((line for value, line in states if value == "Active"), None)
            found.add("gpu.throttle_share", 0.0 if active is None else 1.0, active or states[0][1], labels={"reason": reason})
    clocks = [
        (now[0] / best[0], now[1])
        for gpu in gpus
        if (now := gpu.number("Clocks/Memory")) and (best := gpu.number("Max Clocks/Memory")) and best[0] > 0
    ]
    if clocks:
        share, line = min(clocks, key=lambda item: item[0])
        found.add("gpu.mem_clock_share", min(1.0, share), line, basis="derived")
    links = [link for gpu in gpus if (link := _link(gpu)) is not None]
    if links:
        rate, top, line = min(links, key=lambda item: (item[0] / item[1] if item[1] else 1.0, item[0]))
        found.add("pcie.link_gb_s", rate, line, basis="derived")
        if top:
            found.add("pcie.link_share", min(1.0, rate / top), line, basis="derived")
        traffic = _worst(gpus, "PCI/Tx Throughput", highest=True), _worst(gpus, "PCI/Rx Throughput", highest=True)
        peak = max((entry for entry in traffic if entry is not None), key=lambda entry: entry[0], default=None)
        if peak is not None and rate > 0:
            # About 0.8 of the nominal rate is what copies reach; KB/s as the tool prints them are 1000 bytes.
            found.add("pcie.usage_share", min(1.0, peak[0] * 1e3 / (0.8 * rate * 1e9)), peak[1], basis="derived")


def _link(gpu: _Gpu) -> tuple[float, float | None, Line] | None:
    """(rate now, best rate, line), GB/s one way."""
    root = next((path[: path.index("PCIe Generation")] for path in gpu.entries if "PCIe Generation" in path), None)
    if root is None:
        return None
    now, width = gpu.number(f"{root}PCIe Generation/Current"), gpu.number(f"{root}Link Width/Current")
    best, most = gpu.number(f"{root}PCIe Generation/Max"), gpu.number(f"{root}Link Width/Max")
    if now is None or width is None or int(now[0]) not in _PCIE_GB_S:
        return None
    top = _PCIE_GB_S[int(best[0])] * most[0] if best and most and int(best[0]) in _PCIE_GB_S and most[0] > 0 else None
    return _PCIE_GB_S[int(now[0])] * width[0], top, now[1]


def p2p_facts(found: Found, data: bytes, gpus: int | None = None) -> None:
    """topology.p2p from ``nvidia-smi topo -p2p r``: not_supported as soon as one pair of the first ``gpus`` is."""
    pairs: list[tuple[str, Line]] = []
    for line in iter_lines(pieces_of(data)):
        cells = text(line.raw, 4000).split()
        row = re.fullmatch(r"GPU(\d{1,3})", cells[0]) if cells else None
        if row is None or len(cells) < 2 or re.fullmatch(r"GPU\d{1,3}", cells[1]) or (gpus is not None and int(row[1]) >= gpus):
            continue
        for column, cell in enumerate(cells[1:]):
            if column != int(row[1]) and (gpus is None or column < gpus) and cell in ("OK", "CNS", "GNS", "TNS", "NS", "DR"):
                pairs.append((cell, line))
    bad = next((line for cell, line in pairs if cell != "OK"), None)
    if pairs:
        found.add("topology.p2p", "ok" if bad is None else "not_supported", bad or pairs[0][1])
    else:
        found.missing("topology.p2p", "the peer matrix shows no pair of GPUs")


def confidential_facts(found: Found, data: bytes) -> None:
    """gpu.confidential_compute from ``nvidia-smi conf-compute -f`` (``CC status: OFF``)."""
    for line in iter_lines(pieces_of(data)):
        key, sign, value = text(line.raw, 200).partition(":")
        if sign and "cc status" in key.lower() and value.strip().upper() in ("ON", "OFF"):
            found.add("gpu.confidential_compute", value.strip().upper() == "ON", line)
            return
    found.missing("gpu.confidential_compute", "the driver did not say whether confidential computing is on")


def topo_facts(found: Found, data: bytes, gpus: int | None = None) -> None:
    """Worst link between the first ``gpus`` GPUs of ``nvidia-smi topo -m``; ``single`` for one GPU."""
    worst: tuple[int, str, Line] | None = None
    nodes: set[str] = set()
    header: list[str] = []
    first: Line | None = None
    for line in iter_lines(pieces_of(data)):
        cells = [cell.strip() for cell in text(line.raw, 4000).split("\t")]
        if not header and any(re.fullmatch(r"GPU\d+", cell) for cell in cells):
            header = cells
            first = line
            if not re.fullmatch(r"GPU\d+", cells[0]):
                continue
        row = re.fullmatch(r"GPU(\d+)", cells[0]) if cells else None
        if row is None or (gpus is not None and int(row[1]) >= gpus):
            continue
        for column, cell in zip(header[1:], cells[1:], strict=False):
            other = re.fullmatch(r"GPU(\d+)", column)
            if other is None:
                if column == "NUMA Affinity" and cell and cell != "N/A":
                    nodes.add(cell)
                continue
            if (
                (gpus is not None and int(other[1]) >= gpus)
                or int(other[1]) == int(row[1])
                or not _CELL.fullmatch(cell)
            ):
                continue
            kind = "nvlink" if cell.startswith("NV") else cell.lower()
            if kind in _WORST_FIRST:
                rank = _WORST_FIRST.index(kind)
                if worst is None or rank < worst[0]:
                    worst = (rank, kind, line)
    if gpus == 1 and first is not None:
        found.add("topology.gpu_link", "single", first)
    elif worst is not None:
        found.add("topology.gpu_link", worst[1], worst[2])
    else:
        found.missing("topology.gpu_link", "the topology matrix shows no link between two GPUs")
    if nodes:
        found.add("host.numa_nodes", len(nodes), first)


def _number(value: str) -> float | None:
    match = _VALUE.search(value)
    return float(match[0]) if match and len(match[0]) < 40 else None
