"""Reads ``host.json``: what the kernel of the box said about itself and about the server's processes (CPU limit, theft,
pressure, NUMA, PCIe links, IOMMU, RDMA, environment of the ranks) and, with ``gpu_processes.csv``, who uses the GPUs. Knows
neither logs nor drivers' tools."""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from optimizer.evidence.deployment import described, groups
from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line, iter_lines, pieces_of, text
from optimizer.evidence.literal import strict_json
from optimizer.evidence.positions import Positions
from optimizer.model.base import Value

GIB = 2**30
# Part of a process's name -> its role. Longer names first where one contains another.
_ROLES = (
    ("detoken", "detokenizer"),
    ("tokenizer", "tokenizer"),
    ("scheduler", "scheduler"),
    ("schedul", "scheduler"),
    ("enginecor", "engine"),
    ("worker", "engine"),
    ("apiserver", "api_server"),
)
# These loops ask for work without pause: their full core says nothing about load.
_POLLING = {"sglang": ("scheduler",), "vllm": ()}
_SPEED = {"2.5": 0.25, "5.0": 0.5, "8.0": 0.985, "16.0": 1.969, "32.0": 3.938, "64.0": 7.563}  # GT/s -> GB/s a lane
_PORT = re.compile(rb"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


class PciGpu(NamedTuple):
    """One device: bus address as the kernel writes it, one-way rates in GB/s now and at best, NUMA node (-1: unknown)."""

    address: str
    rate: float | None
    best: float | None
    numa: int


def read_host(data: bytes) -> dict[str, Any]:
    """The JSON object. Raises ValueError when it is none."""
    raw = strict_json(data, 8 * 1024 * 1024)
    if not isinstance(raw, dict):
        raise ValueError("it must be a JSON object")
    return raw


def host_facts(
    found: Found, data: bytes, host: Mapping[str, Any], engine: str, asked: Mapping[str, str], lspci: bytes = b""
) -> None:
    """States host.*, network.*, topology.peer_redirect, settings.env_* and validity.server_count. ``asked``: the variables
    that the launch was given; ``lspci``: output of ``lspci -D -vvv`` where root asked."""
    at = Positions(data).at
    found.add("host.cpu_count", _whole(host.get("cpus")), at("cpus"))
    found.add("host.cpu_model", _text(host.get("cpu_model")), at("cpu_model"))
    found.add("host.cpu_governor", _text(host.get("governor")), at("governor"))
    found.add("host.kernel", _text(host.get("kernel")), at("kernel"))
    nodes = host.get("numa_nodes")
    if isinstance(nodes, list) and nodes:
        found.add("host.numa_total", len(nodes), at("numa_nodes"))
    found.add("host.load_1m", _number(host.get("loadavg_1m")), at("loadavg_1m"))
    _cpu(found, host, at)
    _memory(found, host, at)
    _fabric(found, host, asked, at)
    _redirect(found, host, lspci, at)
    servers = host.get("servers")
    if isinstance(servers, list):
        _deployment(found, host, [row for row in servers if isinstance(row, dict)], at("servers"))
    drivers = _part(host, "drivers")
    found.add("gpu.driver", _text(drivers.get("nvidia") or drivers.get("amdgpu")), at("nvidia") or at("amdgpu"))
    _processes(found, host, engine, at)
    _environment(found, host, asked, at)


def _deployment(found: Found, host: Mapping[str, Any], servers: list[dict[str, Any]], line: Any) -> None:
    """Processes that serve one address together count as one server: a split's other half is nobody's foreign job."""
    together = groups(servers)
    found.add("validity.server_count", len(together), line)
    pid = _whole(_part(host, "server").get("pid"))
    ours = next((group for group in together if any(row.get("pid") == pid for row in group)), None)
    if ours is not None and len(ours) > 1:
        found.add("parallel.roles", described(ours), line)


def _cpu(found: Found, host: Mapping[str, Any], at: Any) -> None:
    group = _part(host, "cgroup")
    quota = _number(group.get("quota_cores"))
    if quota is not None and quota > 0:
        found.add("host.cpu_quota_cores", quota, at("quota_cores"))
    elif group.get("folder"):
        found.missing("host.cpu_quota_cores", "no CPU limit is set: the control group may use every core")
    else:
        found.missing("host.cpu_quota_cores", "the box shows no CPU control group")
    before, after = _part(group, "before"), _part(group, "after")
    throttled = [_whole(part.get("nr_throttled")) for part in (before, after)]
    if throttled[0] is not None and throttled[1] is not None and throttled[1] >= throttled[0]:
        found.add("host.cpu_throttled_periods", throttled[1] - throttled[0], at("nr_throttled", 1))
    else:
        found.missing("host.cpu_throttled_periods", "the control group counts no throttled periods (it has no CPU limit)")
    ticks = _part(host, "cpu_ticks")
    first, second = ticks.get("before"), ticks.get("after")
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second) >= 8:
        deltas = [max(0, int(b) - int(a)) for a, b in zip(first, second, strict=True) if _whole(a) is not None and _whole(b) is not None]
        # guest time is part of user time and is not counted twice
        if len(deltas) == len(first) and sum(deltas[:8]) > 0:
            found.add("host.cpu_steal_pct", 100.0 * deltas[7] / sum(deltas[:8]), at("cpu_ticks"))
            found.add("host.cpu_busy_pct", 100.0 * (1 - (deltas[3] + deltas[4]) / sum(deltas[:8])), at("cpu_ticks"))
    for resource, name in (("cpu", "host.cpu_pressure_pct"), ("memory", "host.memory_pressure_pct"), ("io", "host.io_pressure_pct")):
        value = _number(_part(_part(host, "pressure"), resource).get("some_avg10"))
        if value is None:
            found.missing(name, "the kernel keeps no pressure figures (/proc/pressure)")
        else:
            found.add(name, value, at("pressure"))


