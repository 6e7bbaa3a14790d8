"""The forward as torch modules, and recordings of it: files that import torch alone, for benchmarks/gpu.py."""
