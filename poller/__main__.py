"""``python -m poller``: the same as ``poller``."""

from poller.cli import main

if __name__ == "__main__":
    main()
