"""How fast a training could be at most, by what its devices, links and memory can do. Pure: specs and probes in, rates out."""
