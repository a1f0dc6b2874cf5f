"""`python -m kappamq` is `kappamq`."""

from kappamq import interrupts


def main() -> None:
    interrupts.end_at_once()  # before the slow imports
    from kappamq.cli import app

    app()


if __name__ == "__main__":
    main()
