"""Which of two software stacks trains faster on the same hosts. Pure: variants and blocks of runs in, verdicts out."""
