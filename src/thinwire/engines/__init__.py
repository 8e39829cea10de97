"""Engines drive the halves of a rule and own no algorithm: simulation, DDP, and many threads without locks."""
