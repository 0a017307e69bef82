"""Reads nvidia-smi: the sampled table (``gpu.csv``), the full query (``-q``) and the topology matrix (``topo -m``)."""

import re
from collections.abc import Callable

from optimizer.evidence.found import Found, quantile
from optimizer.evidence.lines import Line, iter_lines, pieces_of, text

_VALUE = re.compile(r"-?\d+(?:\.\d+)?")
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
    """The first GPU's figures of ``nvidia-smi -q``; the parts of a box with different GPUs are told by ``names``."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.power_limit_w: float | None = None
        self.max_sm_mhz: float | None = None


def query_facts(found: Found, data: bytes, *, under_load: bool = False) -> SmiQuery:
    """States name, memory, driver, power limit. Link and throttle state only when the query was made ``under_load``:
    an idle GPU
    lowers its link and clocks by design."""
    result = SmiQuery()
    section: list[tuple[int, str]] = []
    seen: dict[str, tuple[str, Line]] = {}
    gpus = 0
    for line in iter_lines(pieces_of(data)):
        raw = text(line.raw, 400)
        if raw.startswith("GPU ") and ":" in raw:
            gpus += 1
            section = []
            continue
        indent = len(raw) - len(raw.lstrip())
        key, sign, value = raw.partition(" : ")
        while section and section[-1][0] >= indent:
            section.pop()
        if not sign:
            section.append((indent, raw.strip()))
            continue
        path = "/".join([name for _, name in section] + [key.strip()])
        value = value.strip()
        if path == "Product Name":
            result.names.append(value)
        seen.setdefault(path, (value, line))

    def number(path: str) -> tuple[float, Line] | None:
        entry = seen.get(path)
        value = _number(entry[0]) if entry else None
        return None if entry is None or value is None else (value, entry[1])

    def state(name: str, path: str, scale: float = 1.0) -> float | None:
        entry = number(path)
        if entry is None:
            return None
        found.add(name, entry[0] * scale, entry[1])
        return entry[0]

    for path, name in (("Product Name", "gpu.name"), ("Driver Version", "gpu.driver"), ("CUDA Version", "gpu.cuda")):
        if path in seen and seen[path][0] not in ("N/A", ""):
            found.add(name, seen[path][0][:120], seen[path][1])
    if gpus and "Product Name" in seen:
        found.add("gpu.count", gpus, seen["Product Name"][1])
    for path, name in (
        ("MIG Mode/Current", "gpu.mig"),
        ("Persistence Mode", "gpu.persistence"),
        ("ECC Mode/Current", "gpu.ecc"),
    ):
        if path in seen and seen[path][0] in ("Enabled", "Disabled"):
            found.add(name, seen[path][0] == "Enabled", seen[path][1])
    state("gpu.memory_total_gib", "FB Memory Usage/Total", 1 / 1024)
    prefix = "GPU Power Readings" if "GPU Power Readings/Current Power Limit" in seen else "Power Readings"
    limit = (
        number(f"{prefix}/Current Power Limit")
        or number(f"{prefix}/Power Limit")
        or number(f"{prefix}/Enforced Power Limit")
    )
    default = number(f"{prefix}/Default Power Limit")
    if limit:
        result.power_limit_w = limit[0]
        found.add("gpu.power_limit_w", limit[0], limit[1])
        if default and default[0] > 0:
            found.add("gpu.power_limit_share", limit[0] / default[0], limit[1], basis="derived")
    clock = number("Max Clocks/SM")
    result.max_sm_mhz = clock[0] if clock else None
    if under_load:
        _under_load(found, seen, number)
    return result


def _under_load(
    found: Found, seen: dict[str, tuple[str, Line]], reader: Callable[[str], tuple[float, Line] | None]
) -> None:
    for title in ("Clocks Event Reasons", "Clocks Throttle Reasons"):
        for text_name, reason in _REASONS:
            for path in (f"{title}/{text_name}", f"{title}/HW Slowdown/{text_name}"):
                if path in seen:
                    found.add(
                        "gpu.throttle_share",
                        1.0 if seen[path][0] == "Active" else 0.0,
                        seen[path][1],
                        labels={"reason": reason},
                    )
    root = next((path[: path.index("PCIe Generation")] for path in seen if "PCIe Generation" in path), None)
    if root is None:
        return
    now, best = reader(f"{root}PCIe Generation/Current"), reader(f"{root}PCIe Generation/Max")
    width, most = reader(f"{root}Link Width/Current"), reader(f"{root}Link Width/Max")
    if now and width and int(now[0]) in _PCIE_GB_S:
        rate = _PCIE_GB_S[int(now[0])] * width[0]
        found.add("pcie.link_gb_s", rate, now[1], basis="derived")
        if best and most and int(best[0]) in _PCIE_GB_S and most[0] > 0:
            found.add("pcie.link_share", rate / (_PCIE_GB_S[int(best[0])] * most[0]), now[1], basis="derived")


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
