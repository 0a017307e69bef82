"""The contract suite on the adapter of toyserve.py. A real adapter takes the recorded `--help` of a real build."""

import argparse
import sys
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent))
from toyserve import ENGINE

from optimizer.testing.engine_contract import EngineContract


def help_of_a_build() -> str:
    parser = argparse.ArgumentParser(prog="toyserve")
    for name in ("model", "host", "port", "served-model-name", "chat-template", "api-key", "tensor-parallel"):
        parser.add_argument(f"--{name}", help="what it says")
    parser.add_argument("--max-requests", type=int, default=64, help="requests at once")
    parser.add_argument("--disable-graphs", action="store_true", help="run eagerly")
    for number in range(50):
        parser.add_argument(f"--option-{number}", type=int, help="one of many")
    return parser.format_help()


class TestToyServe(EngineContract):
    engine = ENGINE
    help_text = help_of_a_build()
    argv = ("python3", "-m", "toyserve.server", "--model", "/m", "--tensor-parallel", "1")
    number = "max_requests"  # a parameter with a number
    switch = "disable_graphs"  # a switch
    text = "chat_template"  # a text

    info: ClassVar = {"settings": {"max_batch": 32}}

    def test_the_effective_cap_is_read_under_its_present_name(self) -> None:
        assert self.engine.readback(self.info)["max_requests"] == 32
        assert self.engine.readback(None, None, "INFO admission cap 16\n")["max_requests"] == 16
