"""Token files → batches for a trainer."""
