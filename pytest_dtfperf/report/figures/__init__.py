"""Pictures of measurements: one module for each kind, one for what they show, one for how all of them look."""
