"""Finished outputs: open, inspect, verify, merge, convert."""
