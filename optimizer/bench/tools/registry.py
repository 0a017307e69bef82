"""Every tool by the name that the command line knows."""

from optimizer.bench.tools.aiperf import Aiperf
from optimizer.bench.tools.base import Tool
from optimizer.bench.tools.guidellm import Guidellm
from optimizer.bench.tools.sglang import Sglang
from optimizer.bench.tools.vllm import Vllm

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (Vllm(), Sglang(), Guidellm(), Aiperf())}
