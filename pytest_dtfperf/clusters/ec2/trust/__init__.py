"""From instances that run to hosts that ssh believes."""
