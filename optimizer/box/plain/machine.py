"""Reads what the kernel says about the box and about one server's processes: CPU limit and theft, pressure, memory, NUMA,
PCIe links, RDMA and IOMMU, who uses the GPUs, and the environment that the server's ranks really have. Runs on the box.
Everything is read twice where only the difference tells. It writes nothing, needs no privilege, and lets no credential out."""

from __future__ import annotations

import base64
import glob
import os
import re
import shutil
import threading
import time
from typing import Any

from optimizer.box.plain import look, procfs, redact
from optimizer.box.plain.threads import HZ, Seen, threads, ticks_of

# Which variables of a process may leave the box; what they hold is still hidden when it looks like a credential.
INTERESTING = re.compile(
    r"^(?:NCCL|RCCL|UCX|NVSHMEM|NIXL|MC|OMP|GOMP|KMP|MKL|OPENBLAS|CUDA|CUBLAS|HIP|ROCR|HSA|PYTORCH|TORCH|TRITON|FLASHINFER"
    r"|TRTLLM|DG|MALLOC|SGLANG|SGL|VLLM|AITER|LD_PRELOAD|TOKENIZERS_PARALLELISM)(?:_[A-Z0-9_]+)?$"
)
MAX_PROCESSES = 128
MAX_NUMA_RSS_BYTES = 64 << 30  # the kernel walks the page tables to answer, under the lock that the process needs
_NUMA_PAGES = re.compile(rb" N(\d{1,4})=(\d{1,15})")
_NUMA_SIZE = re.compile(rb"kernelpagesize_kB=(\d{1,9})")


def survey(request: dict[str, Any]) -> dict[str, Any]:
    """All of it in one call: ``commands`` ({name: argv}) run side by side while the kernel's counters are watched for
    ``interval_s``. ``pid`` is the server's main process, or None. A program that is not there is left out."""
    outputs: dict[str, Any] = {}
    workers = []
    for name, argv in sorted((request.get("commands") or {}).items()):
        if shutil.which(argv[0]) is None:
            continue

        def run(name: str = name, argv: list[str] = argv) -> None:
            began = time.monotonic()
            try:
                outputs[name] = look.command({"argv": argv, "timeout_s": request["timeout_s"], "max_bytes": request["max_bytes"]})
            except OSError as error:
                outputs[name] = {"exit": None, "stdout": "", "stderr": "", "timed_out": False, "truncated": False,
                                 "not_started": str(error)}  # fmt: skip
            outputs[name]["wall_s"] = round(time.monotonic() - began, 3)

        worker = threading.Thread(target=run, daemon=True)
        worker.start()
        workers.append(worker)
    found = describe(request.get("pid"), float(request["interval_s"]), same_home=bool(request.get("same_home")))
    end = time.monotonic() + float(request["timeout_s"]) + 2.0
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    found["visible_gpu_pids"] = _visible(outputs)
    return {"host": found, "commands": dict(outputs)}


def _visible(outputs: dict[str, Any]) -> list[int]:
    """Of the processes that use a GPU by the driver's account, those that this process namespace knows."""
    text = base64.b64decode((outputs.get("gpu_processes.csv") or {}).get("stdout", "")).decode("utf-8", "replace")
    pids = [int(row.split(",")[0]) for row in text.splitlines() if row.split(",")[0].strip().isdigit()]
    return [pid for pid in sorted(set(pids))[:256] if procfs.process(pid) is not None]


