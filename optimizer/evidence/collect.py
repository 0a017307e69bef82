"""What the live survey of a box asks, as data: read-only commands by the name that their answer has in a bundle. Whoever can
reach a box runs them and puts the answers under these names; a program that is not there is a missing fact, no error."""

from collections.abc import Mapping

from optimizer.evidence.rocm_smi import AMD_SMI_METRIC, AMD_SMI_STATIC, ROCM_SMI

COMMAND_TIMEOUT_S = 30.0
COMMAND_BYTES = 4 * 1024 * 1024
# How long the kernel's counters are watched: with a server, long enough to tell a full core from a busy one.
WATCH_S, GLANCE_S = 1.6, 0.2

_SIDE_BY_SIDE: Mapping[str, tuple[str, ...]] = {
    "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
    "topo.txt": ("nvidia-smi", "topo", "-m"),
    "topo_p2p.txt": ("nvidia-smi", "topo", "-p2p", "r"),
    "gpu_processes.csv": ("nvidia-smi", "--query-compute-apps=pid,process_name,used_gpu_memory,gpu_bus_id", "--format=csv,noheader"),
    "conf_compute.txt": ("nvidia-smi", "conf-compute", "-f"),
    "rocm-smi.json": ROCM_SMI,
    "amd-smi-static.json": AMD_SMI_STATIC,
    "amd-smi-metric.json": AMD_SMI_METRIC,
}


def box_commands(*, root: bool = False) -> dict[str, tuple[str, ...]]:
    """File name -> argument vector. Only root sees the bits of the PCI bridges that bend peer traffic."""
    return {**_SIDE_BY_SIDE, **({"lspci.txt": ("lspci", "-D", "-vvv")} if root else {})}
