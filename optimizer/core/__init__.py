"""The pure core: fold entries into a state, decide the next step. No clock, no randomness, no I/O."""
