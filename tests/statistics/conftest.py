"""The simulator is the benchmark's own; the tests bind its figures at fewer repetitions."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "statistics"))
