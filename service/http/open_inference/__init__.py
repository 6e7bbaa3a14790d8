"""The Open Inference Protocol (KServe, Triton): metadata and inference with tensors."""
