"""How Amazon is asked: in whose name, how often, and what its refusals mean."""
