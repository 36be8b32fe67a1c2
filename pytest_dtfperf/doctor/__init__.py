"""Whether a cluster is fit to be measured: looked at from every host, side by side."""
