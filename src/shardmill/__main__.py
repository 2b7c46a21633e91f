"""`python -m shardmill` is the same as `shardmill`."""

from shardmill.cli.main import main

main()
