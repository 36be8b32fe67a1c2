"""Is it worse? What was accepted before, what others published, and the verdict on what was measured now."""
