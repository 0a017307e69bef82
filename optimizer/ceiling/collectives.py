"""Time of the collectives of one decode step, by the path that carries them. Latencies and rates are priors from
published tables (playbooks/hardware.yaml), replaced by what the box shows where it shows it."""

from dataclasses import dataclass

from optimizer.ceiling.hardware import link_rate
from optimizer.model.ceiling import HardwareSpec, ModelShape, Situation

BYTES = 2  # activations are reduced in half precision
PATHS = ("custom_graphed", "custom_eager", "nccl_p2p", "nccl_shm")


@dataclass(frozen=True)
class Collectives:
    """Per decode step: how many, how long each, on the path in use and on the best path of this box class."""

    count: int
    message_bytes: float
    used_path: str
    used_us: float
    best_path: str
    best_us: float
    known: bool  # whether the used path's time is known at all; if not, nothing is said to be lost

    @property
    def lost_ms(self) -> float:
        return self.count * max(self.used_us - self.best_us, 0.0) / 1e3

    @property
    def best_ms(self) -> float:
        return self.count * self.best_us / 1e3


def allreduce_us(hardware: HardwareSpec, path: str, gpus: int, message_bytes: float) -> float | None:
    """Latency plus transfer: 2(N − 1)/N · bytes over the bus rate of the path. None where the path has no entry."""
    latency = _by_count(hardware.allreduce_us.get(path, {}), gpus)
    if latency is None:
        return None
    rate = _by_count(hardware.allreduce_bytes_per_s.get(path, {}), gpus)
    if rate is None and path == "custom_eager":
        rate = _by_count(hardware.allreduce_bytes_per_s.get("custom_graphed", {}), gpus)
    rate = rate or link_rate(hardware)
    transfer = 2 * (gpus - 1) / gpus * message_bytes / rate * 1e6 if rate else 0.0
    return latency + transfer


def collectives_of_step(
    shape: ModelShape, hardware: HardwareSpec, situation: Situation, batch: float, tokens_per_sequence: float = 1.0
) -> Collectives | None:
    """Two all-reduces per layer (attention, MLP); with expert parallelism two all-to-alls take an MLP's place.

    None on one GPU, where the layer count is unknown, or where no path has an entry."""
    if situation.tp <= 1 or not shape.layers or not shape.hidden:
        return None
    count = (2 if situation.attention_tp > 1 else 1) * shape.layers // situation.pp
    if situation.ep > 1:
        count += shape.moe_layers // situation.pp
    message = batch / situation.replicas * tokens_per_sequence * shape.hidden * BYTES
    times = {path: allreduce_us(hardware, path, situation.tp, message) for path in PATHS}
    known = {path: time for path, time in times.items() if time is not None}
    if not known:
        return None
    best = min((path for path in known if path != "custom_eager"), key=lambda path: known[path], default=None)
    if best is None:
        return None
    used = situation.allreduce_path or best
    used_us = situation.allreduce_us if situation.allreduce_us is not None else known.get(used)
    return Collectives(
        count, message, used, known[best] if used_us is None else used_us, best, known[best], used_us is not None
    )


def _by_count(table: dict[str, float], gpus: int) -> float | None:
    """The entry for this many GPUs; between entries the next larger one, beyond them scaled by the ring's length."""
    counts = sorted(int(key) for key in table)
    if not counts:
        return None
    for count in counts:
        if count >= gpus:
            return table[str(count)]
    return table[str(counts[-1])]
