"""A study never measures beside somebody else's job, and never a server that refuses its requests."""

from types import SimpleNamespace

import pytest

from optimizer.model.study import LaunchSpec
from optimizer.runner import survey

BOX = SimpleNamespace(name="box")
IDLE, BUSY = ["H200", " 143771 MiB", " 4 MiB"], ["H200", " 143771 MiB", " 80000 MiB"]
LAUNCH = LaunchSpec(argv=("python3", "-m", "sglang.launch_server"))


def test_an_idle_box_is_fine():
    survey._refuse_foreign_load(BOX, [IDLE, IDLE], {"tp_size": 2}, LAUNCH)


def test_a_busy_gpu_that_the_launch_would_use_is_refused():
    with pytest.raises(survey.Unfit, match="GPU 1: 80000 MiB"):
        survey._refuse_foreign_load(BOX, [IDLE, BUSY], {"tp_size": 2}, LAUNCH)


def test_a_busy_gpu_that_the_launch_does_not_use_is_no_matter():
    survey._refuse_foreign_load(BOX, [IDLE, BUSY], {}, LAUNCH)
    chosen = LAUNCH.model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "1"}})
    with pytest.raises(survey.Unfit):
        survey._refuse_foreign_load(BOX, [IDLE, BUSY], {}, chosen)


def test_no_gpu_is_no_foreign_load():
    survey._refuse_foreign_load(BOX, [], {"tp_size": 2}, LAUNCH)


def test_a_server_with_an_api_key_is_refused_in_words():
    with pytest.raises(survey.Unfit, match="--api-key"):
        survey.refuse_api_key(LaunchSpec(argv=("python3", "-m", "sglang.launch_server", "--api-key", "x")))
