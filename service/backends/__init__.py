"""Backends that execute the frozen graph: one interface, one file per backend."""
