"""A stream of tokens → the files of one trainer."""
