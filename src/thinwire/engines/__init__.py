"""Engines drive the halves of a rule and own no algorithm: simulation in one process, DDP over a process group."""
