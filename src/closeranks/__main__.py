"""``python -m closeranks`` is the ``closeranks`` command."""

from closeranks.cli.main import main

if __name__ == "__main__":
    main()
