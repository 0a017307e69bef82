"""Watches the threads of a server's processes through ``/proc`` and says where their time goes: on a core, or waiting in which
kernel function. Runs on the box as a job of its own. It attaches to nothing, stops nothing and writes nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from optimizer.box.plain import procfs
from optimizer.box.plain.threads import HZ, fields, threads

TOP = 12


def read(path: str, cap: int = 1 << 16) -> bytes:
    return procfs.read(path, cap) or b""


def children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            row = fields(read("/proc/%s/stat" % name))
            if len(row) > 1:
                found.setdefault(int(row[1]), []).append(int(name))
    return found


def family(roots: list[int]) -> list[int]:
    """The processes and everything that they started."""
    by_parent = children()
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in seen and os.path.isdir("/proc/%d" % pid):
            seen.add(pid)
            todo.extend(by_parent.get(pid, []))
    return sorted(seen)


def title(pid: int) -> str:
    """What an engine calls its process (``sglang::scheduler``), else the name the kernel knows; never a whole command line."""
    first = read("/proc/%d/cmdline" % pid, 256).split(b"\0")[0].decode("utf-8", "replace")
    if "::" in first and "/" not in first:
        return first[:60]
    return read("/proc/%d/comm" % pid, 64).decode("utf-8", "replace").strip()


def sample(roots: list[int], seconds: float, interval_s: float) -> dict[str, Any]:
    pids = family(roots)
    before, began = threads(pids, True), time.monotonic()
    first = dict(before)
    busiest: list[float] = []
    states: dict[tuple[int, int], dict[str, int]] = {}
    last, rounds = began, 0
    while time.monotonic() - began < seconds:
        time.sleep(interval_s)
        now, at = threads(pids, True), time.monotonic()
        loads = [(now[key].ticks - before[key].ticks) / HZ / (at - last) for key in now if key in before]
        busiest.append(max(loads) if loads else 0.0)
        for key, seen in now.items():
            place = "on a core" if seen.state == "R" else (seen.waits or "waiting")
            states.setdefault(key, {})[place] = states.get(key, {}).get(place, 0) + 1
        before, last, rounds = now, at, rounds + 1
    spent = max(last - began, 1e-6)
    rows = []
    for (pid, tid), seen in before.items():
        used = (seen.ticks - first.get((pid, tid), seen).ticks) / HZ / spent
        places = sorted(states.get((pid, tid), {}).items(), key=lambda item: (-item[1], item[0]))
        rows.append({
            "pid": pid, "tid": tid, "thread": read("/proc/%d/task/%d/comm" % (pid, tid), 64).decode("utf-8", "replace").strip(),
            "cpu_pct": round(100 * used, 1), "where": {place: round(count / rounds, 3) for place, count in places[:3]} if rounds else {},
        })  # fmt: skip
    rows.sort(key=lambda row: (-float(str(row["cpu_pct"])), row["pid"], row["tid"]))
    processes = []
    for pid in pids:
        used = sum(float(str(row["cpu_pct"])) for row in rows if row["pid"] == pid)
        top = next((float(str(row["cpu_pct"])) for row in rows if row["pid"] == pid), 0.0)
        processes.append({"pid": pid, "title": title(pid), "cpu_pct": round(used, 1), "busiest_thread_pct": top})
    return {"seconds": round(spent, 2), "rounds": rounds, "busiest": [round(100 * load, 1) for load in busiest], "processes": processes,
            "threads": rows[:TOP], "main": roots[0] if roots else None, "affinity": cores(pids)}  # fmt: skip


def cores(pids: list[int]) -> int | None:
    """Cores that the server may use."""
    try:
        return len(os.sched_getaffinity(pids[0])) if pids else None
    except (AttributeError, OSError):
        return None


def cpu_stat(pid: int) -> dict[str, int]:
    """Counters of the CPU limit that holds the process; empty where none does."""
    for line in read("/proc/%d/cgroup" % pid).decode("utf-8", "replace").splitlines():
        parts = line.split(":", 2)
        if len(parts) < 3 or not (parts[1] == "" or "cpu" in parts[1].split(",")):
            continue
        bases = ["/sys/fs/cgroup"] if parts[1] == "" else ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]
        for base in bases:
            for folder in (base + parts[2].rstrip("/"), base):
                rows = [row.split() for row in read(folder + "/cpu.stat").decode("ascii", "replace").splitlines()]
                found = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
                if "nr_periods" in found:
                    quota = read(folder + "/cpu.max").split()
                    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
                        found["quota_milli_cores"] = int(quota[0]) * 1000 // int(quota[1])
                    return found
    return {}


def steal() -> tuple[int, int]:
    row = [int(word) for word in read("/proc/stat").split(b"\n")[0].split()[1:] if word.isdigit()]
    return (row[7] if len(row) > 7 else 0, sum(row[:8]))


def node_of_cpus() -> dict[int, int]:
    found: dict[int, int] = {}
    try:
        nodes = [name for name in os.listdir("/sys/devices/system/node") if name.startswith("node") and name[4:].isdigit()]
    except OSError:
        return found
    for name in nodes:
        for part in read("/sys/devices/system/node/%s/cpulist" % name).decode("ascii", "replace").strip().split(","):
            low, _, high = part.partition("-")
            if low.isdigit():
                for cpu in range(int(low), int(high if high.isdigit() else low) + 1):
                    found[cpu] = int(name[4:])
    return found


def remote_share(pids: list[int]) -> float | None:
    """Of the worst process, the share of its memory on another node than the core it runs on. None where it cannot be read."""
    nodes = node_of_cpus()
    if not nodes:
        return None
    if len(set(nodes.values())) == 1:
        return 0.0  # one node: nothing can be remote
    worst: float | None = None
    for pid in pids:
        row = fields(read("/proc/%d/stat" % pid))
        home = nodes.get(int(row[36])) if len(row) > 36 else None
        pages: dict[int, int] = {}
        for word in read("/proc/%d/numa_maps" % pid, 1 << 23).split():
            name, _, count = word.partition(b"=")
            if name[:1] == b"N" and name[1:].isdigit() and count.isdigit():
                pages[int(name[1:])] = pages.get(int(name[1:]), 0) + int(count)
        total = sum(pages.values())
        if home is not None and total > 25000:  # 100 MiB: smaller processes hold no weights and no cache
            share = 1 - pages.get(home, 0) / total
            worst = share if worst is None else max(worst, share)
    return worst


def look(roots: list[int], seconds: float) -> dict[str, Any]:
    pids = family(roots)
    limits, stolen = cpu_stat(pids[0]) if pids else {}, steal()
    time.sleep(seconds)
    after, stolen_after = cpu_stat(pids[0]) if pids else {}, steal()
    env: list[str] = []
    wanted = (b"NCCL_",)
    for pid in pids:
        rows = read("/proc/%d/environ" % pid, 1 << 20).split(b"\0")
        found = sorted(row.decode("utf-8", "replace") for row in rows if row.startswith(wanted))
        if len(found) > len(env):
            env = found
    total = max(1, stolen_after[1] - stolen[1])
    return {
        "seconds": seconds, "processes": len(pids), "readable": bool(pids) and bool(read("/proc/%d/environ" % pids[0], 16)),
        "periods": after.get("nr_periods", 0) - limits.get("nr_periods", 0) if limits else None,
        "throttled": after.get("nr_throttled", 0) - limits.get("nr_throttled", 0) if limits else None,
        "quota_milli_cores": after.get("quota_milli_cores"), "steal_pct": round(100.0 * (stolen_after[0] - stolen[0]) / total, 2),
        "remote_share": remote_share(pids), "nccl_env": env,
    }  # fmt: skip


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    roots = [int(pid) for pid in asked["pids"]]
    found = sample(roots, float(asked["seconds"]), float(asked.get("interval_s", 0.25))) if asked["op"] == "sample" else look(roots, float(asked["seconds"]))
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
