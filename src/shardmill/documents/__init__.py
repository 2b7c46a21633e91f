"""An InputFile → where it can be cut, and its documents as UTF-8 bytes. One module for each kind of file."""
