"""What becomes of instances while they are lent, and what there is in the account."""
