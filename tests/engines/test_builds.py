"""The installed builds are the recorded ones: what they offer and which version they say they are."""

from __future__ import annotations

import subprocess

import pytest

from optimizer.engines.registry import engine
from tests.unit.engines.conftest import help_text

from .conftest import Engines

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("name", "version"), [("sglang", "0.5.23"), ("vllm", "0.32.0")])
def test_help_and_version_of_the_installed_engines(name: str, version: str, engines: Engines) -> None:
    adapter = engine(name)
    module = {"sglang": "sglang.launch_server", "vllm": "vllm.entrypoints.openai.api_server"}[name]
    argv = [str(engines.folder / name / "bin/python"), "-m", module]
    text = subprocess.run(adapter.help_argv(argv), capture_output=True, timeout=240, text=True, check=True).stdout
    recorded = adapter.flags(help_text(version))
    assert {flag.name for flag in adapter.flags(text).flags} == {flag.name for flag in recorded.flags}
    told = subprocess.run(adapter.version_argv(argv), capture_output=True, timeout=240, text=True, check=True).stdout
    assert told.split()[-1] == version
