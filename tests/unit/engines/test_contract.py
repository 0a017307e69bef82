"""All adapters pass the suite that third-party adapters run."""

from pathlib import Path

from optimizer.engines.llamacpp import ENGINE as LLAMACPP
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


class TestLlamaCpp(EngineContract):
    engine = LLAMACPP
    help_text = (Path(__file__).parents[2] / "recordings/llamacpp-2026.10-cpu/help.txt").read_text(encoding="utf-8")
    argv = ("/opt/llama.cpp/llama-server", "-m", "/m/model.gguf", "-ngl", "99", "-c", "8192", "--metrics")
    number = "parallel"
    switch = "kv_unified"
    text = "chat_template"


class TestLlamaCppScript(TestLlamaCpp):
    argv = ("/opt/venv/bin/python3", "/opt/venv/bin/llama-server", "--model", "/m/model.gguf", "--n_gpu_layers", "99")
