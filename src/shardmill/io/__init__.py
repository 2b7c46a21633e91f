"""Bytes in and out: files, pipes, HTTP and object stores, compression, retries, durable writes."""
