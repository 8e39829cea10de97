"""The Mem-SGD paper's experiments: theory's step sizes, bits beside QSGD, and many cores."""
