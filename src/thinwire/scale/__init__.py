"""Scale: what a method costs a worker as workers are added, by each exchange, and what a second compression costs.

`estimate` counts real messages and prices them by the timeline; `noisy_quadratic` trains simulated workers;
`scale_sections` shows both, and `thinwire scale` is the command.
"""
