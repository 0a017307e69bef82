"""The programs of a simulated box: the server process and ``nvidia-smi``. Standard library only, relative imports only:
this folder is put on ``sys.path`` of the simulated processes, so it must not know the rest of the project."""
