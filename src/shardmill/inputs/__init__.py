"""What the user named → the files to read."""
