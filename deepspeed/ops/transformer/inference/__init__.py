"""Ops for inference."""