def _memory(found: Found, host: Mapping[str, Any], at: Any) -> None:
    memory = _part(host, "memory")
    for key, name in (
        ("total_bytes", "host.memory_total_gib"),
        ("available_bytes", "host.memory_available_gib"),
        ("shm_free_bytes", "host.shm_free_gib"),
    ):
        value = _number(memory.get(key))
        found.add(name, None if value is None else value / GIB, at(key))
    swap, free = _number(memory.get("swap_bytes")), _number(memory.get("swap_free_bytes"))
    if swap is not None and free is not None:
        found.add("host.swap_used_gib", max(0.0, swap - free) / GIB, at("swap_free_bytes"))


def _fabric(found: Found, host: Mapping[str, Any], asked: Mapping[str, str], at: Any) -> None:
    rdma = host.get("rdma")
    if isinstance(rdma, list) and not rdma and not host.get("gpus_pci"):
        found.missing("network.rdma_devices", "the box has no GPU whose memory another host could read")
    elif isinstance(rdma, list):
        found.add("network.rdma_devices", len(rdma), at("rdma"))
    conf = host.get("nccl_conf")
    if isinstance(conf, list) and conf:
        # NCCL reads the environment first and this file for what is not set there.
        given = sorted(f"{key}={value}" for key, value in asked.items() if key.startswith("NCCL_") and not key.startswith("NCCL_DEBUG"))
        found.add("nccl.env", [*given, *sorted(f"conf:{str(item)[:200]}" for item in conf[:64])], at("nccl_conf"))


def _redirect(found: Found, host: Mapping[str, Any], lspci: bytes, at: Any) -> None:
    """topology.peer_redirect. The kernel tells whether an IOMMU translates; ACS of the ports above the GPUs only root sees."""
    gpus = _rows(host, "gpus_pci")
    if not gpus:
        found.missing("topology.peer_redirect", "the box shows no GPU on its PCI bus")
        return
    iommu = any(str(one.get("iommu_type") or "").startswith("DMA") for one in gpus)
    ports = {str(port) for one in gpus for port in _items(one, "bridges")}
    acs, seen, line = acs_redirects(lspci, ports)
    if acs:
        found.add("topology.peer_redirect", "acs_and_iommu" if iommu else "acs", line, source="lspci.txt")
    elif iommu:
        found.add("topology.peer_redirect", "iommu", at("iommu_type"))
    elif seen and _part(host, "iommu").get("readable"):
        found.add("topology.peer_redirect", "none", line, source="lspci.txt")
    else:
        # Without root nobody sees the ACS bits of the ports, so "none" may not be said.
        found.missing("topology.peer_redirect", "no IOMMU translates for the GPUs; whether ACS bends peer traffic only root can read (lspci -vvv)")


