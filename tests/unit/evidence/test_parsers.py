"""The small parsers one by one: command lines, metrics, GPU tables, topology, NCCL, server info, benchmark rows, exits, collection."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.evidence import exits
from optimizer.evidence.argv import argv_facts, asked, env_facts
from optimizer.evidence.bench_json import bench_facts, read_bench
from optimizer.evidence.bundle import bundle_from_files
from optimizer.evidence.derived import gpu_arch, version_key
from optimizer.evidence.exits import exit_class
from optimizer.evidence.found import Found, quantile
from optimizer.evidence.lines import MAX_LINE_BYTES, Piece, iter_lines
from optimizer.evidence.literal import arguments, literal
from optimizer.evidence.nccl_log import NcclLog
from optimizer.evidence.nvidia_smi import csv_facts, query_facts, topo_facts
from optimizer.evidence.prometheus import metrics_facts, parse_metrics, series_facts
from optimizer.evidence.sglang_log import SglangLog
from optimizer.evidence.vllm_log import VllmLog

RECORDINGS = Path(__file__).parents[2] / "recordings"


def values(found: Found) -> dict[str, object]:
    return {fact.name: fact.value for fact in found.evidence().facts if not fact.labels}


def test_lines_count_newlines_and_split_at_carriage_returns() -> None:
    lines = list(iter_lines([Piece(b"a\r\nbb\rcc\r\n\nd")]))
    assert [(line.number, line.start, line.raw) for line in lines] == [
        (1, 0, b"a"),
        (2, 3, b"bb"),
        (2, 6, b"cc"),
        (4, 11, b"d"),
    ]
    assert len(next(iter_lines([Piece(b"x" * (MAX_LINE_BYTES + 5))])).raw) == MAX_LINE_BYTES
    assert next(iter_lines([Piece(b"tail", 1000, None)])) == (None, 1000, b"tail")


def test_quantiles_are_observed_values() -> None:
    assert quantile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.9) == 9
    assert quantile([5.0], 0.95) == 5.0
    assert quantile([], 0.5) is None


def test_both_forms_of_the_argument_line() -> None:
    assert arguments("a=1, b='x, y', c=[1, 2], d=None, e=Thing(f=3, g='h'), i=True)") == {
        "a": 1, "b": "x, y", "c": [1, 2], "d": None, "e": "Thing(f=3, g='h')", "i": True}  # fmt: skip
    assert arguments("{'a': 1, 'b': {'c': [2]}, 'm': <Mode.NONE: 0>, 'cut': 'x") == {
        "a": 1,
        "b": {"c": [2]},
        "m": "<Mode.NONE: 0>",
    }
    assert arguments("{" * 5000) == {}


def test_command_lines() -> None:
    flags = asked(
        [
            "python3",
            "-m",
            "sglang.launch_server",
            "--tp",
            "2",
            "--cuda-graph-bs",
            "1",
            "2",
            "--api-key",
            "s3cret",
            "--x=-1",
            "--enable-metrics",
        ],
        "sglang",
    )
    assert flags == {"tp_size": 2, "cuda_graph_bs": [1, 2], "api_key": "***", "x": -1, "enable_metrics": True}
    found = Found("launch.json")
    argv_facts(found, ["vllm", "serve", "m", "-tp", "4", "--enforce-eager", "--no-enable-prefix-caching", "--speculative-config",
                       '{"method": "ngram", "num_speculative_tokens": 4}'], "vllm")  # fmt: skip
    assert (
        values(found).items()
        >= {
            "parallel.tp": 4,
            "graphs.disable_flag": True,
            "kv.prefix_cache": False,
            "spec.method": "ngram",
            "spec.draft_tokens": 4,
        }.items()
    )


def test_nextn_is_the_models_own_layer_and_eagle_with_a_checkpoint_is_not() -> None:
    for extra, method in (([], "mtp"), (["--speculative-draft-model-path", "other"], "eagle")):
        found = Found("launch.json")
        argv_facts(
            found,
            ["x", "--model-path", "m", "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", *extra],
            "sglang",
        )
        assert (found.get("spec.method"), found.get("spec.draft_tokens")) == (method, 3)


def test_environment() -> None:
    found = Found("launch.json")
    env_facts(found, {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO", "SGLANG_SIMULATE_ACC_LEN": "2.8", "HOME": "/root"})
    assert values(found) == {
        "nccl.env": ["NCCL_P2P_DISABLE=1"],
        "topology.p2p": "disabled_by_env",
        "spec.simulated": True,
    }


@pytest.mark.fault("H34")
def test_metrics_with_duplicates_exponents_infinities_and_two_ranks() -> None:
    text = b"""# HELP x y
