"""Parquet and Arrow → documents, within the memory budget."""
