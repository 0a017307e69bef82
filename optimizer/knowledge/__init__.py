"""Playbooks, spaces, constraints and hardware: strict YAML in, validated records out. Decides nothing."""
