"""Both adapters pass the suite that third-party adapters run."""

from optimizer.engines.sglang import ENGINE as SGLANG
from optimizer.engines.vllm import ENGINE as VLLM
from optimizer.testing.engine_contract import EngineContract

from .conftest import help_text


class TestSGLangOld(EngineContract):
    engine = SGLANG
    help_text = help_text("0.5.12")
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/m", "--tp", "1", "--enable-metrics")
    number = "cuda_graph_max_bs"
    switch = "disable_overlap_schedule"
    text = "chat_template"


class TestSGLangNew(TestSGLangOld):
    help_text = help_text("0.5.23")
    argv = ("/opt/venv/bin/python", "-u", "-m", "sglang.launch_server", "--model-path=/m", "--tp-size", "1")


class TestVLLM(EngineContract):
    engine = VLLM
    help_text = help_text("0.32.0")
    argv = ("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m", "--enforce-eager")
    number = "max_num_seqs"
    switch = "enable_prefix_caching"
    text = "chat_template"


class TestVLLMServe(TestVLLM):
    argv = ("/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "/m", "--max_model_len", "2k")
