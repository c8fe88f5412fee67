"""Tilewright finds fast implementations of tensor programs by searching."""

__version__ = "0.1.0"
