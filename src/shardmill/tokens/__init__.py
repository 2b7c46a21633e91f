"""Documents → token ids: what a tokenizer is, the engines that run it, and the guard that keeps the fast one exact."""
