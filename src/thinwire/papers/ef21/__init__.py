"""The EF21 paper's experiments: logistic regression and least squares on LIBSVM data, and those of its successors."""
