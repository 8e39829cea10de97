"""The compiled steps: `walk` is a thread's loop, `sparse_step` and `dense_step` one step, `choice` what it writes."""