def acs_redirects(data: bytes, ports: Collection[str]) -> tuple[bool, bool, Line | None]:
    """(whether one of ``ports`` redirects peer traffic, whether their ACS bits could be read at all, the line that says so)."""
    current, seen, first = "", False, None
    for line in iter_lines(pieces_of(data)):
        match = _PORT.match(line.raw[:20])
        if match:
            current = match[0].decode("ascii").lower()
        elif b"ACSCtl:" in line.raw and (not ports or current in ports):
            seen, first = True, first or line
            if b"ReqRedir+" in line.raw or b"CmpltRedir+" in line.raw:
                return True, True, line
    return False, seen, first


def pci_gpus(host: Mapping[str, Any]) -> tuple[PciGpu, ...]:
    """The GPUs of the PCI bus, in the order of their addresses."""
    found = []
    for one in _rows(host, "gpus_pci"):
        if isinstance(one.get("address"), str):
            numa = one.get("numa_node")
            found.append(
                PciGpu(
                    one["address"], _rate(one, "current"), _rate(one, "max"),
                    int(numa) if isinstance(numa, str) and numa.lstrip("-").isdigit() else -1,
                )
            )  # fmt: skip
    return tuple(found)


def _rate(one: Mapping[str, Any], which: str) -> float | None:
    speed, width = str(one.get(f"{which}_link_speed") or ""), str(one.get(f"{which}_link_width") or "")
    lane = next((rate for name, rate in _SPEED.items() if speed.startswith((name + " ", name.removesuffix(".0") + " "))), None)
    return lane * int(width) if lane is not None and width.isdigit() and 0 < int(width) <= 64 else None


def _processes(found: Found, host: Mapping[str, Any], engine: str, at: Any) -> None:
    server = _part(host, "server")
    rows = _rows(server, "processes")
    if not rows:
        for name in ("host.proc_cpu_pct", "host.cpu_sat"):
            found.missing(name, "no server process was watched")
        return
    found.add("host.server_processes", len(rows), at("processes"))
    found.add("host.server_rss_gib", sum(_number(row.get("rss_bytes")) or 0.0 for row in rows) / GIB, at("rss_bytes"))
    roles = {_whole(row.get("pid")): role_of(row, server.get("pid"), engine) for row in rows}
    loads: dict[str, float] = {}
    for row in rows:
        load, role = _number(row.get("cpu_pct")), roles[_whole(row.get("pid"))]
        if load is not None and role is not None:
            loads[role] = max(loads.get(role, 0.0), load)
    for role, load in sorted(loads.items()):
        found.add("host.proc_cpu_pct", load, at("cpu_pct"), labels={"process": role})
    polling = {str(pid) for pid, role in roles.items() if role in _POLLING.get(engine, ())}
    tops = [
        max((load for pid, value in sample.items() if pid not in polling and (load := _number(value)) is not None), default=0.0)
        for sample in _rows(server, "busiest_threads")
    ]
    if tops:
        found.add("host.cpu_sat", sum(top >= 95.0 for top in tops) / len(tops), at("busiest_threads"))


def role_of(row: Mapping[str, Any], main: Value, engine: str) -> str | None:
    """Role of a serving process by the name that the engine gave it; None for helpers."""
    name = str(row.get("title") or row.get("name") or "").lower()
    if (found := next((role for part, role in _ROLES if part in name), None)) is not None:
        return found
    if row.get("pid") == main:
        return "api_server"
    return None


