"""The compiled steps: `walk` is the loop of a thread, `sparse` and `dense` a step, `choice` what it writes."""