def describe(pid: int | None, interval_s: float, samples: int = 4, same_home: bool = False) -> dict[str, Any]:
    """The box, and the server whose main process is ``pid``. Seconds, bytes and counts; what cannot be read is absent."""
    processes = procfs.table()
    tree = sorted(({pid} | procfs.descendants([pid], processes)) & set(processes))[:MAX_PROCESSES] if pid is not None else []
    folder = cgroup_folder(pid)
    before = _counters(folder)
    first = threads(tree)
    cpu_before = {one: _ticks(one) for one in tree}
    began = time.monotonic()
    busiest: list[dict[str, float]] = []
    last, at = first, began
    for _ in range(samples):
        time.sleep(interval_s / samples)
        fresh, now = threads(tree), time.monotonic()
        busiest.append(_busiest(last, fresh, now - at))
        last, at = fresh, now
    spent = time.monotonic() - began
    after = _counters(folder)
    nodes = _numa_nodes()
    return {
        "format": 1,
        "interval_s": round(spent, 3),
        "hz": os.sysconf("SC_CLK_TCK"),
        "cpus": os.cpu_count() or 0,
        "cpus_allowed": len(os.sched_getaffinity(pid if pid in processes else 0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_model": _cpu_model(),
        "governor": _word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "numa_nodes": nodes,
        "loadavg_1m": _first_number("/proc/loadavg"),
        "memory": _memory(),
        "pressure": _pressure(),
        "cgroup": {"folder": folder, "quota_cores": quota_cores(folder), "before": before["cgroup"], "after": after["cgroup"]},
        "cpu_ticks": {"before": before["stat"], "after": after["stat"]},
        "gpus_pci": _pci_gpus(),
        "iommu": _iommu(),
        "rdma": sorted(os.listdir("/sys/class/infiniband")) if os.path.isdir("/sys/class/infiniband") else [],
        "drivers": _drivers(),
        "nccl_conf": _nccl_conf(),
        "kernel": os.uname().release,
        "servers": _servers(processes, same_home),
        "server": _server(pid, tree, processes, cpu_before, spent, busiest, len(nodes)) if tree else None,
    }


# --- the box ---------------------------------------------------------------------------------------------------------


def _word(path: str) -> str | None:
    data = procfs.read(path, 4096)
    return procfs.text(data).strip()[:200] or None if data else None


def _first_number(path: str) -> float | None:
    try:
        return float((procfs.read(path, 4096) or b"").split()[0])
    except (IndexError, ValueError):
        return None


def _cpu_model() -> str | None:
    for line in procfs.text(procfs.read("/proc/cpuinfo", 1 << 16) or b"").splitlines():
        if line.startswith(("model name", "CPU part", "cpu model")):
            return line.partition(":")[2].strip()[:120]
    return None


def cgroup_folder(pid: int | None = None) -> str | None:
    """Folder of the CPU controller of a process (own, when None): version 2, else version 1, None where neither is there."""
    own = procfs.text(procfs.read("/proc/%s/cgroup" % ("self" if pid is None else pid)) or b"")
    rows = [line.split(":", 2) for line in own.splitlines() if line.count(":") >= 2]
    # Where both versions are mounted, the one that has the CPU controller limits: version 1, if it lists one.
    for _, controllers, path in rows:
        if "cpu" in controllers.split(","):
            for base in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"):
                for folder in (base + path.rstrip("/"), base):
                    if os.path.exists(folder + "/cpu.stat"):
                        return folder
    for _, controllers, path in rows:
        if controllers == "":
            for folder in ("/sys/fs/cgroup" + path.rstrip("/"), "/sys/fs/cgroup"):
                if os.path.exists(folder + "/cpu.stat"):
                    return folder
    return None


def quota_cores(folder: str | None) -> float | None:
    """Smallest CPU limit of a group and those above it, in cores; None without a limit."""
    found: list[float] = []
    while folder and folder.startswith("/sys/fs/cgroup"):
        words = (procfs.read(folder + "/cpu.max", 256) or b"").split()
        try:
            if len(words) == 2 and words[0] != b"max":
                found.append(int(words[0]) / int(words[1]))
            quota = procfs.read(folder + "/cpu.cfs_quota_us", 64)
            period = procfs.read(folder + "/cpu.cfs_period_us", 64)
            if quota and period and int(quota) > 0:
                found.append(int(quota) / int(period))
        except (ValueError, ZeroDivisionError):
            break
        folder = os.path.dirname(folder)
    return round(min(found), 4) if found else None


def _counters(folder: str | None) -> dict[str, Any]:
    group: dict[str, int] = {}
    for line in procfs.text(procfs.read(folder + "/cpu.stat", 1 << 16) or b"").splitlines() if folder else ():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            group[words[0]] = int(words[1])
    ticks: list[int] = []
    for line in procfs.text(procfs.read("/proc/stat", 1 << 16) or b"").splitlines()[:1]:
        ticks = [int(word) for word in line.split()[1:11] if word.isdigit()]
    return {"cgroup": group, "stat": ticks}


def _pressure() -> dict[str, dict[str, float]]:
    """Share of time (0 to 100) in which something waited for the resource, averages of 10 and 60 s."""
    found: dict[str, dict[str, float]] = {}
    for resource in ("cpu", "memory", "io"):
        for line in procfs.text(procfs.read("/proc/pressure/" + resource, 4096) or b"").splitlines():
            kind, _, rest = line.partition(" ")
            for pair in rest.split():
                name, _, value = pair.partition("=")
                if name in ("avg10", "avg60"):
                    try:
                        found.setdefault(resource, {})["%s_%s" % (kind, name)] = float(value)
                    except ValueError:
                        continue
    return found


def _memory() -> dict[str, int]:
    wanted = {"MemTotal": "total_bytes", "MemAvailable": "available_bytes", "SwapTotal": "swap_bytes", "SwapFree": "swap_free_bytes"}
    found = {}
    for line in procfs.text(procfs.read("/proc/meminfo") or b"").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].rstrip(":") in wanted and words[1].isdigit():
            found[wanted[words[0].rstrip(":")]] = int(words[1]) * 1024
    try:
        disk = os.statvfs("/dev/shm")
        found["shm_free_bytes"] = disk.f_bavail * disk.f_frsize
        found["shm_bytes"] = disk.f_blocks * disk.f_frsize
    except OSError:
        pass
    return found


def _numa_nodes() -> list[int]:
    return sorted(int(path.rsplit("node", 1)[1]) for path in glob.glob("/sys/devices/system/node/node[0-9]*"))


def _pci_gpus() -> list[dict[str, Any]]:
    """Graphics and compute devices on the PCI bus with their link, as the kernel sees it, and their NUMA node."""
    found: list[dict[str, Any]] = []
    for path in sorted(glob.glob("/sys/bus/pci/devices/*")):
        kind, vendor = _word(path + "/class") or "", _word(path + "/vendor") or ""
        # Display controllers and processing accelerators of the makers whose cards run these engines.
        if kind[:4] not in ("0x03", "0x12") or vendor not in ("0x10de", "0x1002", "0x8086"):
            continue
        one: dict[str, Any] = {"address": os.path.basename(path).lower(), "vendor": vendor}
        for name in ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width", "numa_node"):
            one[name] = _word(path + "/" + name)
        group = procfs.link(path + "/iommu_group")
        # Peer traffic of GPUs passes the ports above them.
        above = os.path.realpath(path).split("/")[:-1]
        one["bridges"] = [part.lower() for part in above if re.match(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", part)]
        one["iommu_type"] = _word("/sys/kernel/iommu_groups/%s/type" % os.path.basename(procfs.text(group))) if group else None
        found.append(one)
    return found[:64]


def _iommu() -> dict[str, Any]:
    """``present``: the kernel lists IOMMUs at all; ``types``: kinds of the groups (identity does not translate)."""
    types: dict[str, int] = {}
    for path in glob.glob("/sys/kernel/iommu_groups/*/type")[:4096]:
        word = _word(path) or "unknown"
        types[word] = types.get(word, 0) + 1
    return {"present": bool(glob.glob("/sys/class/iommu/*")), "types": types, "readable": os.path.isdir("/sys/kernel/iommu_groups")}


def _drivers() -> dict[str, str]:
    found: dict[str, str] = {}
    line = (procfs.read("/proc/driver/nvidia/version", 4096) or b"").split(b"\n")[0]
    match = re.search(rb"(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)", line)
    if match:
        found["nvidia"] = match.group(1).decode("ascii")
    amd = _word("/sys/module/amdgpu/version")
    if amd:
        found["amdgpu"] = amd
    return found


def _nccl_conf() -> list[str]:
    lines = procfs.text(procfs.read("/etc/nccl.conf", 1 << 14) or b"").splitlines()
    found = [line.strip() for line in lines if re.match(r"\s*NCCL_\w{1,60}\s*=", line)]
    return ["%s=%s" % tuple(part.strip()[:200] for part in line.split("=", 1)) for line in found[:64] if not redact.secret_value(line)]


_ROUTERS = frozenset(
    ("mini_lb", "vllm-router", "sgl-router", "toy_proxy_server", "disagg_prefill_proxy_server", "disagg_proxy_demo")
)
_DEFAULT_PORTS = {"sglang": 30000, "vllm": 8000, "llamacpp": 8080, "sglang-router": 30000}
_VLLM_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def _servers(processes: dict[int, procfs.Process], same_home: bool) -> list[dict[str, Any]]:
    """Inference servers by the look of their command line, main processes only, each with its part in a deployment.
    ``same_home``: of this home alone (simulated boxes share one machine)."""
    home = procfs.raw(os.path.expanduser("~"))
    engines: dict[int, str] = {}
    lines: dict[int, list[str]] = {}
    for pid in processes:
        words = [procfs.text(word) for word in procfs.argv(pid)]
        if any(word in ("-h", "--help") or word.startswith("--help=") for word in words):
            continue  # a question, such as ours beside this very survey
        engine = look.engine_of(words, {}) or _router_of(words)
        if engine is not None and (not same_home or dict(procfs.environ(pid) or ()).get(b"HOME") == home):
            engines[pid], lines[pid] = engine, words
    mains = [pid for pid in engines if not procfs.ancestors(processes[pid].ppid, processes) & set(engines)]
    return [{"pid": pid, "engine": engines[pid], **part_of(lines[pid], engines[pid])} for pid in sorted(mains)][:64]


def _router_of(words: list[str]) -> str | None:
    """A proxy that engines ship as an example; it is no server by itself."""
    for word in words[:4]:
        name = os.path.basename(word).rpartition(".")[2] if "/" not in word and word.count(".") > 1 else os.path.basename(word)
        if (name[:-3] if name.endswith(".py") else name) in _ROUTERS:
            return "router"
    return None


def part_of(words: list[str], engine: str) -> dict[str, Any]:
    """Role, port, model and, of a router, the ports it names: nothing else of the command line leaves the box here."""
    given = _option(words, "--port")
    part: dict[str, Any] = {"role": "server", "port": int(given) if given and given.isdigit() else _DEFAULT_PORTS.get(engine)}
    model = _option(words, "--model-path", "--model", "-m") if engine != "router" else None
    if model is None and engine == "vllm" and "serve" in words[:-1]:
        after = words[words.index("serve") + 1]
        model = after if not after.startswith("-") else None
    if model is not None:
        part["model"] = model[:1000]
    if engine in ("router", "sglang-router"):
        ports = [int(port) for word in words for port in re.findall(r"https?://[^/:\s]+:(\d{1,5})", word)]
        for index, word in enumerate(words):
            if word.startswith("--") and word.endswith("-ports"):
                for value in words[index + 1 :]:
                    if not value.isdigit():
                        break
                    ports.append(int(value))
        part.update(role="router", workers=sorted(set(ports))[:64])
    elif engine == "sglang":
        mode = _option(words, "--disaggregation-mode")
        if mode in ("prefill", "decode"):
            part["role"] = mode
    elif engine == "vllm":
        role = _option(words, "--kv-transfer-config.kv_role")
        whole = _option(words, "--kv-transfer-config")
        found = re.search(r'"kv_role"\s*:\s*"(\w{1,20})"', whole or "")
        part["role"] = _VLLM_ROLES.get(role or (found.group(1) if found else ""), "server")
    return part


def _option(words: list[str], *names: str) -> str | None:
    """The value of the first of these options, as the last one given says; ``-m`` of a Python call is a module."""
    value = None
    for index, word in enumerate(words):
        name, equals, inline = word.partition("=")
        if name.replace("_", "-") not in [one.replace("_", "-") for one in names] or (name == "-m" and "llama" not in " ".join(words[:index])):
            continue
        if equals:
            value = inline
        elif index + 1 < len(words):
            value = words[index + 1]
    return value


# --- the server ------------------------------------------------------------------------------------------------------


def _ticks(pid: int) -> int | None:
    return ticks_of(procfs.read("/proc/%d/stat" % pid, 4096) or b"")


def _busiest(before: dict[tuple[int, int], Seen], after: dict[tuple[int, int], Seen], seconds: float) -> dict[str, float]:
    """Process id (as text) -> load of its busiest thread in percent of one core."""
    top: dict[str, float] = {}
    for key, seen in after.items():
        if key in before and seconds > 0:
            load = (seen.ticks - before[key].ticks) / HZ / seconds * 100
            top[str(key[0])] = max(top.get(str(key[0]), 0.0), round(load, 1))
    return top


def _status(pid: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in procfs.text(procfs.read("/proc/%d/status" % pid) or b"").splitlines():
        words = line.split()
        if words and words[0] in ("VmRSS:", "Threads:") and len(words) > 1 and words[1].isdigit():
            found[words[0].rstrip(":")] = int(words[1])
    return found


def _numa_bytes(pid: int, rss_bytes: int) -> dict[str, int] | None:
    """Resident bytes by NUMA node. None where the answer would cost the server more than a moment."""
    if not 0 < rss_bytes <= MAX_NUMA_RSS_BYTES:
        return None
    data = procfs.read("/proc/%d/numa_maps" % pid, 1 << 23)
    if not data:
        return None
    found: dict[str, int] = {}
    for line in data.splitlines():
        size = _NUMA_SIZE.search(line)
        unit = int(size.group(1)) * 1024 if size else 4096
        for node, pages in _NUMA_PAGES.findall(line):
            name = node.decode("ascii")
            found[name] = found.get(name, 0) + int(pages) * unit
    return found or None


def environment(pid: int) -> dict[str, str] | None:
    """The interesting variables of a process, credentials hidden. None when it is somebody else's."""
    pairs = procfs.environ(pid)
    if pairs is None:
        return None
    kept = {procfs.text(name): procfs.text(value)[:500] for name, value in pairs if INTERESTING.match(procfs.text(name))}
    return redact.hide_environment(kept)


def _server(
    main: int | None, tree: list[int], processes: dict[int, procfs.Process], cpu_before: dict[int, int | None], spent: float,
    busiest: list[dict[str, float]], nodes: int,
) -> dict[str, Any]:  # fmt: skip
    hz = os.sysconf("SC_CLK_TCK")
    own = environment(main) if main is not None else None
    rows = []
    for pid in tree:
        now, before, status = _ticks(pid), cpu_before.get(pid), _status(pid)
        rss = status.get("VmRSS", 0) * 1024
        theirs = environment(pid) if pid != main else None
        changed = None
        if own is not None and theirs is not None:
            names = sorted(set(own) | set(theirs))
            changed = {name: theirs.get(name) for name in names if own.get(name) != theirs.get(name)}
        rows.append({
            "pid": pid, "parent": processes[pid].ppid, "name": _word("/proc/%d/comm" % pid), "title": _title(pid), "rss_bytes": rss,
            "threads": status.get("Threads"), "environment_changes": changed,
            "cpu_pct": round((now - before) / hz / spent * 100, 1) if now is not None and before is not None and spent > 0 else None,
            "numa_bytes": _numa_bytes(pid, rss) if nodes > 1 else None,
        })  # fmt: skip
    return {"pid": main, "environment": own, "processes": rows, "busiest_threads": busiest}


def _title(pid: int) -> str | None:
    """The name that an engine gave its process (``sglang::scheduler_TP0``); a command line is none, it may hold anything."""
    words = procfs.argv(pid)
    first = procfs.text(words[0]) if words else ""
    return first[:60] if re.match(r"^[A-Za-z]+::[\w.: -]{1,50}$", first) else None
