"""The laboratory: hosts on one machine, joined by wires of any rate, on which methods are timed beside each other."""
