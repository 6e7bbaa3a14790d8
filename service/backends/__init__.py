"""Backends that execute the frozen graph; importing the package imports no library."""
