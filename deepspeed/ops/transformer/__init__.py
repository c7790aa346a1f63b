"""Ops of transformer and diffusion models."""
