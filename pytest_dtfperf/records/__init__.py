"""What was measured: written down before anybody judges it, read again, checked, judged again."""
