"""``python -m optimizer``, and the command ``optimize``."""


def main() -> None:
    """The command line. Ctrl-C while it is still being loaded ends it as quietly as later."""
    try:
        from optimizer.cli import main as command

        command()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
