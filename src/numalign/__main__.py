"""``python -m numalign``: the command line."""

from numalign.cli import main

if __name__ == "__main__":
    main()
