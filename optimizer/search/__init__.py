"""Proposals from Optuna, as a pure function of a study's history: the only package that imports it."""
