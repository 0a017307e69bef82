"""The kernel's account of a box (host.json), who uses the GPUs, AMD's tools, peer access: known answers and hostile input."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.evidence.bundle import bundle_from_files
from optimizer.evidence.found import Found
from optimizer.evidence.host import acs_redirects, gpu_process_facts, host_facts, read_host
from optimizer.evidence.nvidia_smi import confidential_facts, p2p_facts, query_facts
from optimizer.evidence.odd import odd
from optimizer.evidence.rocm_smi import amd_metric_facts, amd_static_facts, rocm_facts

RECORDED = Path(__file__).parents[2] / "recordings" / "sglang-0.5.12-h200"
HOST: dict[str, Any] = {
    "format": 1, "interval_s": 1.6, "hz": 100, "cpus": 64, "cpu_model": "AMD EPYC 9654", "governor": "powersave", "numa_nodes": [0, 1],
    "loadavg_1m": 9.5, "memory": {"total_bytes": 2**40, "available_bytes": 2**39, "swap_bytes": 2**33, "swap_free_bytes": 2**32, "shm_free_bytes": 2**29},
    "pressure": {"cpu": {"some_avg10": 31.5}}, "kernel": "6.8.0",
    "cgroup": {"folder": "/sys/fs/cgroup", "quota_cores": 8.0, "before": {"nr_throttled": 10}, "after": {"nr_throttled": 17}},
    # 400 ticks passed on all cores: 100 user, 20 stolen, 280 idle
    "cpu_ticks": {"before": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "after": [100, 0, 0, 280, 0, 0, 0, 20, 0, 0]},
    "gpus_pci": [
        {"address": "0000:0f:00.0", "vendor": "0x10de", "current_link_speed": "8.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe",
         "current_link_width": "16", "max_link_width": "16", "numa_node": "0", "iommu_type": "DMA-FQ", "bridges": ["0000:0e:00.0"]},
        {"address": "0000:a0:00.0", "vendor": "0x10de", "numa_node": "1", "iommu_type": "DMA-FQ", "bridges": ["0000:9f:00.0"]},
    ],
    "iommu": {"present": True, "types": {"DMA-FQ": 2}, "readable": True}, "rdma": ["mlx5_0", "mlx5_1"], "drivers": {"nvidia": "580.159.04"},
    "nccl_conf": ["NCCL_IB_DISABLE=1"], "servers": [{"pid": 100, "engine": "sglang"}, {"pid": 900, "engine": "vllm"}],
    "visible_gpu_pids": [101, 102, 900],
    "server": {
        "pid": 100, "environment": {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"},
        "processes": [
            {"pid": 100, "name": "python", "title": None, "rss_bytes": 2**30, "cpu_pct": 98.0, "environment_changes": None},
            {"pid": 101, "name": "sglang::schedul", "title": "sglang::scheduler_TP0", "rss_bytes": 2**30, "cpu_pct": 100.0,
             "numa_bytes": {"0": 3 * 2**30, "1": 2**30}, "environment_changes": {"NCCL_CUMEM_ENABLE": "0", "OMP_NUM_THREADS": "1"}},
            {"pid": 102, "name": "sglang::schedul", "title": "sglang::scheduler_TP1", "rss_bytes": 2**30, "cpu_pct": 99.0,
             "numa_bytes": {"0": 3 * 2**30, "1": 2**30}, "environment_changes": {"NCCL_DEBUG": None}},
            {"pid": 103, "name": "sglang::detoken", "title": "sglang::detokenizer", "rss_bytes": 2**30, "cpu_pct": 12.0, "environment_changes": {}},
        ],
        "busiest_threads": [{"100": 99.0, "101": 100.0}, {"100": 30.0, "101": 100.0}, {"100": 97.0, "101": 100.0}, {"100": 10.0, "101": 100.0}],
    },
}  # fmt: skip
ASKED = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "NCCL_ALGO": "Ring", "HF_TOKEN": "«secret»"}
PROCESSES = b"101, sglang::scheduler_TP0, 1000 MiB, 00000000:0F:00.0\n102, sglang, 1000 MiB, 00000000:A0:00.0\n900, python, 5 MiB, 00000000:A0:00.0\n"


def read(host: dict[str, Any] = HOST, engine: str = "sglang", lspci: bytes = b"") -> Found:
    data = json.dumps(host, indent=1).encode()
    found = Found("host.json")
    host_facts(found, data, read_host(data), engine, ASKED, lspci)
    return found


def test_what_the_kernel_says_of_a_box() -> None:
    found = read()
    expected = {
        "host.cpu_count": 64, "host.cpu_quota_cores": 8.0, "host.cpu_throttled_periods": 7, "host.cpu_steal_pct": 5.0,
        "host.cpu_busy_pct": 30.0, "host.cpu_pressure_pct": 31.5, "host.numa_total": 2, "host.memory_available_gib": 512.0,
        "host.swap_used_gib": 4.0, "host.shm_free_gib": 0.5, "network.rdma_devices": 2, "topology.peer_redirect": "iommu",
        "validity.server_count": 2, "gpu.driver": "580.159.04", "host.server_processes": 4, "host.server_rss_gib": 4.0,
        "nccl.env": ["NCCL_ALGO=Ring", "conf:NCCL_IB_DISABLE=1"],
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    evidence = found.evidence()
    assert {fact.labels["process"]: fact.value for fact in evidence.all("host.proc_cpu_pct")} == {
        "api_server": 98.0, "scheduler": 100.0, "detokenizer": 12.0,
    }  # fmt: skip
    assert all(fact.line is not None and fact.span is not None for fact in evidence.facts)
    assert "no pressure figures" in next(item.reason for item in evidence.missing if item.name == "host.io_pressure_pct")


def test_a_scheduler_that_polls_is_no_full_core() -> None:
    """SGLang's scheduler asks for work without pause: only the other threads' load is a sign."""
    assert read().get("host.cpu_sat") == 0.5
    assert read(engine="other").get("host.cpu_sat") == 1.0


def test_the_environment_of_the_ranks_against_what_was_asked() -> None:
    found = read()
    assert found.get("settings.env_differs") == {"OMP_NUM_THREADS": {"asked": "4", "rank": "1"}}
    assert found.get("settings.env_added") == {"NCCL_CUMEM_ENABLE": "0"}
    other = json.loads(json.dumps(HOST))
    other["server"]["environment"]["NCCL_DEBUG"] = "WARN"
    differs = read(other).get("settings.env_differs")
    assert isinstance(differs, dict) and differs["NCCL_DEBUG"] == {"asked": "INFO", "process": "WARN"}
    assert "secret" not in json.dumps(differs)


def test_ports_that_bend_peer_traffic() -> None:
    text = (
        b"0000:0e:00.0 PCI bridge: x\n\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+\n"
        b"\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir%b CmpltRedir%b UpstreamFwd+\n"
        b"0000:77:00.0 PCI bridge: y\n\t\tACSCtl:\tSrcValid+ ReqRedir+ CmpltRedir+\n"
    )
    free = json.loads(json.dumps(HOST))
    for gpu in free["gpus_pci"]:
        gpu["iommu_type"] = "identity"
    assert read(lspci=text % (b"+", b"+")).get("topology.peer_redirect") == "acs_and_iommu"
    assert read(free, lspci=text % (b"+", b"-")).get("topology.peer_redirect") == "acs"
    assert read(free, lspci=text % (b"-", b"-")).get("topology.peer_redirect") == "none"
    assert read(free).get("topology.peer_redirect") is None
    assert acs_redirects(b"0000:0e:00.0 x\n\tCapabilities: <access denied>\n", {"0000:0e:00.0"}) == (False, False, None)


def test_whose_processes_use_the_gpus() -> None:
    found = Found("gpu_processes.csv")
    gpu_process_facts(found, PROCESSES, HOST)
    assert found.get("validity.foreign_gpu_processes") == 1
    assert found.get("host.numa_remote_share") == 0.75  # rank 1 sits on node 1 and three quarters of its memory on node 0
    nobody = Found("gpu_processes.csv")
    gpu_process_facts(nobody, b"", HOST)
    assert nobody.get("validity.foreign_gpu_processes") == 0
    for data, host, reason in (
        (PROCESSES, {}, "nobody said"),
        (b"4711, python, 1 MiB, 0\n", HOST, "does not know"),
        (b"Insufficient Permissions\n", HOST, "did not list"),
    ):
        found = Found("gpu_processes.csv")
        gpu_process_facts(found, data, host)
        assert found.get("validity.foreign_gpu_processes") is None
        assert reason in found.evidence().missing[0].reason


def test_a_recorded_bundle_with_all_its_files_is_read() -> None:
    nccl = (
        b"box:1:1 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS\nbox:1:1 [0] NCCL INFO Using network IB\n"
        b"box:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    )
    launch = {"engine": "sglang", "argv": ["sglang", "serve", "--tp", "2"], "env": ASKED, "gpu_count": 2, "ready": True}
    files = {
        "launch.json": json.dumps(launch, indent=1).encode(), "host.json": json.dumps(HOST).encode(), "gpu_processes.csv": PROCESSES, "nccl.log": nccl,
        "topo.txt": (RECORDED / "topo.txt").read_bytes(), "topo_p2p.txt": P2P, "conf_compute.txt": b"CC status: OFF\n",
    }  # fmt: skip
    bundle = bundle_from_files(files)
    evidence = bundle.evidence
    for name, value in (
        ("nccl.transport", "p2p"), ("nccl.network", "IB"), ("topology.p2p", "not_supported"), ("topology.gpu_link", "nvlink"),
        ("gpu.confidential_compute", False), ("host.cpu_count", 64), ("validity.foreign_gpu_processes", 1),
    ):  # fmt: skip
        assert evidence.value(name) == value, name
    assert all(fact.line is not None or fact.span is not None for fact in evidence.facts if fact.source in files)
    marked = {fact.name for fact in evidence.facts if odd(fact, evidence)}
    assert {"settings.env_differs", "validity.server_count", "host.cpu_throttled_periods", "host.numa_remote_share", "host.cpu_pressure_pct"} <= marked


P2P = b" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"


def test_peer_access_and_confidential_computing() -> None:
    for data, gpus, value in ((P2P, 2, "not_supported"), (P2P.replace(b"CNS\tX", b"OK\tX"), 2, "ok"), (b"", 2, None)):
        found = Found("topo_p2p.txt")
        p2p_facts(found, data, gpus)
        assert found.get("topology.p2p") == value
    for data, value in ((b"CC status: ON\n", True), (b"CC status: OFF\n", False), (b"Unable to ...\n", None)):
        found = Found("conf_compute.txt")
        confidential_facts(found, data)
        assert found.get("gpu.confidential_compute") is value


def test_the_worst_gpu_counts_and_an_idle_one_accuses_nobody() -> None:
    data = (RECORDED / "nvidia-smi-q.txt").read_bytes()
    first, second = data.index(b"GPU 00000000"), data.rindex(b"GPU 00000000")
    busy = b"Idle                 : Not Active"
    idle = b"Idle                                           : Active"
    slow = (
        data[second:].replace(idle, busy)
        .replace(b"Current                                : 5", b"Current                                : 1", 1)
        .replace(b"SW Power Cap                                   : Not Active", b"SW Power Cap                                   : Active")
        .replace(b"Current Power Limit                            : 700.00 W", b"Current Power Limit                            : 350.00 W")
        .replace(b"DRAM Uncorrectable                         : 0", b"DRAM Uncorrectable                         : 3", 1)
    )  # fmt: skip
    found = Found("nvidia-smi-q.txt")
    query_facts(found, data[:second].replace(idle, busy) + slow, under_load=True)
    assert first < second
    assert found.get("gpu.power_limit_share") == 0.5 and found.get("gpu.power_limit_w") == 350.0
    assert found.get("pcie.link_share") == pytest.approx(0.25 / 3.938, rel=1e-3)
    evidence = found.evidence()
    assert evidence.value("gpu.throttle_share", reason="sw_power_cap") == 1.0
    assert evidence.value("gpu.error_count", kind="ecc") == 3
    # Only the second GPU works: the first one's link, which it lowered while idle, is not held against it.
    half = Found("nvidia-smi-q.txt")
    query_facts(half, data[:second].replace(b"Current                                : 5", b"Current                                : 1") + data[second:].replace(idle, busy), under_load=True)
    assert half.get("pcie.link_share") == 1.0


# Shapes as the tools print them: MI250 with ROCm 5 (values are texts), MI300X and MI355X with amd-smi of ROCm 6 and 7.
ROCM = {
    "card0": {
        "Temperature (Sensor junction) (C)": "64.0", "Temperature (Sensor edge) (C)": "55.0", "mclk clock speed:": "(1600Mhz)",
        "sclk clock speed:": "(850Mhz)", "Max Graphics Package Power (W)": "560.0", "Average Graphics Package Power (W)": "532.0",
        "GPU use (%)": "98", "GPU Memory Read/Write Activity (%)": "61", "PCIe Replay Count": "147", "Serial Number": "PCB000000-0000",
        "Card series": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "Valid sclk range": "500Mhz - 1700Mhz", "Valid mclk range": "400Mhz - 1600Mhz",
        "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "64424509440", "pcie clock level": "1 (16.0GT/s x16)",
    },
    "card1": {"GPU use (%)": "97", "Card Series": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "1"},
    "system": {"Driver version": "6.2.4", "(Topology) Link type between DRM devices 0 and 1": "XGMI"},
}  # fmt: skip
AMD_STATIC = {"gpu_data": [{
    "gpu": 0, "asic": {"market_name": "AMD Instinct MI355X", "target_graphics_version": "gfx950", "asic_serial": "0x1"},
    "driver": {"name": "amdgpu", "version": "6.16.6"}, "vram": {"type": "HBM3E", "size": {"value": 294896, "unit": "MB"}},
    "limit": {"ppt0": {"max_power_limit": {"value": 1400, "unit": "W"}, "socket_power_limit": {"value": 1000, "unit": "W"}},
              "ppt1": {"max_power_limit": "N/A", "socket_power_limit": "N/A"}}, "partition": {"compute_partition": "SPX"},
}]}  # fmt: skip
AMD_METRIC = [{
    "gpu": 0, "usage": {"gfx_activity": {"value": 99, "unit": "%"}, "umc_activity": {"value": 70, "unit": "%"}, "mm_activity": "N/A"},
    "power": {"socket_power": {"value": 990, "unit": "W"}, "throttle_status": "THROTTLED"},
    "clock": {"gfx_0": {"clk": {"value": 1200, "unit": "MHz"}, "max_clk": {"value": 2400, "unit": "MHz"}}},
    "temperature": {"edge": "N/A", "hotspot": {"value": 84, "unit": "C"}},
    "pcie": {"width": 16, "speed": {"value": 32, "unit": "GT/s"}, "replay_count": 0}, "ecc": {"total_uncorrectable_count": 2},
    "mem_usage": {"total_vram": {"value": 294896, "unit": "MB"}, "used_vram": {"value": 280000, "unit": "MB"}},
}]  # fmt: skip


def test_rocm_smi() -> None:
    found = Found("rocm-smi.json")
    rocm_facts(found, b"WARNING: AMD GPU device(s) is/are in a low-power state\n" + json.dumps(ROCM).encode(), 2)
    expected = {
        "gpu.name": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "gpu.count": 2, "gpu.driver": "6.2.4", "gpu.power_limit_w": 560.0,
        "gpu.power_share": 0.95, "gpu.sm_clock_share": 0.5, "gpu.mem_clock_share": 1.0, "gpu.temperature_c_max": 64.0,
        "gpu.memory_used_gib": 60.0, "topology.gpu_link": "nvlink", "gpu.mem_util_p50": 61.0,
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    assert found.get("pcie.link_gb_s") == pytest.approx(31.5, rel=1e-2)
    assert "PCB0" not in str(found.evidence())


def test_amd_smi_of_two_releases() -> None:
    for wrapped in (AMD_STATIC, AMD_STATIC["gpu_data"]):
        found = Found("amd-smi-static.json")
        amd_static_facts(found, json.dumps(wrapped, indent=1).encode())
        assert (found.get("gpu.name"), found.get("gpu.arch"), found.get("gpu.driver")) == ("AMD Instinct MI355X", "gfx950", "6.16.6")
        assert found.get("gpu.power_limit_share") == pytest.approx(1000 / 1400, rel=1e-4)
        assert found.get("gpu.memory_total_gib") == pytest.approx(287.98, rel=1e-3)
    for shape in (AMD_METRIC, {"gpu_data": AMD_METRIC}):
        found = Found("amd-smi-metric.json")
        amd_metric_facts(found, json.dumps(shape).encode())
        assert (found.get("gpu.sm_util_p50"), found.get("gpu.sm_clock_share"), found.get("gpu.temperature_c_max")) == (99.0, 0.5, 84.0)
        assert found.evidence().value("gpu.throttle_share") == 1.0 and found.evidence().value("gpu.error_count", kind="ecc") == 2


def test_idle_amd_gpus_accuse_nobody_either() -> None:
    idle = json.loads(json.dumps(ROCM))
    for card in ("card0", "card1"):
        idle[card]["GPU use (%)"] = "0"
    found = Found("rocm-smi.json")
    rocm_facts(found, json.dumps(idle).encode())
    assert found.get("gpu.sm_clock_share") is None
    assert any("idle" in item.reason for item in found.evidence().missing)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4), max_leaves=20
)  # fmt: skip
_KEYS = st.sampled_from([*HOST, *HOST["server"], *ROCM, "gpu_data", "usage", "power", "vram", "limit", "gpu"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(_KEYS, _JSON, max_size=6), st.binary(max_size=300))
def test_whatever_a_box_says_is_data(document: dict[str, Any], junk: bytes) -> None:
    """Wrong types and broken text are no statement or a ValueError; nothing else is raised."""
    mixed = {**HOST, **document}
    for data in (json.dumps(document).encode(), json.dumps({**mixed, "server": document}).encode(), json.dumps(mixed).encode(), junk):
        for reader in (rocm_facts, amd_static_facts, amd_metric_facts):
            with contextlib.suppress(ValueError):
                reader(Found("x"), data)
        try:
            host = read_host(data)
        except ValueError:
            continue
        host_facts(Found("x"), data, host, "vllm", {"A": "b"}, junk)
        gpu_process_facts(Found("x"), PROCESSES + junk, host)
    p2p_facts(Found("x"), junk)
    confidential_facts(Found("x"), junk)
    query_facts(Found("x"), junk, under_load=True)
