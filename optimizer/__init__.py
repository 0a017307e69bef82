"""An autonomous, hypothesis-driven performance optimizer for LLM inference servers."""

__version__ = "0.1.0"
