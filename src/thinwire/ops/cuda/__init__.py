"""The GPU back-end: Triton kernels on torch's memory."""