sglang:num_running_reqs{tp_rank="0"} 2.0
sglang:num_retracted_requests_total{tp_rank="0"} 1.2e+01
sglang:num_retracted_requests_total{tp_rank="1"} 1.2e+01
sglang:fwd_occupancy{tp_rank="0"} NaN
sglang:token_usage{tp_rank="0"} +Inf
sglang:cuda_graph_passes_total{mode="decode_none",tp_rank="0"} 30
sglang:cuda_graph_passes_total{mode="decode_none",tp_rank="0"} 10
sglang:cuda_graph_passes_total{mode="decode_cuda_graph",tp_rank="0"} 60
broken{ 3
"""
    found = Found("metrics.txt")
    metrics = parse_metrics(text)
    metrics_facts(found, metrics)
    assert metrics.unreadable == 1
    assert (
        values(found).items()
        >= {"kv.preemptions": 12, "decode.graph_off_share": 0.4, "decode.eager_passes": 40}.items()
    )


def test_counters_are_differences_and_a_restart_counts_from_zero() -> None:
    def reading(drafts: int, accepted: int) -> bytes:
        return (b'vllm:num_requests_running{engine="0"} 1\nvllm:spec_decode_num_drafts_total %d\n'
                b"vllm:spec_decode_num_draft_tokens_total %d\nvllm:spec_decode_num_accepted_tokens_total %d\n" % (drafts, drafts * 4, accepted))  # fmt: skip

    found = Found("metrics.txt")
    metrics_facts(found, parse_metrics(reading(150, 320)), parse_metrics(reading(100, 120)))
    assert values(found)["spec.accept_len"] == 5.0
    found = Found("metrics.txt")
    metrics_facts(found, parse_metrics(reading(10, 20)), parse_metrics(reading(100, 120)))
    assert values(found)["spec.accept_len"] == 3.0


def test_snapshots_under_load_are_a_series() -> None:
    def reading(running: int, waiting: int) -> bytes:
        return b'vllm:num_requests_running{engine="0"} %d\nvllm:num_requests_waiting{engine="0"} %d\n' % (
            running,
            waiting,
        )

    found = Found("metrics_load.txt")
    data = b"".join([reading(0, 0)] * 20 + [reading(1, 15)] * 9 + [reading(1, 3)] + [reading(0, 0)] * 20)
    assert series_facts(found, data) == 50
    assert values(found).items() >= {"decode.batch_p90": 1.0, "queue.depth_p95": 15.0, "decode.batch_p50": 1.0}.items()


def test_gpu_table_keeps_the_loaded_part() -> None:
    rows = (
        ["t, 0, 0 %, 0 %, 10 MiB, 70 W, 345 MHz, 30"] * 5
        + ["t, 0, 90 %, 40 %, 2048 MiB, 350.00 W, 990 MHz, 60"] * 3
        + ["t, 1, 99 %, 1 %, 1 MiB, 1 W, 1 MHz, 1"]
    )
    found = Found("gpu.csv")
    csv_facts(found, "\n".join([*rows, "[N/A], junk"]).encode(), gpus=1, power_limit_w=700, max_sm_mhz=1980)
    assert (
        values(found).items()
        >= {
            "gpu.sm_util_p50": 90.0,
            "gpu.power_share": 0.5,
            "gpu.sm_clock_share": 0.5,
            "gpu.memory_used_gib": 2.0,
        }.items()
    )


def test_the_driver_that_is_loaded_beside_the_load_counts() -> None:
    """The full query is made once for the box; drivers are replaced while a study runs."""
    once = (RECORDINGS / "sglang-0.5.12-h200" / "nvidia-smi-q.txt").read_bytes()
    launch = json.dumps({"engine": "sglang", "argv": ["python3", "-m", "sglang.launch_server", "--model-path", "/m"]}).encode()
    seen = [bundle_from_files({"launch.json": launch, "nvidia-smi-q.txt": once, **({"gpu_driver.csv": now} if now else {})}).evidence.value("gpu.driver")
            for now in (b"", b"580.95.05\n580.95.05\n", b"Failed to initialize NVML: Driver/library version mismatch\n")]  # fmt: skip
    assert seen == ["580.159.04", "580.95.05", "580.159.04"]


def test_full_query_speaks_of_links_only_under_load() -> None:
    data = (RECORDINGS / "sglang-0.5.12-h200" / "nvidia-smi-q.txt").read_bytes()
    idle, busy = Found("nvidia-smi-q.txt"), Found("nvidia-smi-q.txt")
    query = query_facts(idle, data)
    asleep = Found("nvidia-smi-q.txt")
    query_facts(asleep, data, under_load=True)  # recorded between two runs: the GPUs say themselves that they are idle
    query_facts(busy, data.replace(b"Idle                                           : Active", b"Idle                 : Not Active"), under_load=True)
    assert "pcie.link_share" not in values(asleep)
    assert any("idle" in item.reason for item in asleep.evidence().missing)
    assert (query.power_limit_w, query.max_sm_mhz, query.names) == (700.0, 1980.0, ["NVIDIA H200", "NVIDIA H200"])
    assert (
        values(idle).items()
        >= {"gpu.count": 2, "gpu.driver": "580.159.04", "gpu.power_limit_share": 1.0, "gpu.mig": False}.items()
    )
    assert "pcie.link_share" not in values(idle)
    assert values(busy)["pcie.link_share"] == 1.0
    assert busy.evidence().value("gpu.throttle_share", reason="sw_power_cap") == 0.0


def test_topology_takes_the_worst_link_of_the_gpus_in_use() -> None:
    matrix = b"\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\tSYS\tSYS\t0-31\t0\nGPU1\tNV4\t X \tSYS\tSYS\t0-31\t0\n" \
             b"GPU2\tSYS\tSYS\t X \tPHB\t32-63\t1\nGPU3\tSYS\tSYS\tPHB\t X \t32-63\t1\n"  # fmt: skip
    for gpus, link in ((4, "sys"), (2, "nvlink"), (1, "single"), (None, "sys")):
        found = Found("topo.txt")
        topo_facts(found, matrix, gpus)
        assert values(found)["topology.gpu_link"] == link


def test_nccl_takes_the_slowest_transport_and_names_errors_without_addresses() -> None:
    found = Found("server.log")
    log = NcclLog(found)
    for line in iter_lines([Piece(
        b"h:1:2 [0] NCCL INFO Channel 00/08 : 0 1\n"
        b"h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        b"h:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 2[0] [send] via NET/Socket/0\n"
        b"h:1:2 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL128 time 12.1\n"
        b"h:1:2 [0] NCCL INFO NCCL_PROTO set by environment to LL128.\n"
        b"h:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0\n"
        b"h:1:2 [0] NCCL INFO comm 0x2 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n"
        b"h:1:2 [0] NCCL INFO comm 0x3 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n"
        b"h:1:2 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out 10.1.2.3\n"
    )]):  # fmt: skip
        log.line(line)
    log.finish()
    assert (
        values(found).items()
        >= {
            "nccl.transport": "net_socket",
            "nccl.channels": 8,
            "nccl.protocol": "ll128",
            "nccl.env": ["NCCL_PROTO=LL128"],
            "parallel.nodes": 2,  # of the largest communicator
        }.items()
    )
    errors = found.get("nccl.error_lines")
    assert isinstance(errors, list) and "ibv_modify_qp" in errors[0] and "10.1.2.3" not in errors[0]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs.", "off_pcie_only"),
        (
            "Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.",
            "off_no_p2p",
        ),
        ("Custom allreduce is disabled due to an unsupported world size: 3.", "off_world_size"),
        ("Custom allreduce is disabled because this process group spans across nodes.", "off_multi_node"),
        ("Setup Custom allreduce failed with invalid device", "off_setup_failed"),
        ("Custom allreduce v2 initialized successfully", "on"),
        ("Registering 0 cuda graph addresses", "on"),
    ],
)
def test_custom_allreduce(line: str, state: str) -> None:
    log = SglangLog()
    log.feed(f"[2026-01-01 00:00:00 TP0] {line}\n".encode())
    assert log.finish().get("allreduce.custom") == state
    if "v2" not in line and "Registering" not in line and "Setup" not in line:
        vllm = VllmLog()
        vllm.feed(
            f"(Worker pid=1) WARNING 01-01 00:00:00 [custom_all_reduce.py:1] {line.replace('CustomAllreduce', 'Custom allreduce')}\n".encode()
        )
        assert vllm.finish().get("allreduce.custom") == state


def test_vllm_lines_of_many_versions() -> None:
    log = VllmLog()
    log.feed(
        b"INFO 07-21 20:41:16 [cuda.py:217] Using Flash Attention backend on V1 engine.\n"
        b"\x1b[0;36m(Worker_TP0 pid=9)\x1b[0;0m INFO 02-05 05:37:54 [cuda.py:364] Using FLASHINFER attention backend out of potential backends: ('A',)\n"
        b"(EngineCore pid=1) INFO 11-29 19:40:38 [kv_cache_utils.py:2327] GPU KV cache size: 2,097,152 tokens, Maximum concurrency for 2,048 tokens per request: 1024.00x\n"
        b"(EngineCore pid=1) WARNING 11-29 19:40:38 [fused_moe.py:1] Using default MoE config. Performance might be sub-optimal! Config file not found at /x.json\n"
        b"(EngineCore pid=1) INFO 11-29 19:40:38 [gpu.py:1] Graph capturing finished in 18 secs, took 0.52 GiB\n"
        b"(EngineCore pid=1) WARNING 11-29 19:40:38 [vllm.py:1719] Truncating max_cudagraph_capture_size to 4\n"
        b"(APIServer pid=1) INFO 11-29 19:40:52 [loggers.py:335] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
        b"Running: 3 reqs, Waiting: 4 reqs, Deferred: 1 reqs, Preemptions: 7, GPU KV cache usage: 55.5%, Prefix cache hit rate: 10.0%\n"
        b"INFO 07-23 13:31:58 [metrics.py:486] Avg prompt throughput: 4386.6 tokens/s, Avg generation throughput: 1031.2 tokens/s, Running: 56 reqs, "
        b"Swapped: 0 reqs, Pending: 2 reqs, GPU KV cache usage: 15.1%, CPU KV cache usage: 0.0%.\n"
        b"(APIServer pid=1) INFO 11-29 19:40:52 [loggers.py:335] Engine 000: Avg prompt throughput: soon, Running: many\n"
    )
    found = log.finish()
    assert values(found).items() >= {
        "kernel.attention_backend": "flashinfer", "kv.pool_tokens": 2097152, "kv.max_full_length_requests": 1024.0, "kernel.moe_config": "default",
        "graphs.capture_memory_gib": 0.52, "graphs.capture_max": 4, "kv.preemptions": 7, "decode.batch_max": 56.0, "queue.depth_p95": 4.0,
    }.items()  # fmt: skip
    assert [item.running for item in log.stats] == [3, 56]
    assert found.unrecognised == 1


def test_vllm_one_row_of_drafts_is_weighed_by_what_it_drafted() -> None:
    log = VllmLog()
    line = "(A pid=1) INFO 11-29 19:49:01 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {}, Accepted throughput: 0 tokens/s, " \
           "Drafted throughput: 5 tokens/s, Accepted: {} tokens, Drafted: {} tokens, Per-position acceptance rate: 0.9, 0.5, Avg Draft acceptance rate: 1%\n"  # fmt: skip
    log.feed((line.format("1.00", 0, 10) + line.format("3.00", 1980, 990 * 2)).encode())
    found = values(log.finish())
    assert found["spec.accept_len"] == pytest.approx(2.99, abs=0.01)
    assert found["spec.accept_by_position"] == [0.9, 0.5]


def test_benchmark_rows_never_replace_each_other() -> None:
    rows = read_bench(json.dumps([{"c": 16, "output_tps": 200, "workload": "random", "requests": 48, "failed": 12},
                                  {"c": 16, "output_tps": 90, "workload": "shared"}, {"c": 4, "output_tps": 60, "ttft_p50_ms": None}]).encode())  # fmt: skip
    found = Found("bench.json")
    bench_facts(found, rows)
    evidence = found.evidence()
    assert evidence.number("client.output_tps") == 200
    assert evidence.number("client.output_tps", concurrency=4) == 60
    assert evidence.number("client.output_tps", concurrency=16, prompts="shared") == 90
    assert evidence.number("client.served_share") == 0.75


@pytest.mark.fault("F16", "F24")
@pytest.mark.parametrize(
    ("tail", "code", "cause"),
    [
        (b"usage: x\nvllm serve: error: argument --tp: invalid int value: 'x'\n", 2, "bad_flag"),
        (b"ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use\n", 1, "port_busy"),
        (b"OSError: /nope is not a local folder and is not a valid model identifier listed on 'https://hf.co'\n", 1, "model_missing"),
        (b"Load weight begin. avail mem=10 GB\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nReceived sigquit from a child\n", 1, "oom_weights"),
        (b"ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization\nRuntimeError: Engine core initialization failed. See root cause above.\n", 1, "oom_kv"),
        (b"ValueError: To serve at least one request 5 GiB KV cache is needed, which is larger than the available KV cache memory (1 GiB)\n", 1, "oom_kv"),
        (b"ValueError: Free memory on device (1/80 GiB) on startup is less than desired GPU memory utilization (0.9)\n", 1, "gpu_memory_stuck"),
        (b"Capturing batches (bs=32)\nTP1 torch.OutOfMemoryError: CUDA out of memory. Tried\nTP0 ncclRemoteError: peer died\nNCCL error: remote\n", 1, "oom_capture"),
        (b"RuntimeError: NCCL error: unhandled system error\n", 1, "nccl"),
        (b"pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n", 1, "bad_flag"),
        (b'  File "/x/sglang/srt/server_args.py", line 5, in check\n    assert a\nAssertionError: tp must divide heads\n', 1, "bad_flag"),
        (b'  File "/x/model.py", line 5, in forward\nRuntimeError: boom\n', 1, "crashed"),
        (b"OSError: [Errno 28] No space left on device\n", 1, "disk_full"),
        (b"OSError: [Errno 122] Disk quota exceeded: '/home/x/.triton'\n", 1, "disk_full"),
        (b"OSError: [Errno 24] Too many open files\n", 1, "host_fault"),
        (b"OSError: [Errno 24] Too many open files\nValueError: Unsupported quantization fp7\n", 1, "crashed"),
        (b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n", 1, "host_fault"),
        (b"RuntimeError: No CUDA GPUs are available\nRuntimeError: Engine core initialization failed. See root cause above.\n", 1, "host_fault"),
        (b"Capturing batches (bs=32)\n", -7, "host_fault"),
        (b"NCCL WARN Cuda failure 2 'out of memory'\n", 1, "oom_weights"),
        (b"INFO prompt: 'please explain the error CUDA out of memory'\nINFO: Finished server process\n", 0, "exited"),
        (b"WARNING torch.OutOfMemoryError: CUDA out of memory during warmup, retrying with smaller batch\n"
         b"RuntimeError: CUDA error: an illegal memory access was encountered\n", 1, "crashed"),
        (b"Load weight begin\n", -9, "oom_load"),
        (b"Capture cuda graph begin\n", None, "not_ready_in_time"),
        (b"Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n", -3, "unresponsive"),
        (b"Ignore import error when loading sglang.srt.models.x: No module named 'y'\n", 0, "exited"),
        (b"The server is fired up\n[rank2]:[E ProcessGroupNCCL.cpp:2057] [PG ID 2] Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure\n"
         + b"(APIServer pid=1) ERROR [x.py:1] EngineDeadError: EngineCore encountered an issue.\n" * 20_000, 1, "crashed"),
        (b"", None, "not_ready_in_time"),
    ],
)  # fmt: skip
def test_exit_classes(tail: bytes, code: int | None, cause: str) -> None:
    found, message, _ = exit_class(tail, code)
    assert found == cause and message


def test_no_quick_look_passes_over_a_text_that_decides() -> None:
    needles = [needle for needle, _ in exits._SPECIFIC] + [*exits._NCCL, *exits._OOM, *exits._WEAK, b": error: x", b"graph failed", b"KeyboardInterrupt"]
    assert [needle for needle in needles if not exits.may_be_error(needle)] == []
    assert [marker for marker, _ in exits._STAGES if not exits.may_be_stage(marker)] == []


def test_the_last_decisive_line_counts_not_the_first_error() -> None:
    tail = (b"Ignore import error when loading a: ImportError: no\nTraceback (most recent call last):\nValueError: harmless, handled\n"
            b"Load weight end\nThe server is fired up and ready to roll!\nTraceback (most recent call last):\nRuntimeError: the real one\n")  # fmt: skip
    cause, message, line = exit_class(tail, 1)
    assert (cause, message, line) == ("crashed", "RuntimeError: the real one", 7)


def test_tables() -> None:
    assert [gpu_arch(name) for name in ("NVIDIA H200", "NVIDIA RTX PRO 6000 Blackwell", "RTX A6000", "NVIDIA GeForce RTX 4090", "NVIDIA L4", "Weird 9000")] == [
        "sm_90", "sm_120", "sm_86", "sm_89", "sm_89", None]  # fmt: skip
    assert [version_key(version) for version in ("0.5.10.post1", "v0.32.0+cpu", "main")] == [(0, 5, 10), (0, 32, 0), ()]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\n\n", b"x" * 300]), max_size=40).map(b"".join))
def test_progress_bars_between_lines_move_no_number_and_no_offset(data: bytes) -> None:
    """Whatever stands before, in and behind a stretch with carriage returns."""
    expected = []
    start = 0
    for number, whole in enumerate(data.split(b"\n"), 1):
        at = start
        for part in whole.split(b"\r"):
            if part:
                expected.append((number, at, part))
            at += len(part) + 1
        start += len(whole) + 1
    assert [tuple(line) for line in iter_lines([Piece(data)])] == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [("torch.bfloat16", "torch.bfloat16"), ("<A.B: 1>", "<A.B: 1>"), ("Thing(a=1)", "Thing(a=1)"), ("-0.25", -0.25), ("1.", 1.0), ("set()", []),
     ("b'x'", "b'x'"), ("u'x'", "x"), ("(1, 2)", [1, 2]), ("inf", "inf"), ("5m", "5m"), ("1e5", 1e5), ("00.5", 0.5)],
)  # fmt: skip
def test_what_is_no_literal_is_told_without_the_compiler(text: str, value: object) -> None:
    assert literal(text) == value and type(literal(text)) is type(value)
