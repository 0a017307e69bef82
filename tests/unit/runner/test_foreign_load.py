"""A study never measures beside somebody else's job, and never a server that refuses its requests."""

import asyncio
from types import SimpleNamespace

import pytest

from optimizer.engines.registry import engine
from optimizer.model.study import LaunchSpec
from optimizer.runner import survey


class Box:
    name = "box"

    def __init__(self, holder=None):
        self._holder = holder

    async def holder(self):
        return self._holder


SPEC = SimpleNamespace(study="mine")
IDLE, BUSY = ["H200", " 143771 MiB", " 4 MiB"], ["H200", " 143771 MiB", " 80000 MiB"]
ENGINE = "sglang"
LAUNCH = LaunchSpec(argv=("python3", "-m", "sglang.launch_server"))


def refuse(gpus, given, launch, box=None):
    asyncio.run(survey._refuse_foreign_load(box or Box(), SPEC, gpus, engine(ENGINE).gpus_of(given), launch))


def test_an_idle_box_is_fine():
    refuse([IDLE, IDLE], {"tp_size": 2}, LAUNCH)


def test_a_busy_gpu_that_the_launch_would_use_is_refused():
    with pytest.raises(survey.Unfit, match="GPU 1: 80000 MiB"):
        refuse([IDLE, BUSY], {"tp_size": 2}, LAUNCH)


def test_a_busy_gpu_that_the_launch_does_not_use_is_no_matter():
    refuse([IDLE, BUSY], {}, LAUNCH)
    chosen = LAUNCH.model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "1"}})
    with pytest.raises(survey.Unfit):
        refuse([IDLE, BUSY], {}, chosen)


@pytest.mark.parametrize(
    ("name", "given", "gpus"),
    [
        ("sglang", {}, 1), ("sglang", {"tp_size": 2, "pp_size": 2}, 4), ("sglang", {"tp_size": 2, "dp_size": 2}, 4),
        ("sglang", {"tp_size": 4, "dp_size": 4, "enable_dp_attention": True}, 4), ("sglang", {"tp_size": 0, "dp_size": "x"}, 1),
        ("vllm", {"tensor_parallel_size": 2, "data_parallel_size": 2, "pipeline_parallel_size": 2}, 8), ("vllm", {}, 1), ("llamacpp", {}, 1),
    ],
)  # fmt: skip
def test_a_replica_on_a_busy_gpu_is_refused_by_the_adapters_own_count(name, given, gpus):
    assert engine(name).gpus_of(given) == gpus
    boxed = [IDLE] * (gpus - 1) + [BUSY, BUSY]
    with pytest.raises(survey.Unfit, match=f"GPU {gpus - 1}: 80000 MiB") as refused:
        asyncio.run(survey._refuse_foreign_load(Box(), SPEC, boxed, engine(name).gpus_of(given), LAUNCH))
    assert f"GPU {gpus}:" not in str(refused.value)


def test_another_study_is_named_rather_than_its_memory():
    held = Box(SimpleNamespace(study="first", coordinator_name="desk", gone=False))
    with pytest.raises(survey.Unfit, match="held by study first"):
        refuse([BUSY], {}, LAUNCH, held)


def test_no_gpu_is_no_foreign_load():
    refuse([], {"tp_size": 2}, LAUNCH)