def _environment(found: Found, host: Mapping[str, Any], asked: Mapping[str, str], at: Any) -> None:
    server = _part(host, "server")
    main = server.get("environment")
    if not isinstance(main, dict):
        reason = "no server process was looked at" if not server else "the environment of the server's process is not ours to read"
        found.missing("settings.env_differs", reason)
        found.missing("settings.env_added", reason)
        return
    ranks: dict[str, set[str]] = {}
    for row in _rows(server, "processes"):
        changes = row.get("environment_changes")
        for name, value in changes.items() if isinstance(changes, Mapping) else ():
            if value is None and row.get("title"):
                continue  # a process that renames itself overwrites the start of its environment: unseen, not unset
            ranks.setdefault(str(name), set()).add("unset" if value is None else str(value)[:200])
    differs: dict[str, Value] = {}
    for name, value in sorted(asked.items()):
        if "«" in value or (name not in main and name not in ranks):
            continue  # hidden on the box, or none of the variables that are looked at
        if main.get(name) != value:
            differs[name] = {"asked": value, "process": main.get(name)}
        elif name in ranks:
            differs[name] = {"asked": value, "rank": ", ".join(sorted(ranks[name]))}
    found.add("settings.env_differs", differs, at("environment"))
    added: dict[str, Value] = {name: ", ".join(sorted(values)) for name, values in sorted(ranks.items()) if name not in main and name not in asked}
    found.add("settings.env_added", added, at("environment_changes"))


def gpu_process_facts(found: Found, data: bytes, host: Mapping[str, Any]) -> None:
    """validity.foreign_gpu_processes and host.numa_remote_share: the processes that the driver lists against the server's own.
    ``data``: rows ``pid, name, memory, bus address``, no header."""
    rows = []
    for line in iter_lines(pieces_of(data)):
        cells = [cell.strip() for cell in text(line.raw, 1000).split(",")]
        if cells[0].isdigit():
            rows.append((int(cells[0]), cells, line))
    if not rows:
        if any(word in data[:400].lower() for word in (b"error", b"fail", b"not supported", b"insufficient")):
            found.missing("validity.foreign_gpu_processes", f"the driver did not list them: {text(data, 120).strip()}")
        else:
            found.add("validity.foreign_gpu_processes", 0)
        return
    server = _part(host, "server")
    own = {_whole(row.get("pid")) for row in _rows(server, "processes")}
    visible = host.get("visible_gpu_pids")
    if not own:
        found.missing("validity.foreign_gpu_processes", f"{len({pid for pid, _, _ in rows})} processes use the GPUs; nobody said which are the server's")
        return
    if isinstance(visible, list) and any(pid not in visible for pid, _, _ in rows) and not any(pid in own for pid, _, _ in rows):
        found.missing("validity.foreign_gpu_processes", "the driver counts processes by numbers that this container does not know")
        return
    foreign = [(pid, line) for pid, _, line in rows if pid not in own]
    found.add("validity.foreign_gpu_processes", len({pid for pid, _ in foreign}), foreign[0][1] if foreign else rows[0][2])
    _remote_memory(found, host, {pid: cells[3] for pid, cells, _ in rows if len(cells) > 3})


def _remote_memory(found: Found, host: Mapping[str, Any], bus_of: Mapping[int, str]) -> None:
    node_of = {one.address: one.numa for one in pci_gpus(host)}
    if len(_items(host, "numa_nodes")) < 2:
        found.missing("host.numa_remote_share", "the box has one NUMA node: no memory can be remote")
        return
    worst: float | None = None
    for row in _rows(_part(host, "server"), "processes"):
        spread = row.get("numa_bytes")
        address = bus_of.get(_whole(row.get("pid")) or -1, "").lower()
        node = node_of.get(address[4:] if address.count(":") == 2 and len(address.split(":")[0]) == 8 else address, -1)
        if not isinstance(spread, dict) or node < 0:
            continue
        total = sum(_number(value) or 0.0 for value in spread.values())
        if total > 0:
            share = 1.0 - (_number(spread.get(str(node))) or 0.0) / total
            worst = share if worst is None else max(worst, share)
    if worst is None:
        found.missing("host.numa_remote_share", "no worker's memory and GPU could be told apart by NUMA node")
    else:
        found.add("host.numa_remote_share", worst, source="host.json")


def _part(host: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = host.get(key)
    return value if isinstance(value, Mapping) else {}


def _items(host: Mapping[str, Any], key: str) -> list[Any]:
    value = host.get(key)
    return value if isinstance(value, list) else []


def _rows(host: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [row for row in _items(host, key) if isinstance(row, Mapping)]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18 else None


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) and value else None
