"""Pure numerics of noise, intervals, steady state, tails and saturation; no I/O, no clock, no scipy."""
