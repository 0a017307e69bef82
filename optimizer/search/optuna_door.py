"""Where Optuna is imported: late, since that takes most of a second and most commands never search, and silenced."""

import functools
import warnings
from typing import Any

# Launches are dear: the model takes over after four points instead of Optuna's ten.
STARTUP_TRIALS = 4


@functools.cache
def load() -> Any:
    import optuna

    # multivariate, group and constraints are marked experimental; the version is pinned below 6.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
