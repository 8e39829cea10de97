"""Benchmarks: our time beside a peer's and beside the floor of memory, all in one run."""
