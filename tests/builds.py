"""What the torch that is installed was built for."""

import torch

CUDA_WITHOUT_GPU = torch.version.cuda is not None and not torch.cuda.is_available()
"""A build with CUDA on a machine without a GPU, which is what a plain `pip install torch` gives: some of torch's own
parts look for a driver there, even for what needs none."""
