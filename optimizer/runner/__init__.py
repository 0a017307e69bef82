"""The imperative shell: drives the pure core, executes its steps, journals what happened."""
