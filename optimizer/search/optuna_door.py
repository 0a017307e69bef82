"""Where Optuna is imported: late, since that takes most of a second and most commands never search, and silenced."""

from typing import Any

# Launches are dear: the model takes over after four points instead of Optuna's ten.
STARTUP_TRIALS = 4


def load() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
