"""The code that fetches data on a host. It needs only the standard library and `node/`."""
