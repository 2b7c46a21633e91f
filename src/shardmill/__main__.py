"""`python -m shardmill` is the same as `shardmill`."""

from shardmill.cli import main

main()
