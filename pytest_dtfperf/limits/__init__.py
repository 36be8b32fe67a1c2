"""Compute the highest rate that a training's devices, links and memory allow. Pure: specs and probes in, rates out."""
