"""How an effect ended. *Unknown* is a third outcome: a lost connection is neither success nor failure, and only
reconciliation may turn it into one of the other two."""

from typing import Annotated, Any, Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen

Cause = Literal[
    "oom_weights", "oom_kv", "oom_capture", "oom_load", "oom_kernel", "bad_flag", "port_busy", "model_missing", "nccl",
    "hang_loading", "unresponsive", "not_ready_in_time", "exited", "crashed", "died_at_launch", "wrong_server",
    "setting_not_effective", "disk_full", "link_lost", "gpu_memory_stuck", "interrupted", "refused_by_box", "guard_fired",
    "client_bound", "never_steady", "bench_failed", "proposal_failed", "original_gone", "foreign_process", "unreadable", "host_fault",
]  # fmt: skip

# A setting that ends so is infeasible for the search; every other cause is the infrastructure's fault.
INFEASIBLE: frozenset[str] = frozenset({
    "oom_weights", "oom_kv", "oom_capture", "oom_load", "bad_flag", "nccl", "hang_loading", "unresponsive",
    "not_ready_in_time", "exited", "crashed", "setting_not_effective",
})  # fmt: skip


class Done(Frozen):
    status: Literal["done"] = "done"
    body: dict[str, Any] = Field(default_factory=dict)
    duration_s: FiniteFloat = 0.0


class Failed(Frozen):
    status: Literal["failed"] = "failed"
    cause: Cause
    message: str
    retryable: bool = False
    body: dict[str, Any] = Field(default_factory=dict)
    duration_s: FiniteFloat = 0.0


class Unknown(Frozen):
    status: Literal["unknown"] = "unknown"
    reason: str
    duration_s: FiniteFloat = 0.0


Outcome = Annotated[Done | Failed | Unknown, Field(discriminator="status")]
