"""The command line."""

import os

# Threads for linear algebra, which nobody needs here: starting them takes a tenth of a second of every command.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
