"""The machine the job runs on, its compiled libraries and the names of its paths."""
