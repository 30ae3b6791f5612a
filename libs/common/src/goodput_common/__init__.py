"""The contract and the plumbing that every goodput service shares."""
