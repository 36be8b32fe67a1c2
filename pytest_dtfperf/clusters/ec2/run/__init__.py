"""What a run of instances is: its plan, its ledger on disk, and what it has in the account."""
