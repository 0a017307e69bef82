"""The GPUs of a simulated box as its processes see them: a folder of small state files, one per server process, and the
``nvidia-smi`` that reads them. Responsible for memory accounting between processes and for printing it; a state file
whose process is gone counts for nothing, as on real hardware."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks, None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class GpuState:
    """What one server process occupies; written atomically, removed at the end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{os.getpid()}.json"
        self._base = {"pid": os.getpid(), "start": start_ticks(os.getpid())}

    def write(self, **values: Any) -> None:
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps({**self._base, **values, "written": time.time()}))
            temporary.replace(self._path)
        except OSError:  # the box folder was removed under us: nobody is left to read it
            return

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def living(folder: Path) -> list[dict[str, Any]]:
    """States whose process lives, with the ranks that still do."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            state = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if start_ticks(int(state["pid"])) == state["start"]:
            found.append(state)
    return found


def used_gib(folder: Path, gpu: int, ignore_pid: int) -> float:
    return sum(float(s["used_mib"]) / 1024.0 for s in living(folder) if gpu in s["gpus"] and s["pid"] != ignore_pid)


# --- nvidia-smi ---------------------------------------------------------------------------------------------------


class Smi:
    def __init__(self, home: Path) -> None:
        self.box = json.loads((home / "box.json").read_text())
        self.hardware = self.box["hardware"]
        self.states = living(home / "state" / "gpu")
        self.count = int(self.hardware["count"])

    def gpu(self, index: int) -> dict[str, str]:
        hardware, used, busy, memory_busy = self.hardware, 0.0, 0.0, 0.0
        for state in self.states:
            if index in state["gpus"]:
                used += float(state["used_mib"])
                if time.time() - float(state["written"]) < 2.0:
                    busy = max(busy, float(state["busy"]))
                    memory_busy = max(memory_busy, float(state["memory_busy"]))
        total = int(hardware["memory_mib"])
        reserved = 616
        idle, limit = float(hardware["power_idle_w"]), float(hardware["power_limit_w"])
        wobble = random.uniform(-1.0, 1.0)
        active = used > 500
        power = (
            idle * (1.5 if active else 1.0)
            + (limit - idle) * float(hardware.get("power_share", 0.65)) * busy * (0.4 + 0.6 * memory_busy)
            + wobble
        )
        clock = int(hardware["sm_clock_mhz"]) if active else 345
        uuid = f"GPU-{index:08x}-5a1d-4c6e-9d2b-{self.box['seed']:012x}"
        off = "Not Active"
        values = {
            "index": str(index), "count": str(self.count), "name": hardware["gpu"], "gpu_name": hardware["gpu"], "uuid": uuid, "gpu_uuid": uuid,
            "driver_version": hardware["driver"], "serial": "0000000000000", "pstate": "P0" if active else "P8",
            "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.") + f"{int(time.time() * 1000) % 1000:03d}",
            "memory.total": f"{total} MiB", "memory.used": f"{int(used) + (0 if active else 4)} MiB", "memory.reserved": f"{reserved} MiB",
            "memory.free": f"{max(0, total - reserved - int(used))} MiB",
            "utilization.gpu": f"{round(100 * busy)} %", "utilization.memory": f"{round(100 * min(1.0, memory_busy))} %",
            "power.draw": f"{power:.2f} W", "power.draw.instant": f"{power:.2f} W", "power.draw.average": f"{power:.2f} W",
            "power.limit": f"{limit:.2f} W", "enforced.power.limit": f"{limit:.2f} W", "power.max_limit": f"{limit:.2f} W",
            "power.default_limit": f"{limit:.2f} W", "power.min_limit": f"{limit * 0.3:.2f} W",
            "clocks.sm": f"{clock} MHz", "clocks.current.sm": f"{clock} MHz", "clocks.gr": f"{clock} MHz", "clocks.current.graphics": f"{clock} MHz",
            "clocks.mem": f"{hardware['memory_clock_mhz']} MHz", "clocks.current.memory": f"{hardware['memory_clock_mhz']} MHz",
            "clocks.max.sm": f"{hardware['sm_clock_mhz']} MHz", "clocks.max.graphics": f"{hardware['sm_clock_mhz']} MHz",
            "clocks.max.mem": f"{hardware['memory_clock_mhz']} MHz", "clocks.max.memory": f"{hardware['memory_clock_mhz']} MHz",
            "clocks.applications.graphics": f"{hardware['sm_clock_mhz']} MHz", "clocks.applications.memory": f"{hardware['memory_clock_mhz']} MHz",
            "temperature.gpu": str(int(35 + 30 * busy)), "temperature.memory": str(int(35 + 30 * busy)), "fan.speed": "[N/A]",
            "compute_cap": hardware["compute_capability"], "compute_mode": "Default", "persistence_mode": "Enabled", "mig.mode.current": "[N/A]",
            "ecc.mode.current": "Enabled", "pci.bus_id": self.bus(index), "gpu_bus_id": self.bus(index), "vbios_version": "96.00.A5.00.1A",
            "pcie.link.gen.current": str(hardware["pcie_generation"]), "pcie.link.gen.max": str(hardware["pcie_generation"]),
            "pcie.link.gen.gpucurrent": str(hardware["pcie_generation"]), "pcie.link.width.current": "16", "pcie.link.width.max": "16",
            "ecc.errors.corrected.volatile.total": "0", "ecc.errors.uncorrected.volatile.total": "0", "display_mode": "Disabled", "display_active": "Disabled",
        }  # fmt: skip
        for prefix in ("clocks_throttle_reasons", "clocks_event_reasons"):
            values[f"{prefix}.active"] = "0x0000000000000000" if active else "0x0000000000000001"
            values[f"{prefix}.supported"] = "0x00000000000001FF"
            values[f"{prefix}.gpu_idle"] = off if active else "Active"
            for reason in (
                "applications_clocks_setting",
                "sw_power_cap",
                "hw_slowdown",
                "hw_thermal_slowdown",
                "hw_power_brake_slowdown",
                "sw_thermal_slowdown",
                "sync_boost",
            ):
                values[f"{prefix}.{reason}"] = off
        return values

    def bus(self, index: int) -> str:
        return f"00000000:{0x06 + index:02X}:00.0"

    def query(self, fields: list[str], layout: set[str], only: set[int]) -> int:
        rows = [self.gpu(index) for index in range(self.count) if not only or index in only]
        for name in fields:
            if name not in rows[0]:
                print(f'Field "{name}" is not a valid field to query.')
                return 2
        if "noheader" not in layout:
            units = {"MiB": "[MiB]", "%": "[%]", "W": "[W]", "MHz": "[MHz]"}
            heads = [
                f"{name} {units[rows[0][name].rpartition(' ')[2]]}"
                if rows[0][name].rpartition(" ")[2] in units
                else name
                for name in fields
            ]
            print(", ".join(heads))
        for row in rows:
            texts = [row[name] for name in fields]
            if "nounits" in layout:
                texts = [
                    text.rpartition(" ")[0] if text.rpartition(" ")[2] in {"MiB", "%", "W", "MHz"} else text
                    for text in texts
                ]
            print(", ".join(texts))
        return 0

    def processes(self, fields: list[str], layout: set[str], only: set[int]) -> int:
        known = {
            "pid",
            "process_name",
            "name",
            "used_memory",
            "used_gpu_memory",
            "gpu_uuid",
            "gpu_bus_id",
            "gpu_name",
            "timestamp",
            "gpu_serial",
        }
        for name in fields:
            if name not in known:
                print(f'Field "{name}" is not a valid field to query.')
                return 2
        if "noheader" not in layout:
            print(", ".join(name + (" [MiB]" if "memory" in name else "") for name in fields))
        for state in self.states:
            for rank, gpu in enumerate(state["gpus"]):
                if float(state["used_mib"]) <= 0 or (only and gpu not in only):
                    continue
                shown = self.gpu(gpu)
                pid = state["ranks"][rank] if rank < len(state["ranks"]) else state["pid"]
                used = f"{int(state['used_mib'])}" + ("" if "nounits" in layout else " MiB")
                name = f"sglang::scheduler_TP{rank}" if len(state["gpus"]) > 1 else "sglang::scheduler"
                row = {"pid": str(pid), "process_name": name, "name": name, "used_memory": used, "used_gpu_memory": used, "gpu_uuid": shown["uuid"],
                       "gpu_bus_id": shown["pci.bus_id"], "gpu_name": shown["name"], "timestamp": shown["timestamp"], "gpu_serial": "0000000000000"}  # fmt: skip
                print(", ".join(row[name] for name in fields))
        return 0

    def topology(self) -> int:
        link = str(self.hardware["topology"])
        names = [f"GPU{i}" for i in range(self.count)]
        print("\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID")
        half = (self.count + 1) // 2
        for row, name in enumerate(names):
            cells = [
                " X "
                if row == column
                else (link if link.startswith("NV") or (row < half) == (column < half) else "SYS")
                for column in range(self.count)
            ]
            node = 0 if row < half or link.startswith("NV") or self.count < 4 else 1
            print(name + "\t" + "\t".join(cells) + f"\t{self.hardware['host_cpus']}\t{node}\t\tN/A")
        print(
            "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
            "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
            "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
            "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
            "  PIX  = Connection traversing at most a single PCIe bridge\n  NV#  = Connection traversing a bonded set of # NVLinks"
        )
        return 0

    def full(self, only: set[int]) -> int:
        def put(indent: int, name: str, value: str | None = None) -> None:
            text = " " * (4 * indent) + name
            print(text if value is None else f"{text:<55}: {value}")

        print("\n==============NVSMI LOG==============\n")
        put(0, "Timestamp", time.strftime("%a %b %d %H:%M:%S %Y"))
        put(0, "Driver Version", self.hardware["driver"])
        put(0, "CUDA Version", self.hardware["cuda"])
        print()
        put(0, "Attached GPUs", str(self.count))
        for index in range(self.count):
            if only and index not in only:
                continue
            g = self.gpu(index)
            print(f"GPU {self.bus(index)}")
            rows: list[tuple[int, str, str | None]] = [
                (1, "Product Name", g["name"]), (1, "Product Brand", self.hardware["brand"]), (1, "Product Architecture", self.hardware["architecture"]),
                (1, "Persistence Mode", "Enabled"), (1, "MIG Mode", None), (2, "Current", "Disabled"), (2, "Pending", "Disabled"),
                (1, "GPU UUID", g["uuid"]), (1, "VBIOS Version", g["vbios_version"]), (1, "PCI", None), (2, "Bus Id", g["pci.bus_id"]),
                (2, "GPU Link Info", None), (3, "PCIe Generation", None), (4, "Max", g["pcie.link.gen.max"]), (4, "Current", g["pcie.link.gen.current"]),
                (3, "Link Width", None), (4, "Max", "16x"), (4, "Current", "16x"), (1, "Performance State", g["pstate"]),
                (1, "Clocks Event Reasons", None), (2, "Idle", g["clocks_event_reasons.gpu_idle"]),
                (2, "Applications Clocks Setting", "Not Active"), (2, "SW Power Cap", "Not Active"), (2, "HW Slowdown", "Not Active"),
                (3, "HW Thermal Slowdown", "Not Active"), (3, "HW Power Brake Slowdown", "Not Active"), (2, "Sync Boost", "Not Active"),
                (2, "SW Thermal Slowdown", "Not Active"), (1, "FB Memory Usage", None), (2, "Total", g["memory.total"]),
                (2, "Reserved", g["memory.reserved"]), (2, "Used", g["memory.used"]), (2, "Free", g["memory.free"]), (1, "Compute Mode", "Default"),
                (1, "Utilization", None), (2, "GPU", g["utilization.gpu"]), (2, "Memory", g["utilization.memory"]),
                (1, "ECC Mode", None), (2, "Current", "Enabled"), (2, "Pending", "Enabled"),
                (1, "Temperature", None), (2, "GPU Current Temp", g["temperature.gpu"] + " C"), (1, "GPU Power Readings", None),
                (2, "Average Power Draw", g["power.draw.average"]), (2, "Instantaneous Power Draw", g["power.draw"]),
                (2, "Current Power Limit", g["power.limit"]), (2, "Requested Power Limit", g["power.limit"]), (2, "Default Power Limit", g["power.default_limit"]),
                (2, "Min Power Limit", g["power.min_limit"]), (2, "Max Power Limit", g["power.max_limit"]),
                (1, "Clocks", None), (2, "Graphics", g["clocks.gr"]), (2, "SM", g["clocks.sm"]), (2, "Memory", g["clocks.mem"]),
                (1, "Max Clocks", None), (2, "Graphics", g["clocks.max.sm"]), (2, "SM", g["clocks.max.sm"]), (2, "Memory", g["clocks.max.mem"]),
            ]  # fmt: skip
            for indent, name, value in rows:
                put(indent, name, value)
            users = [
                (s, s["ranks"][s["gpus"].index(index)])
                for s in self.states
                if index in s["gpus"] and s["ranks"] and float(s["used_mib"]) > 0
            ]
            put(1, "Processes", None if users else "None")
            for state, pid in users:
                put(2, "Process ID", str(pid))
                put(3, "Type", "C")
                put(3, "Name", "sglang::scheduler")
                put(3, "Used GPU Memory", f"{int(state['used_mib'])} MiB")
            print()
        return 0

    def table(self) -> int:
        print(
            f"NVIDIA-SMI {self.hardware['driver']}    Driver Version: {self.hardware['driver']}    CUDA Version: {self.hardware['cuda']}"
        )
        for index in range(self.count):
            g = self.gpu(index)
            print(
                f"| {index}  {g['name']} | {g['pci.bus_id']} | {g['memory.used']} / {g['memory.total']} | {g['utilization.gpu']} | {g['power.draw']} / {g['power.limit']} | {g['temperature.gpu']}C |"
            )
        return 0


def nvidia_smi(argv: list[str], home: Path) -> int:
    """The subset of ``nvidia-smi`` that tools call. Returns its exit status."""
    layout: set[str] = set()
    only: set[int] = set()
    query: tuple[str, list[str]] | None = None
    interval = 0.0
    full = False
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, _, value = word.partition("=")
        if (
            name in {"--format", "--query-gpu", "--query-compute-apps", "--id", "--loop", "--loop-ms"}
            and not value
            and rest
        ):
            value = rest.pop(0)
        if name in {"-i", "-l", "-lms", "-d"} and rest:
            value = rest.pop(0)
        if name == "--format":
            layout = {part.strip() for part in value.split(",")}
        elif name in {"--query-gpu", "--query-compute-apps"}:
            query = (name, [part.strip() for part in value.split(",") if part.strip()])
        elif name in {"-i", "--id"}:
            only = {int(part) for part in value.split(",") if part.strip().isdigit()}
        elif name in {"-l", "--loop"}:
            interval = float(value or 5)
        elif name in {"-lms", "--loop-ms"}:
            interval = float(value) / 1000.0
        elif name in {"-q", "--query"}:
            full = True
        elif name == "topo":
            return Smi(home).topology()
        elif name in {"-L", "--list-gpus"}:
            smi = Smi(home)
            for index in range(smi.count):
                print(f"GPU {index}: {smi.hardware['gpu']} (UUID: {smi.gpu(index)['uuid']})")
            return 0
        elif name in {"-m", "-d"}:
            continue
        else:
            print(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\nunknown: {word}")
            return 1
    while True:
        smi = Smi(home)
        if query and "csv" not in layout:
            print("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.")
            return 6
        if query and query[0] == "--query-gpu":
            status = smi.query(query[1], layout, only)
        elif query:
            status = smi.processes(query[1], layout, only)
        else:
            status = smi.full(only) if full else smi.table()
        sys.stdout.flush()
        if not interval or status:
            return status
        time.sleep(interval)
