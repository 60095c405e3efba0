"""`python -m qd`: the command line, where no `qd` is on PATH."""

from qd.cli.main import main

if __name__ == "__main__":
    main()
