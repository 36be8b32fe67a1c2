"""Share variables between the towers of a training: one class per mode, each with the members of `UpdateStrategy`."""
