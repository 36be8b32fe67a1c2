"""What Amazon offers, what that costs, and who has agreed to it."""
