# Sourced by launch.sh.
export HF_HUB_OFFLINE=1
export PYTHONPATH=/opt/sglang
